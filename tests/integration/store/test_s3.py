"""S3 when things go wrong: lost answers, refusals, dead lock holders, stores without conditions. Real HTTP, moto behind it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from llmperf_common.ledger.holder import boot_clock_s, this_process
from llmperf_common.store.files import s3_lock
from llmperf_common.store.files.create_once import check_creates_once
from llmperf_common.store.files.filesystem import AccessDeniedError, StoreError
from llmperf_common.store.files.location import open_filesystem
from llmperf_common.store.files.run_lock import CollectingError, alone
from llmperf_common.store.files.s3 import ENDPOINT_VARIABLE, S3Filesystem
from llmperf_common.store.manifests import segments
from llmperf_common.store.manifests.run import RUN_LOCK
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.repair import repair
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import make_dataset
from tests.support.in_process import assert_refused, llmperf
from tests.support.servers.s3_server import CREDENTIALS, Fault, S3Server, new_prefix, open_at

MANY = 99


@pytest.fixture(scope="module")
def _server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def server(_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in _server.environment.items():
        monkeypatch.setenv(name, value)
    yield _server
    _server.faults.planned.clear()
    _server.faults.ignores_conditions = False


@pytest.fixture
def location(server: S3Server) -> str:
    return new_prefix(server.endpoint)


@pytest.fixture
def fs(server: S3Server, location: str) -> S3Filesystem:
    return open_at(server.endpoint, location)


def test_a_lost_answer_to_our_own_creation_is_ours(server, fs):
    server.faults.planned = [Fault("PUT", "/x", after=500)]
    assert fs.put_if_absent("x", b"same")
    assert fs.read_bytes("x") == b"same"


def test_a_lost_answer_does_not_make_anothers_ours(server, fs):
    assert fs.put_if_absent("x", b"same")
    server.faults.planned = [Fault("PUT", "/x", after=500)]
    assert not fs.put_if_absent("x", b"same"), "equal bytes, but written by another client"


def test_a_repeated_refusal_is_no_creation(server, fs):
    server.faults.planned = [Fault("PUT", "/x", before=503, code="SlowDown")]
    assert fs.put_if_absent("x", b"1")
    server.faults.planned = [Fault("PUT", "/x", before=503, code="SlowDown")]
    assert not fs.put_if_absent("x", b"2")
    assert fs.read_bytes("x") == b"1"


def test_a_conflict_is_tried_again_and_bounded(server, fs, monkeypatch):
    monkeypatch.setattr("llmperf_common.store.files.s3.time.sleep", lambda _: None)
    conflict = {"method": "PUT", "before": 409, "code": "ConditionalRequestConflict"}
    server.faults.planned = [Fault(suffix="/x", times=3, **conflict)]
    assert fs.put_if_absent("x", b"1")
    server.faults.planned = [Fault(suffix="/y", times=MANY, **conflict)]
    with pytest.raises(StoreError, match=r"cannot create s3://.*/y.*run the same command again"):
        fs.put_if_absent("y", b"1")


def test_failures_that_stay_are_a_message(server, fs):
    server.faults.planned = [Fault("GET", "/x", before=500, times=MANY)]
    with pytest.raises(
        StoreError, match=r"refused a request for s3://.*500.*run the same command again"
    ):
        fs.read_bytes("x")
    assert server.faults.planned[0].times >= MANY - 5, "retries are bounded"


def test_a_read_is_repeated(server, fs):
    fs.put_if_absent("x", b"1")
    server.faults.planned = [Fault("GET", "/x", before=503, code="SlowDown", times=2)]
    assert fs.read_bytes("x") == b"1"


def test_no_bucket(server, fs):
    missing = open_at(server.endpoint, "s3://no-such-bucket-of-ours/data")
    for action in (
        missing.names,
        lambda: missing.read_bytes("x"),
        lambda: missing.put_if_absent("x", b""),
    ):
        with pytest.raises(
            StoreError, match=r"there is no bucket no-such-bucket-of-ours.*create it"
        ):
            action()


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_an_address_where_nobody_speaks_s3(server, fs, location, method):
    server.faults.planned = [Fault(method, before=404, code="NotFound", times=MANY)]
    action = fs.names if method == "GET" else lambda: fs.put_if_absent("x", b"")
    with pytest.raises(StoreError, match=rf"does not know {location}.*check LLMPERF_S3_ENDPOINT"):
        action()


def test_what_is_gone_is_deleted_also_where_the_store_says_so(server, fs):
    server.faults.planned = [Fault("DELETE", before=404, code="NoSuchKey")]
    fs.remove("x")


def test_no_more_of_an_object_is_read_than_it_may_have(fs, monkeypatch):
    monkeypatch.setattr("llmperf_common.store.files.s3.max_bytes_of", lambda _name: 1000)
    fs.replace("x", b"1" * 1000)
    fs.replace("y", b"1" * 1001)
    assert len(fs.read_bytes("x")) == 1000
    with pytest.raises(StoreError, match=r"/y has more than 1000 bytes: it is not read"):
        fs.read_bytes("y")


def _raw_store(answer: bytes) -> tuple[socket.socket, threading.Thread]:
    """A server that gives each request the same answer and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65_536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener, thread


