"""``llmperf collect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmperf.cli.console import say
from llmperf.cli.ledger_option import SQLITE, LedgerFile, ledger_of
from llmperf.exits import CommandError, Exit

if TYPE_CHECKING:
    from workers.collect.summary import CollectSummary


def collect(
    corpus: Annotated[
        list[Path],
        typer.Option(
            "--corpus",
            metavar="CORPUS",
            help="A .cl file; a folder, archive or git directory of such files; or a "
            "CORPUS.parquet. May be repeated: all sources together are one corpus.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The dataset: a folder or s3://BUCKET/PREFIX, new or one to resume.",
        ),
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            help="auto, pocl, cpu, cuda[:N] or replay:FILE. With --cluster, write cuda without :N.",
        ),
    ] = "auto",
    samples_per_kernel: Annotated[
        int | None,
        typer.Option(
            "--samples-per-kernel",
            metavar="N",
            help="Launch configs per kernel, over all strategies (68 unless a preset sets another "
            "number).",
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            metavar="NAME[,NAME...]",
            help="Input strategies: memory_analysis (the default), decoupled, simple. A kernel's "
            "launch configs are divided among those given. May be repeated.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Seed of configs and inputs.")
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(
            "--max-time",
            metavar="TIME",
            help="Start no new task after this time, such as 90, 90s, 20m or 2h.",
        ),
    ] = None,
    max_failures: Annotated[
        int | None,
        typer.Option(
            "--max-failures",
            metavar="N",
            help="Stop with exit code 5 when more than N rows have failed.",
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="A preset of configs/collect/: default, demo (few configs), 400k (large corpora).",
        ),
    ] = "default",
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A TOML file that overrides the preset."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override one config key; may be repeated."
        ),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Collect on every GPU of this Ray job's cluster, or of the cluster at "
            "RAY_ADDRESS. If there is neither, a local Ray is started.",
        ),
    ] = False,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            metavar="URL",
            help="sqlite (the default), for this machine only; or redis://HOST:PORT[/DB] "
            "(rediss:// for TLS), which several hosts share. Give a URL with a password by "
            "--ledger-file or LLMPERF_LEDGER.",
        ),
    ] = None,
    ledger_file: LedgerFile = None,
) -> None:
    """Time kernels on one device or a cluster and write a dataset; the same command resumes it."""
    named = ledger_of(ledger, ledger_file) or SQLITE
    from llmperf import collecting  # noqa: PLC0415

    collecting.check_memory_limit()  # before large libraries are imported
    from llmperf.cli.progress import interrupts_to  # noqa: PLC0415
    from workers.collect.device_worker import Control  # noqa: PLC0415

    run = collecting.collect_on_cluster if cluster else collecting.collect
    control = Control()
    with interrupts_to(control):
        summary = run(
            corpus,
            out,
            device=device,
            preset=preset,
            samples_per_kernel=samples_per_kernel,
            strategies=_names(strategy),
            seed=seed,
            max_time=max_time,
            max_failures=max_failures,
            config=config,
            overrides=set_ or (),
            progress=True,
            ledger=named,
            control=control,
        )
    _finish(summary)


def _names(given: list[str] | None) -> list[str] | None:
    """Return the names in ``--strategy a,b --strategy c``, each once; None without the option."""
    if given is None:
        return None
    return list(dict.fromkeys(name.strip() for text in given for name in text.split(",")))


def _finish(summary: CollectSummary) -> None:
    from workers.collect.loop_interfaces import EndReason  # noqa: PLC0415

    failures = ", ".join(f"{code} {n:,}" for code, n in sorted(summary.failures_by_code.items()))
    say(
        f"planned {summary.num_planned:,} = ok {summary.num_ok:,} + failed {summary.num_failed:,} "
        f"+ pending {summary.num_pending:,}   (tasks {summary.num_tasks_done:,} of "
        f"{summary.num_tasks:,})",
        is_result=True,
    )
    if failures:
        say(f"failed: {failures}", is_result=True)
    say(f"{', '.join(dict.fromkeys(d.name for d in summary.devices))}: {summary.seconds:.1f} s")
    if summary.noise.warning:
        say(f"warning: {summary.noise.warning}")
    if summary.stop_reason is EndReason.INTERRUPTED:
        left = f"{_saved(summary)}; run the same command again to resume"
        if summary.num_tasks_done == summary.num_tasks:
            left = "the run is complete, nothing is left to do"
        raise CommandError(Exit.INTERRUPTED, f"interrupted; {left}")
    if summary.stop_reason is EndReason.TIME_IS_UP and summary.num_pending:
        say(f"--max-time is up; {_saved(summary)}; run the same command again to resume")
    if summary.stop_reason is EndReason.TOO_MANY_FAILURES:
        raise CommandError(
            Exit.TOO_MANY_FAILURES,
            f"stopped: {summary.num_failed:,} rows failed, more than --max-failures allows; "
            "see failure_detail in the table samples, or run `llmperf report DIR`",
        )


def _saved(summary: CollectSummary) -> str:
    if summary.num_dropped:
        return (
            f"{summary.num_dropped:,} finished tasks were dropped when the ledger was lost, all "
            "others are saved"
        )
    return "all finished tasks are saved"
