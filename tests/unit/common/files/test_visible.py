"""Names of strangers reach the terminal, a card and a page as text."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
from rich.console import Console

from llmperf.cli.console import Loudness, answer, answer_json, answer_table, say, set_loudness
from llmperf.cli.status_screen import lines_of, screen_of
from llmperf.exits import CommandError, Exit, run_guarded
from llmperf_common.files.visible import in_code, in_markdown, visible, visible_json, visible_lines
from llmperf_common.store.tables.card import card_text
from llmperf_common.store.tables.reader import open_dataset
from tests.support.factories.dataset_factory import make_dataset, make_device, make_kernel

EVIL = "k\x1b[2J\x1b]52;c;aGk=\x07\r\x9b31m\u202e\u2066\u200b\u2028\x7f\x00\x08"
OBEYED = set("\x1b\x07\r\x9b\u202e\u2066\u200b\u2028\x7f\x00\x08")
MARKUP = "[red]x[/red] :bomb: [link=http://x]y[/link] [/]"


def test_nothing_is_obeyed_and_all_is_shown() -> None:
    assert not OBEYED & set(visible(EVIL))
    assert "\n" not in visible("a\nb\tc")
    assert visible("größe µs 名前 → [x]") == "größe µs 名前 → [x]"
    assert visible("\ud800") == "\\ud800"
    assert visible_lines("one\ntwo\n  three") == "one\n  two\n  three"
    for number in range(0x20, 0x3000):
        character = chr(number)
        shown = visible(character)
        assert shown == character or shown.isascii()


def test_json_keeps_its_value() -> None:
    text = json.dumps({EVIL: EVIL + "\ud800é"}, ensure_ascii=False)
    assert not OBEYED & set(visible_json(text))
    assert json.loads(visible_json(text)) == {EVIL: EVIL + "\ud800é"}


def test_every_door_of_the_console(capfd: pytest.CaptureFixture[str]) -> None:
    set_loudness(Loudness.NORMAL)
    say(f"kernel {EVIL}\nllmperf: done")
    answer(f"kernel {EVIL}\nclean")
    answer_json({"kernel": EVIL})
    answer_table(f"{EVIL} {MARKUP}", (EVIL[:1], "count"), [(f"{EVIL}{MARKUP}", 1), ("x\ny", 2)])
    logging.getLogger("llmperf").warning("kernel %s", EVIL)
    with pytest.raises(SystemExit):
        run_guarded(lambda: (_ for _ in ()).throw(CommandError(Exit.BAD_INPUT, f"{EVIL}\nclean")))
    out, err = capfd.readouterr()
    assert not OBEYED & set(out + err)
    assert "\nllmperf: done" not in err
    assert "\nclean" not in out + err
    assert "[/red]" in out.replace("\n", "")
    assert ":bomb:" in "".join(line.strip("│ ") for line in out.splitlines())


def test_status_of_a_stranger(capfd: pytest.CaptureFixture[str]) -> None:
    worker = {
        "worker": EVIL, "seat": MARKUP, "device_class": EVIL, "state": EVIL, "last_error": EVIL, "age_s": 1.0, "stale": False,
        "live": True, "host": EVIL, "failed": {},
    }  # fmt: skip
    state = {
        "directory": EVIL, "plan_hash": MARKUP, "tasks": 1, "tasks_done": 0, "tasks_leased": 0, "ok": 0, "ok_per_s": 0.0,
        "failed": {EVIL: 1}, "rows_from": "manifest", "collecting": True, "eta_s": None, "ledger": "sqlite",
        "classes": [
            {"device_class": EVIL, "first_task": 0, "tasks": 1, "done": 0, "leased": 0, "eta_s": None}
        ],
        "drivers": [{**worker, "pid": 1, "not_collecting": [{"seat": EVIL, "state": EVIL, "why": EVIL}]}],
        "workers": [worker],
    }  # fmt: skip
    page = io.StringIO()
    Console(file=page, width=200).print(screen_of([state]), markup=False)
    assert not OBEYED & set(page.getvalue())
    assert "[red]x[/red]" in page.getvalue()
    for line in lines_of([state]):
        answer(line)
    assert not OBEYED & set(capfd.readouterr().out)


def test_the_card_of_a_stranger(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>\n# forged | `x` <img src=x onerror=y>"
    device = make_device(0)
    object.__setattr__(device, "name", script)
    object.__setattr__(device, "driver", f"{EVIL}`|[a](javascript:x)")
    kernel = make_kernel(0, suite=f"s`{script}")
    make_dataset(tmp_path / "data", kernels=[kernel], device=device)
    text = card_text(open_dataset(tmp_path / "data"), pretty_name=f"a{EVIL}", license_name=None)
    assert not OBEYED & set(text)
    assert "\n# forged" not in text
    table = next(line for line in text.splitlines() if "alert" in line and line.startswith("|"))
    assert "<" not in table
    assert "](javascript" not in table
    suites = next(line for line in text.splitlines() if line.startswith("- By suite"))
    assert suites.count("`") == 2, "one span of code, which nothing ends"


def test_markdown_is_shown() -> None:
    assert in_markdown("a_b*c") == "a\\_b\\*c"
    assert in_code("```") == "`'''`"
