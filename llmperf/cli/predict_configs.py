"""``llmperf predict --configs``: predict many launches of one kernel, one row each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmperf.cli.console import answer_json, answer_table, say

if TYPE_CHECKING:
    from llmperf.prediction.model import Model

_MANY = 100_000
"""Minimum number of launches for which a line announces each step."""


def predict_configs(
    load: Callable[[], Model],
    source: Path,
    configs: str,
    out: Path | None,
    *,
    kernel: str | None,
    device: str | None,
    args: Mapping[str, str],
    as_json: bool,
) -> None:
    """Predict the launches in a file, and print the predictions or write them to a file.

    Without ``out`` and ``as_json``, a terminal gets a table, and any other output gets CSV.

    Args:
        load: returns the model; called after the launches are read.
        source: the kernel's source file.
        configs: the file with the launches; ``-`` for standard input.
        out: the file to write; None: print.
        kernel: name of the kernel, if the source has several.
        device: device class.
        args: arguments for all launches; a launch's own arguments take precedence.
        as_json: whether to print one JSON document.

    Raises:
        BadInput: A launch cannot be used (the message names its line), or ``predict`` refuses the
            input. Then nothing is predicted.
        ConfigError: ``out`` cannot be written.
    """
    from llmperf.prediction import answers  # noqa: PLC0415
    from llmperf.prediction.configs import read_configs  # noqa: PLC0415

    write = None if out is None else answers.out_file(out)
    asked = read_configs(configs, args)
    if len(asked) >= _MANY:
        say(f"{len(asked):,} launches read; predicting them takes minutes")
    found = load().predict_many(source, [one.launch for one in asked], kernel=kernel, device=device)
    rows = answers.documents(asked, found)
    if len(asked) >= _MANY:
        say("all launches predicted; writing them")
    if write is not None:
        write(rows)
    if as_json:
        of_all = {key: rows[0][key] for key in ("kernel", "device")}
        answer_json({**of_all, "predictions": rows})
    elif write is None and sys.stdout.isatty():
        title = f"{rows[0]['kernel']} on {rows[0]['device']}"
        answer_table(title, answers.HEAD, answers.shown_rows(rows))
    elif write is None:
        sys.stdout.write(answers.csv_text(rows))
    if write is not None or not as_json:
        _say_warnings(rows)
    if write is not None:
        say(f"{len(rows):,} predictions written to {out}")


def _say_warnings(rows: Sequence[dict[str, Any]]) -> None:
    """Print the warnings that all launches share, and how many launches have further warnings."""
    of_all = [text for text in rows[0]["warnings"] if all(text in row["warnings"] for row in rows)]
    for text in of_all:
        say(f"warning: {text}")
    own = [
        (number, text)
        for number, row in enumerate(rows, start=1)
        for text in row["warnings"]
        if text not in of_all
    ]
    if own:
        number, text = own[0]
        num = len({number for number, _ in own})
        say(
            f"warning: {num:,} of {len(rows):,} launches have warnings of their own "
            f"(launch {number}: {text}); --json and --out list them"
        )
