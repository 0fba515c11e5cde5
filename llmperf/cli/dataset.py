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


@app.command(
    cls=Command, short_help="Check the integrity of a dataset; exit code 3 means a problem."
)
def verify(directory: _Directory, as_json: _Json = False) -> None:
    """Check the integrity of a dataset.

    Hashes and ids must be right, each task must be stored once, and a manifest must list every
    shard. The exit code is 3 if there is a problem.
    """
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
    short_help="Set damaged or duplicate shards aside, so that their tasks can run again.",
)
def repair_(
    directory: _Directory,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Remove missing, damaged or duplicate shards from a dataset.

    Their files move to DIR/trash; nothing is deleted. The next `collect` runs their tasks again. A
    task that is stored twice keeps its first published result. The command holds the run lock; it
    ends with exit code 3 if a collector is running.
    """
    from llmperf_common.store.upkeep.repair import repair  # noqa: PLC0415

    report = repair(directory, is_dry_run=dry_run)
    if as_json:
        answer_json(dataclasses.asdict(report))
        return
    for one in report.dropped:
        answer(f"{one.name}: {one.why}")
    for name in report.manifests:
        answer(f"{name}: damaged, or older than a damaged or missing manifest")
    for name in report.strays:
        answer(f"{name!a}: LLMPerf did not write it and does not read it; it stays: remove it")
    if not report.dropped and not report.manifests:
        say(f"{directory}: nothing to repair (version {report.version})")
        return
    verb = "would be" if dry_run else "were"
    say(
        f"{directory}: {len(report.dropped):,} shards and {len(report.manifests):,} manifests "
        f"{verb} set aside (version {report.version}); {report.num_tasks:,} tasks have results, "
        f"{report.num_freed_tasks:,} {verb} freed for the next `llmperf collect`"
    )


@app.command(cls=Command, short_help="Count rows by status, regime, strategy and device.")
def stats(directory: _Directory, as_json: _Json = False) -> None:
    """Count rows by status, regime, strategy and device, and summarise the times of launches."""
    from llmperf_common.store.tables.reader import open_dataset  # noqa: PLC0415
    from llmperf_common.store.tables.stats import dataset_stats  # noqa: PLC0415

    found = dataclasses.asdict(dataset_stats(open_dataset(directory)))
    if as_json:
        answer_json(found)
    else:
        answer_table(str(directory), ("what", "value"), _flat(found))


@app.command(cls=Command)
def card(directory: _Directory) -> None:
    """Write README.md and croissant.json again from the manifest."""
    from llmperf_common.store.tables.card import write_card  # noqa: PLC0415
    from llmperf_common.store.tables.reader import open_dataset  # noqa: PLC0415

    dataset = open_dataset(directory)
    left = write_card(dataset.fs, dataset)
    if left:
        what = (
            f"{directory}: llmperf did not write {' and '.join(left)}, so it did not replace "
            "this content: move it to another place and run this command again"
        )
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
    """Join datasets; equal samples are kept once, and families are computed again for all kernels.

    If several datasets have the same device, the best value of each measured peak is kept; peaks
    that differ by more than 10 % are listed.
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
        typer.Option(
            "--target-rows", metavar="N", min=1, help="Maximum number of sample rows per shard."
        ),
    ] = 200_000,
    target_mib: Annotated[
        int,
        typer.Option(
            "--target-mib",
            metavar="N",
            min=1,
            help="Maximum size of a pair of shards in MiB, as stored.",
        ),
    ] = 64,
    as_json: _Json = False,
) -> None:
    """Join small shards into large ones; no row changes.

    Replaced shards stay for a day, and as long as one of the last three versions lists them; a
    later `compact` removes them. The command holds the run lock; it ends with exit code 3 if a
    collector is running.
    """
    from llmperf_common.store.upkeep.compact import CompactionTarget, compact  # noqa: PLC0415

    target = CompactionTarget(rows=target_rows, size_mib=target_mib)
    report = compact(directory, target=target)
    if as_json:
        answer_json(dataclasses.asdict(report))
        return
    say(
        f"{directory}: {report.num_pairs_before:,} pairs of shards are now {report.num_pairs:,} "
        f"(version {report.version}); removed {len(report.removed):,} files; "
        f"{len(report.waiting):,} replaced files stay for readers that still use them"
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
    """Return a normal form of a dataset's location, which is the same for all its spellings."""
    folder = local_folder(location)
    return location.rstrip("/") if folder is None else str(folder.resolve())
