"""Single files that strangers made, named by a user: refused with a message, without waiting for their end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf.cli.report import _evaluation_view
from llmperf.exits import CommandError
from llmperf.prediction import configs
from llmperf.prediction.configs import read_configs
from llmperf_common.config import ConfigError
from tests.support.sampling import slow_but_each
from trainer.config import load_train_config
from trainer.errors import BadInput
from workers.device.replay_file import read_replay_file

DEEP = "[" * 100_000

BAD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "nested": lambda path: path.write_text(DEEP),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bad", BAD)
def test_a_replay_file(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "replay.json"
    BAD[bad](path)
    with pytest.raises(ValueError, match=r"not a regular file|nested"):
        read_replay_file(path)


@pytest.mark.parametrize("text", [DEEP, '{"a":' + DEEP])
def test_launches_that_nest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "launches.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="nested too deeply"):
        read_configs(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"global_size": [%s], "local_size": [1]}',
        '[{"global_size": [%s], "local_size": [1]}]',
        'global_size,local_size,args\n1,1,"{""n"": %s}"\n',
    ],
)
def test_launches_with_a_number_of_5000_digits(tmp_path: Path, text: str) -> None:
    path = tmp_path / "launches.json"
    path.write_text(text % ("1" * 5000))
    with pytest.raises(BadInput, match=r"thousands of digits|is not an object"):
        read_configs(path)


def test_a_launch_whose_name_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "launches.json"
    path.write_text(r'{"id": "\ud800", "global_size": [1], "local_size": [1]}')
    with pytest.raises(BadInput, match=r"line 1: id .*lone surrogate"):
        read_configs(path)


def test_a_parquet_file_with_a_date_beyond_all(tmp_path: Path) -> None:
    ones = pa.array([1])
    far = pa.array([2**62], pa.timestamp("ms"))
    path = tmp_path / "launches.parquet"
    pq.write_table(pa.table({"global_size": ones, "local_size": ones, "id": far}), path)
    with pytest.raises(BadInput, match="a column cannot be read"):
        read_configs(path)


@pytest.mark.timeout(20)
def test_launches_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "_MAX_BYTES", 2**20)
    with pytest.raises(BadInput, match=r"more than 1 MiB: give the launches in several files"):
        read_configs("/dev/zero")


def test_launches_of_a_parquet_file_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(
        pa.array([0] * 4096, pa.int8()), pa.array(["x" * 2**20])
    )
    ones = pa.array([1] * 4096)
    path = tmp_path / "launches.parquet"
    pq.write_table(pa.table({"global_size": ones, "local_size": ones, "id": column}), path, store_schema=False)  # fmt: skip
    assert path.stat().st_size < 2**20
    with pytest.raises(BadInput, match="decompressed it would take"):
        read_configs(path)


def test_columns_of_launches_are_checked_before_they_are_unpacked(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(
        pa.array([0] * 4096, pa.int8()), pa.array(["x" * 2**20])
    )
    path = tmp_path / "launches.parquet"
    pq.write_table(pa.table({"global_size": pa.array([1] * 4096), "id": column}), path, store_schema=False)  # fmt: skip
    with pytest.raises(BadInput, match=r"launches.parquet: no column local_size") as refused:
        read_configs(path)
    assert "no readable" not in str(refused.value)


def test_launches_from_a_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BadInput, match=r"standard input: Bad file descriptor: name a readable"):
        read_configs("-")


LARGE = {
    "digits": "[train]\nseed = " + "9" * 5000,
    "hexadecimal": "[train]\nseed = 0x" + "f" * 6000,
    "inline tables": "[train]\nseed = " + ("{" + "a." * 32 + "a = ") * 60 + "1" + "}" * 60,
}


@pytest.mark.parametrize("name", slow_but_each(3, LARGE))
def test_a_config_file_with_a_value_beyond_all(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(LARGE[name])
    with pytest.raises(
        # How deep ``repr`` gets depends on the recursion limit, which other tests may have raised.
        ConfigError,
        match=r"cannot be read|train\.seed.* (too large to show|…)",
    ) as caught:
        load_train_config("log-linear", file=path)
    assert len(str(caught.value)) < 1000


DEEP_KEYS = {
    "key": "a" + ".a" * 32_700 + " = 1",
    "header": "[" + "a." * 32_000 + "a]",
    "quoted": "'a'" + ' . "a"' * 10_000 + " = 1",
    "after texts": 'a = "x\\"#"\nb = """x""""\nc = \'\'\'#\'\'\'\n' + "d." * 33 + "d = 1",
    "inline": "a = [{" + "a." * 33 + "a = 1}]",
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", DEEP_KEYS)
def test_a_config_file_with_a_deep_key(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(DEEP_KEYS[name])
    with pytest.raises(ConfigError, match=r"c.toml: a key has more than 32 dots: keys of a"):
        load_train_config("log-linear", file=path)


def test_dots_in_texts_and_comments_of_a_config_file_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    dots = "a." * 100
    path.write_text(f"# {dots}a\n[train]\nseed = 7 # '{dots}'\n")
    assert load_train_config("log-linear", file=path).train.seed == 7
    path.write_text(f"[train]\nseed = '{dots}'")
    with pytest.raises(ConfigError, match=r"train.seed' = 'a\.a"):
        load_train_config("log-linear", file=path)


def test_a_message_about_thousands_of_keys_is_short(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("".join(f"a{number} = 1\n" for number in range(5000)) + "b" * 9000 + " = 1")
    with pytest.raises(ConfigError, match="and 4981 more") as caught:
        load_train_config("log-linear", file=path)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 6000])
def test_an_override_with_a_value_beyond_all(value: str) -> None:
    with pytest.raises(
        ConfigError, match=r"train\.seed.*(valid integer|too large to show|9 …)"
    ) as caught:
        load_train_config("log-linear", overrides=[f"train.seed={value}"])
    assert len(str(caught.value)) < 1000


@pytest.mark.timeout(20)
def test_a_config_file_without_an_end() -> None:
    with pytest.raises(ConfigError, match="/dev/zero has more than 65536 characters"):
        load_train_config("log-linear", file=Path("/dev/zero"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("is_link", [False, True])
def test_a_config_in_a_named_pipe_is_refused_at_once(tmp_path: Path, is_link: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "link" if is_link else tmp_path / "pipe"
    if is_link:
        path.symlink_to("pipe")
    with pytest.raises(ConfigError, match=f"config file {path} is a named pipe: give a regular"):
        load_train_config("log-linear", file=path)


@pytest.mark.timeout(20)
def test_a_config_in_a_pipe_of_the_shell_is_read() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        threading.Timer(0.3, lambda: (stream.write("[train]\nseed = 7\n"), stream.flush())).start()
        threading.Timer(0.6, stream.close).start()
        found = load_train_config("log-linear", file=Path(f"/dev/fd/{reader}"))
    os.close(reader)
    assert found.train.seed == 7


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bad", [*BAD, "list"])
@pytest.mark.parametrize("name", ["metrics.json", "predictions.parquet"])
def test_an_evaluation(tmp_path: Path, name: str, bad: str) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "predictions.parquet")
    (tmp_path / name).unlink()
    BAD.get(bad, lambda path: path.write_text("[]"))(tmp_path / name)
    with pytest.raises(CommandError, match="not a readable evaluation"):
        _evaluation_view(tmp_path, None)


_COMMAND = f"exec {sys.executable} -m llmperf kernels"


@pytest.mark.parametrize("closing", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(closing: str) -> None:
    done = subprocess.run(["bash", "-c", f"{_COMMAND} {closing}"], capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_no_file_becomes_a_standard_stream_that_is_closed() -> None:
    code = "import os, sys; from llmperf.cli import main; main.run_guarded = lambda _app: os.write(1, str(os.open('/dev/zero', 0)).encode()); main.run()"
    done = subprocess.run(["bash", "-c", f'exec {sys.executable} -c "{code}" 2>&- <&-'], stdout=subprocess.PIPE, text=True, check=False)  # fmt: skip
    assert int(done.stdout) > 2


def test_a_terminal_that_takes_ascii_only() -> None:
    code = (
        "from llmperf.cli import main; main.run_guarded = lambda _app: print(chr(181)); main.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"})  # fmt: skip
    assert done.stdout == "\\xb5\n", done.stderr


@pytest.mark.parametrize("num_bytes", [1, 100_000])
def test_an_output_that_cannot_be_written(num_bytes: int) -> None:
    """A short output stays in a buffer until the end, a long one does not."""
    code = f"import sys; from llmperf.cli import main; main.app = lambda: sys.exit(print('x' * {num_bytes})); main.run()"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    message = "llmperf: standard output: No space left on device: the result is not printed"
    assert (done.returncode, done.stderr.startswith(message)) == (3, True), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_wants_no_more() -> None:
    done = subprocess.run(["bash", "-c", f"({_COMMAND[5:]}; echo $? >&2) | true"], capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stderr in ("0\n", "1\n")


def test_too_few_descriptors() -> None:
    code = "import os; from llmperf.cli import main; main.app = lambda: [os.open('/dev/null', 0) for _ in range(100)]; import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); main.run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "raise `ulimit -n`" in done.stderr) == (3, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["'\\\"'" * 16_000, '"\\"' * 20_000, "'''x" * 16_000])
def test_a_config_of_texts_without_an_end_is_refused_at_once(tmp_path: Path, text: str) -> None:
    """The search for long keys took 5 s for such a file of 64 KB."""
    config = tmp_path / "c.toml"
    config.write_text(text, encoding="utf-8")
    began_s = time.process_time()
    with pytest.raises(ConfigError):
        load_train_config("log-linear", file=config)
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize(("unbuffered", "output"), [("", ""), ("1", "printed")])
def test_output_is_unbuffered_if_python_is_asked_for_it(unbuffered: str, output: str) -> None:
    code = (
        "import os; from llmperf.cli import main; main._open_standard_streams();"
        "print('printed', end=''); os._exit(0)"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == output
