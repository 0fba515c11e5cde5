"""What actors get of the driver's environment."""

from __future__ import annotations

from llmperf_common.store.files.environment import STORE_SETTINGS, store_settings

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_PROFILE": "mine",  # a name in a file of this machine
    "PATH": "/bin",
}


def test_settings_of_the_store_are_passed_on_and_secrets_are_not() -> None:
    settings = {
        "LLMPERF_S3_ENDPOINT": "http://minio.example:9000",
        "AWS_ENDPOINT_URL": "https://s3.example",
        "AWS_ENDPOINT_URL_S3": "https://s3.example",
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_CA_BUNDLE": "/etc/ssl/ours@site.pem",
    }
    assert set(settings) == set(STORE_SETTINGS)
    assert store_settings({**SECRETS, **settings}) == settings


def test_what_is_not_set_is_left_to_the_node() -> None:
    assert store_settings({**SECRETS, "AWS_REGION": "", "AWS_CA_BUNDLE": "/ca.pem"}) == {
        "AWS_CA_BUNDLE": "/ca.pem"
    }


def test_a_url_with_a_password_is_not_shown_to_rays_dashboard() -> None:
    assert store_settings({"LLMPERF_S3_ENDPOINT": "http://user:secret@minio.example:9000"}) == {}