@pytest.fixture
def raw_store(server, location):
    """Opens a store that gives one answer to all requests."""
    listeners = []

    def start(head: str, body: bytes) -> S3Filesystem:
        listener, _ = _raw_store(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + body)
        listeners.append(listener)
        return open_at(f"http://127.0.0.1:{listener.getsockname()[1]}", location)

    yield start
    for listener in listeners:
        listener.close()


def test_a_body_without_an_end_is_not_read_to_it(raw_store, monkeypatch):
    monkeypatch.setattr("llmperf_common.store.files.s3.max_bytes_of", lambda _name: 2**21)
    chunk = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    endless = raw_store("Transfer-Encoding: chunked", 8 * chunk)
    with pytest.raises(StoreError, match="has more than"):
        endless.read_bytes("x")


def test_a_body_that_is_cut_is_no_object(raw_store):
    cut = raw_store("Content-Length: 5000000", b"x" * 4_000_000)
    with pytest.raises(StoreError, match=r"cannot reach .*run the same command again"):
        cut.read_bytes("x")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("token", ["", "<NextContinuationToken>a</NextContinuationToken>"])
def test_a_listing_without_an_end(raw_store, token):
    body = f"<ListBucketResult><IsTruncated>true</IsTruncated>{token}</ListBucketResult>".encode()
    endless = raw_store(f"Content-Length: {len(body)}", body)
    with pytest.raises(StoreError, match=r"without an end.*LLMPERF_S3_ENDPOINT"):
        endless.names()


_ITEM = "<Key>{key}</Key><LastModified>{time}</LastModified><Size>1</Size>"
_SOUND_TIME = "2026-01-01T00:00:00.000Z"


def _page(item: str) -> str:
    return f"<ListBucketResult><Contents>{item}</Contents></ListBucketResult>"


@pytest.mark.parametrize("call", ["names", "listing", "is_locked"])
@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("Date: junk", _page(_ITEM.format(key="{key}", time=_SOUND_TIME))),
        ("Date: Wed, 99 Jan 2026 99:00:00 GMT", _page(_ITEM.format(key="{key}", time=_SOUND_TIME))),
        ("Date: " + "9" * 5000, _page(_ITEM.format(key="{key}", time=_SOUND_TIME))),
        ("", _page(_ITEM.format(key="{key}", time="never"))),
        ("", _page(_ITEM.format(key="{key}", time=""))),
        ("", _page(_ITEM.format(key="{key}", time="9" * 30))),
        ("", _page(_ITEM.format(key="elsewhere/x", time=_SOUND_TIME))),
        ("", _page(_ITEM.format(key="", time=_SOUND_TIME))),
        ("", _page("<Key>{key}</Key><Size>1</Size>")),
        ("", _page(f"<LastModified>{_SOUND_TIME}</LastModified><Size>1</Size>")),
        ("", _page(_ITEM.format(key="{key}", time=_SOUND_TIME) + "<Size>many</Size>")),
        ("", "<ListBucketResult><KeyCount>x</KeyCount></ListBucketResult>"),
    ],
)  # fmt: skip
def test_a_listing_that_makes_no_sense_is_told(raw_store, location, call, head, body):
    key = f"{location.removeprefix('s3://').partition('/')[2]}/x/exclusive-1"
    body = body.replace("{key}", key)
    lines = [head, f"Content-Length: {len(body)}"]
    odd = raw_store("\r\n".join(line for line in lines if line), body.encode())
    with pytest.raises(StoreError, match=rf"http://127\.0\.0\.1:.*{location}.*LLMPERF_S3_ENDPOINT"):
        odd.is_locked("x") if call == "is_locked" else getattr(odd, call)("x")


