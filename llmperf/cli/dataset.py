"""``llmperf dataset verify|repair|stats|card|merge|compact|export``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from llmperf.cli.console import answer, answer_json, answer_table, say
from llmperf.cli.paths import local_only
from llmperf.cli.shared_options import Command, Group
from llmperf.exits import CommandError, Exit
from llmperf_common.store.files.location import local_folder

app = typer.Typer(
    cls=Group,
    help="Check, repair, count, describe, merge, compact and export datasets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Directory = Annotated[
    str, typer.Argument(help="A dataset: a folder or s3://BUCKET/PREFIX.", metavar="DIR")
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command(cls=Command, short_help="Check every promise of the format; exit 3 on a problem.")
def verify(directory: _Directory, as_json: _Json = False) -> None:
    """Check every promise of the format: hashes, ids, exactly-once, glob = manifest. Exit 3 on a problem."""
    from llmperf_common.store.upkeep.verify import verify as verify_  # noqa: PLC0415

    report = verify_(directory)
    if as_json:
        answer_json(dataclasses.asdict(report) | {"is_ok": report.clean})
    else:
        for problem in report.problems:
            answer(f"{problem.kind}: {problem.name}: {problem.what}")
        for note in report.notes:
            say(f"note: {note.kind}: {note.name}: {note.what}")
        answer_table(str(directory), ("what", "count"), _flat(dataclasses.asdict(report.counts)))
        count = len(report.problems)
        answer("clean" if report.clean else f"{count} problem{'s' if count > 1 else ''}")
    if not report.clean:
        raise typer.Exit(Exit.BAD_INPUT)


@app.command(
    cls=Command,
    name="repair",
    short_help="Set aside what is damaged or doubled; its tasks are free again.",
)
def repair_(
    directory: _Directory,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Take shards that are gone, damaged or doubled out of a dataset, under the run lock.

    Their files go to DIR/trash, nothing is deleted. Their tasks are free: the next `collect` does them again. A task that is
    there twice keeps the result that was published first. Exit 3 while collectors are at work.
    """
    from llmperf_common.store.upkeep.repair import repair  # noqa: PLC0415

    report = repair(directory, is_dry_run=dry_run)
    if as_json:
        answer_json(dataclasses.asdict(report))
        return
    for one in report.dropped:
        answer(f"{one.name}: {one.why}")
    for name in report.manifests:
        answer(f"{name}: damaged, or before one that is damaged or missing")
    if not report.dropped and not report.manifests:
        say(f"{directory}: nothing to repair (version {report.version})")
        return
    verb = "would be" if dry_run else "were"
    say(
        f"{directory}: {len(report.dropped):,} shards and {len(report.manifests):,} manifests {verb} set aside (version "
        f"{report.version}); {report.num_tasks:,} tasks have results, {report.num_freed_tasks:,} {verb} freed for the next "
        "`llmperf collect`"
    )


@app.command(cls=Command, short_help="Count rows by status, regime, strategy and device.")
def stats(directory: _Directory, as_json: _Json = False) -> None:
    """Count a dataset: rows by status, regime, strategy and device, and how long launches take."""
    from llmperf_common.store.tables.reader import open_dataset  # noqa: PLC0415
    from llmperf_common.store.tables.stats import dataset_stats  # noqa: PLC0415

    found = dataclasses.asdict(dataset_stats(open_dataset(directory)))
    if as_json:
        answer_json(found)
    else:
        answer_table(str(directory), ("what", "value"), _flat(found))


@app.command(cls=Command)
def card(directory: _Directory) -> None:
    """Write README.md and croissant.json anew from the manifest."""
    from llmperf_common.store.tables.card import write_card  # noqa: PLC0415
    from llmperf_common.store.tables.reader import open_dataset  # noqa: PLC0415

    dataset = open_dataset(directory)
    left = write_card(dataset.fs, dataset)
    if left:
        what = f"{directory}: {' and '.join(left)} not written by llmperf, so left as it is: move it away and run this again"
        raise CommandError(Exit.USAGE, what)
    say(f"{directory.rstrip('/')}/README.md and croissant.json written")