@pytest.mark.parametrize("body", ["<CommonPrefixes/>", "<CommonPrefixes><Prefix>q/</Prefix></CommonPrefixes>"])  # fmt: skip
def test_folders_that_make_no_sense_are_told(raw_store, body):
    body = f"<ListBucketResult>{body}</ListBucketResult>"
    odd = raw_store(f"Content-Length: {len(body)}", body.encode())
    with pytest.raises(StoreError, match=r"list_objects_v2.*LLMPERF_S3_ENDPOINT"):
        odd.folders("x")


@pytest.mark.parametrize("head", ["Last-Modified: junk", "Content-Length: five", "Date: junk"])
def test_an_object_with_odd_headers(raw_store, head):
    """A sound length is needed only where the object is not read."""
    odd = raw_store(head, b"")
    if head.startswith("Date"):
        assert odd.read_bytes("x") == b""
    else:
        with pytest.raises(StoreError, match=r"get_object.*/x.*LLMPERF_S3_ENDPOINT"):
            odd.read_bytes("x")
    with pytest.raises(StoreError, match=r"head_object.*/x.*LLMPERF_S3_ENDPOINT"):
        odd.sizes(["x"])


def test_a_date_without_a_zone_is_that_of_greenwich(raw_store, location):
    key = f"{location.removeprefix('s3://').partition('/')[2]}/x/exclusive-1"
    body = _page(_ITEM.format(key=key, time=_SOUND_TIME))
    odd = raw_store(
        f"Date: Thu, 01 Jan 2026 10:00:00 -0000\r\nContent-Length: {len(body)}", body.encode()
    )
    assert not odd.is_locked("x"), "its holder has not renewed it for ten hours"


def test_access_denied(server, fs):
    server.faults.planned = [Fault("PUT", "/x", before=403, code="AccessDenied")]
    with pytest.raises(AccessDeniedError, match=r"access to s3://.*/x is denied.*credentials"):
        fs.put_if_absent("x", b"")


def test_no_credentials(server, location, monkeypatch, tmp_path):
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(AccessDeniedError, match=r"no credentials for s3://.*AWS_ACCESS_KEY_ID"):
        open_at(server.endpoint, location).names()


def test_a_store_that_cannot_be_reached(location, monkeypatch):
    monkeypatch.setattr("llmperf_common.store.files.s3._REQUEST_ATTEMPTS", 1)
    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"cannot reach http://127.0.0.1:1.*check the network"):
        open_filesystem(location).names()
    done = llmperf("status", location)
    assert_refused(done, 3, "cannot reach http://127.0.0.1:1", "LLMPERF_S3_ENDPOINT")


def test_an_endpoint_that_makes_no_sense(location, monkeypatch):
    monkeypatch.setenv(ENDPOINT_VARIABLE, "127.0.0.1:9000")
    with pytest.raises(StoreError, match=ENDPOINT_VARIABLE):
        open_filesystem(location)


def test_the_check_refuses_a_store_that_ignores_conditions(server, fs, location, tmp_path):
    check_creates_once(fs)
    server.faults.ignores_conditions = True
    with pytest.raises(StoreError, match=r"ignores If-None-Match.*choose a store with"):
        check_creates_once(fs)
    assert fs.names() == []


def test_the_check_survives_a_sweep_between_its_writes(fs):
    class Swept:
        """A store whose check object is taken away once."""

        num_removed = 0

        def __getattr__(self, name):
            return getattr(fs, name)

        def put_if_absent(self, name, data):
            outcome = fs.put_if_absent(name, data)
            if not self.num_removed:
                self.num_removed += 1
                fs.remove(name)
            return outcome

    check_creates_once(Swept())


@pytest.mark.slow
def test_a_dead_holder_of_another_host_runs_out(server, fs, location):
    fs.replace(
        ".run.lock/exclusive-00",
        b'{"host": "elsewhere", "boot_id": "b", "pid": 1, "start_ticks": 1}',
    )
    impatient = open_at(server.endpoint, location, stale_s=2.0)
    with impatient.lock(".run.lock", exclusive=False, wait=False) as held:
        assert not held, "it may be alive"
    begun_s = time.monotonic()
    with impatient.lock(".run.lock", exclusive=True, wait=True) as held:
        assert held
        assert time.monotonic() - begun_s > 0.5
        assert len(fs.names(".run.lock")) == 1, "what the dead left is removed"


_HOLD = """
import sys, time
from llmperf_common.store.files.location import open_filesystem
with open_filesystem(sys.argv[1]).lock(".run.lock", exclusive=sys.argv[2] == "x", wait=True) as held:
    print(held, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["x", "s"])
def test_a_dead_holder_of_this_host_is_seen_at_once(fs, location, kind):
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, location, kind], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "True\n"
    with fs.lock(".run.lock", exclusive=True, wait=False) as alone:
        assert not alone
    holder.kill()
    holder.communicate()
    with fs.lock(".run.lock", exclusive=True, wait=False) as alone:
        assert alone


def test_a_holder_on_another_machine_of_our_name_is_not_taken_for_dead(fs):
    elsewhere = dataclasses.replace(this_process(), boot_id="another-machine+1", pid=2**22 + 1)
    fs.replace(".run.lock/exclusive-00", json.dumps(dataclasses.asdict(elsewhere)).encode())
    with fs.lock(".run.lock", exclusive=False, wait=False) as held:
        assert not held, "it may be alive"


@pytest.mark.slow
def test_a_holder_that_renews_is_never_taken_for_dead(server, location):
    timing = {"heartbeat_s": 0.3, "stale_s": 2.0}
    first, second = (open_at(server.endpoint, location, **timing) for _ in range(2))
    with first.lock("l", exclusive=True, wait=False):
        until_s = time.monotonic() + 2.5
        while time.monotonic() < until_s:
            with second.lock("l", exclusive=False, wait=False) as held:
                assert not held
            time.sleep(0.3)


def test_nothing_is_removed_once_the_lock_may_be_anothers(server, location):
    fs = open_at(server.endpoint, location, heartbeat_s=60, stale_s=1.0)
    fs.put_if_absent("orphan", b"")
    with fs.lock("l", exclusive=True, wait=False) as alone:
        assert alone
        time.sleep(0.9)
        with pytest.raises(StoreError, match=r"could not be renewed.*run the same command again"):
            fs.remove("orphan")
    assert fs.names() == ["orphan"]
    fs.remove("orphan")


def test_a_suspended_holder_does_not_renew_a_lock_that_may_be_anothers(
    server, location, monkeypatch
):
    fs = open_at(server.endpoint, location, heartbeat_s=0.1, stale_s=90)
    fs.put_if_absent("orphan", b"")
    with fs.lock("l", exclusive=True, wait=False) as alone:
        assert alone
        monkeypatch.setattr(s3_lock, "boot_clock_s", lambda: boot_clock_s() + 100)
        time.sleep(0.5)  # some heartbeats
        for change in (lambda: fs.remove("orphan"), lambda: fs.move("orphan", "trash/orphan")):
            with pytest.raises(StoreError, match="could not be renewed"):
                change()
    assert fs.names() == ["orphan"]


def test_a_move_during_which_the_lock_is_lost_removes_nothing(server, location, monkeypatch):
    fs = open_at(server.endpoint, location, heartbeat_s=60, stale_s=90)
    fs.put_if_absent("orphan", b"")
    ask = fs._request

    def suspended(operation, name, **arguments):
        answer = ask(operation, name, **arguments)
        monkeypatch.setattr(s3_lock, "boot_clock_s", lambda: boot_clock_s() + 100)
        return answer

    with fs.lock("l", exclusive=True, wait=False):
        monkeypatch.setattr(fs, "_request", suspended)
        with pytest.raises(StoreError, match="could not be renewed"):
            fs.move("orphan", "trash/orphan")
    assert fs.names() == ["orphan"]


def test_who_may_only_read_sees_whether_it_is_free(server, fs, location):
    denied = Fault("PUT", "", before=403, code="AccessDenied", times=MANY)
    reader = open_at(server.endpoint, location)
    with fs.lock(".run.lock", exclusive=False, wait=False):
        server.faults.planned = [denied]
        with reader.lock(".run.lock", exclusive=True, wait=False) as alone:
            assert not alone
        server.faults.planned = []
    server.faults.planned = [denied]
    with reader.lock(".run.lock", exclusive=True, wait=False) as alone:
        assert alone
    with pytest.raises(AccessDeniedError), reader.lock("l", exclusive=False, wait=True):
        pass


def test_who_holds_it_is_said_to_those_who_want_it(server, location):
    holder = open_at(server.endpoint, location)
    told = "process 4711 on elsewhere (llmperf collect --out x) since 2026-01-01"
    with holder.lock(RUN_LOCK, exclusive=False, wait=False):
        (claim,) = holder.names(RUN_LOCK)
        document = json.loads(holder.read_bytes(f"{RUN_LOCK}/{claim}"))
        assert document["command"]
        document |= {"host": "elsewhere", "pid": 4711, "command": "llmperf collect --out x", "since": "2026-01-01"}  # fmt: skip
        holder.replace(f"{RUN_LOCK}/{claim}", json.dumps(document).encode())
        wants = open_at(server.endpoint, location)
        with pytest.raises(CollectingError, match=re.escape(told)), alone(wants, "compact"):
            pass


@pytest.mark.slow
def test_segments_and_a_repair(server, fs, location, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEALED_AT", 4)
    local = make_dataset(tmp_path / "data", kernels=6, kernels_per_shard=1)
    for path in sorted(path for path in local.rglob("*") if path.is_file()):
        fs.put_if_absent(str(path.relative_to(local)), path.read_bytes())
    dataset = open_dataset(location)
    assert len(dataset.manifest.segments) > 1
    assert verify(location).problems == ()
    victim = dataset.shards("samples")[2]
    fs.replace(victim.name, b"x" * victim.bytes)
    report = repair(location)
    assert report.num_freed_tasks == 1
    assert verify(location).problems == ()
    assert len(fs.names("trash")) == 2
    assert repair(location).dropped == ()
    assert open_dataset(location).num_tasks == 5


def test_heartbeats_end_with_the_lock(fs):
    with fs.lock("l", exclusive=True, wait=False):
        assert any(thread.name == "lock-heartbeat" for thread in threading.enumerate())
    assert not any(thread.name == "lock-heartbeat" for thread in threading.enumerate())
    assert s3_lock.LockTiming().heartbeat_s * 4 < s3_lock.LockTiming().stale_s


@pytest.mark.parametrize(
    "text", ["s3:/bucket/x", "gs://bucket/x", "file:///tmp/x", "s3:///x", "s3://b//x"]
)
def test_what_is_no_location_is_told(text, server):
    with pytest.raises(StoreError, match="s3://bucket/prefix"):
        open_filesystem(text)
    assert_refused(llmperf("dataset", "verify", text), 3, "s3://bucket/prefix")


def test_an_empty_prefix_is_no_dataset(location):
    assert_refused(llmperf("dataset", "stats", location), 3, "is not a dataset", location)
    assert not verify(location).clean


_WITHOUT_BOTO3 = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("boto3", "botocore"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = ["llmperf", "status", "s3://bucket/data"]
from llmperf.cli.main import run
run()
"""


def test_a_missing_boto3_names_the_extra():
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_BOTO3], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert 'pip install "llmperf[s3]"' in done.stderr
    assert "Traceback" not in done.stderr