@app.command(cls=Command, short_help="Join datasets; equal samples are kept once.")
def merge(
    directories: Annotated[
        list[str], typer.Argument(help="Two or more datasets.", metavar="DIR...")
    ],
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="The dataset to write: new or empty.")
    ],
) -> None:
    """Join datasets; equal samples are kept once, families are found anew over the union.

    Of a device that several of them have, the best of each measured peak is kept; peaks more than 10 % apart are listed.
    """
    from llmperf_common.families.families import assign_families  # noqa: PLC0415
    from llmperf_common.files.outputs import is_folder  # noqa: PLC0415
    from llmperf_common.store.tables.card import write_card  # noqa: PLC0415
    from llmperf_common.store.tables.reader import open_dataset  # noqa: PLC0415
    from llmperf_common.store.upkeep.merge import merge as merge_  # noqa: PLC0415

    if len({_place(directory) for directory in directories}) < 2:
        raise CommandError(
            Exit.USAGE, f"only {directories[0]} was named: name two or more datasets to merge"
        )
    folder = local_folder(out)
    if folder is not None:
        is_folder(folder)
    report = merge_(directories, out, assign_families=assign_families)
    merged = open_dataset(out)
    write_card(merged.fs, merged)
    for difference in report.peak_differences:
        say(str(difference))
    counts = dataclasses.asdict(report)
    del counts["peak_differences"]
    say(f"{out}: " + ", ".join(f"{name} {value}" for name, value in counts.items()))


@app.command(
    cls=Command, name="compact", short_help="Join small shards into large ones; no row changes."
)
def compact_(
    directory: _Directory,
    target_rows: Annotated[
        int,
        typer.Option("--target-rows", metavar="N", min=1, help="Sample rows of a shard, at most."),
    ] = 200_000,
    target_mib: Annotated[
        int,
        typer.Option(
            "--target-mib", metavar="N", min=1, help="MiB of a pair of shards, at most (as stored)."
        ),
    ] = 64,
    as_json: _Json = False,
) -> None:
    """Join small shards into large ones, under the run lock; no row changes.

    What is replaced stays for a day and as long as the last three versions list it; a later `compact` removes it. Exit 3 while
    collectors are at work.
    """
    from llmperf_common.store.upkeep.compact import CompactionTarget, compact  # noqa: PLC0415

    target = CompactionTarget(rows=target_rows, size_mib=target_mib)
    report = compact(directory, target=target)
    if as_json:
        answer_json(dataclasses.asdict(report))
        return
    say(
        f"{directory}: {report.num_pairs_before:,} pairs of shards are now {report.num_pairs:,} "
        f"(version {report.version}); removed {len(report.removed):,} files, {len(report.waiting):,} replaced ones "
        "stay for their readers"
    )


@app.command(cls=Command)
def export(
    directory: _Directory,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="The folder to write.", callback=local_only),
    ],
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="arrow or csv.")
    ] = "arrow",
) -> None:
    """Write the three tables as Arrow IPC or CSV files."""
    from llmperf_common.store.tables.export import ExportFormat  # noqa: PLC0415
    from llmperf_common.store.tables.export import export as export_  # noqa: PLC0415
    from llmperf_common.store.tables.reader import open_dataset  # noqa: PLC0415

    if format_ not in list(ExportFormat):
        raise CommandError(Exit.USAGE, f"--format {format_!r}: must be {' or '.join(ExportFormat)}")
    for path in export_(open_dataset(directory), out, ExportFormat(format_)):
        say(f"{path} written")


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}: ")
        else:
            rows.append((prefix + str(name), value))
    return rows


def _place(location: str) -> str:
    """Return a text that is equal for two spellings of one dataset's location."""
    folder = local_folder(location)
    return location.rstrip("/") if folder is None else str(folder.resolve())
