"""``llmperf train``, ``llmperf evaluate``, ``llmperf calibrate`` and ``llmperf predict``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmperf.cli.console import answer, answer_json, answer_lines, answer_table, say
from llmperf.cli.paths import local_only
from llmperf.cli.predict_configs import predict_configs
from llmperf.exits import CommandError, Exit, sigterm_interrupts
from llmperf_common.files.visible import shown_value

if TYPE_CHECKING:
    from llmperf.prediction.record import Prediction
    from trainer.life.summary import RunSummary

_MOST_FACTORS = 40
"""Maximum number of kernels whose factors are printed."""

_DIGITS = re.compile(r"[0-9]{1,400}")

_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def train(
    data: Annotated[
        str,
        typer.Option("--data", metavar="DIR", help="A dataset: a folder or s3://BUCKET/PREFIX."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="The run folder to write.", callback=local_only),
    ],
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="A preset of configs/train/: gbdt, log-linear, feature-network, "
            "feature-ensemble, tiny, small, codegen-350m, codegen-2b, paper-350m, paper-2b.",
        ),
    ] = "gbdt",
    init: Annotated[
        str | None,
        typer.Option(
            "--init",
            metavar="FOLDER",
            help="Pretrained weights: a Hugging Face checkpoint folder, or `random`. Required by "
            "the codegen and paper presets.",
        ),
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Train over the nodes of a Ray cluster.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="With --cluster: number of processes; each takes one GPU if there are GPUs.",
        ),
    ] = None,
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
    as_json: _Json = False,
) -> None:
    """Train a predictor on a dataset."""
    from llmperf import api  # noqa: PLC0415
    from trainer.evaluation.scoring import markdown_table  # noqa: PLC0415
    from trainer.life.opening import kept_in  # noqa: PLC0415

    if workers is not None and not cluster:
        raise CommandError(
            Exit.USAGE,
            "--workers needs --cluster; to start several processes on one host use torchrun",
        )
    begin: Callable[..., RunSummary] = api.train
    if cluster:
        begin = partial(api.train_on_cluster, num_workers=workers or 1)
    with sigterm_interrupts("interrupted: run the same command again"):
        try:
            summary = begin(
                data=data,
                out=out,
                preset=preset,
                config=config,
                overrides=set_ or (),
                init=init,
                progress=True,
            )
        except KeyboardInterrupt:
            raise CommandError(
                Exit.INTERRUPTED,
                f"interrupted: {kept_in(out)}; run the same command again to resume",
            ) from None
    if not api.is_first_process():
        return  # under torchrun only the first process prints
    if as_json:
        answer_json(
            {
                "run": str(summary.folder),
                "model": summary.model,
                "metrics": summary.metrics,
                "notes": list(summary.notes),
                "seconds": summary.seconds,
            }
        )
    else:
        answer_lines(markdown_table(summary.metrics["parts"]))
    for note in summary.notes:
        say(f"note: {note}")
    say(f"the run is in {out}")


def evaluate(
    run: Annotated[str, typer.Argument(help="A run's folder or name.")],
    data: Annotated[
        str,
        typer.Option("--data", metavar="DIR", help="A dataset: a folder or s3://BUCKET/PREFIX."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="The evaluation folder to write.", callback=local_only
        ),
    ],
    split: Annotated[
        str,
        typer.Option(
            "--split",
            metavar="NAME",
            help="test, validation, calibration, train, seen_configs or all.",
        ),
    ] = "test",
    allow_seen: Annotated[
        bool,
        typer.Option(
            "--allow-seen",
            help="Also score families that the model was trained on; the table then says so.",
        ),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Score a trained run on rows that it was not trained on."""
    from llmperf import api  # noqa: PLC0415

    summary = api.evaluate(run=run, data=data, out=out, split=split, allow_seen=allow_seen)
    if as_json:
        answer_json(
            {"out": str(summary.folder), "rows": summary.num_rows, "metrics": summary.metrics}
        )
    else:
        answer_lines(summary.table)
    for note in summary.notes:
        say(f"note: {note}")
    say(f"{summary.num_rows:,} rows scored; written to {out}")


def calibrate(
    run: Annotated[str, typer.Argument(help="A run's folder or name.")],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DIR",
            help="A dataset with launches of the kernels: a folder or s3://BUCKET/PREFIX.",
        ),
    ],
    launches: Annotated[
        int | None,
        typer.Option(
            "--launches",
            metavar="N",
            help="Use at most N launches per kernel, so that evaluate can score the others.",
        ),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Correct a trained run for kernels with a few measured launches."""
    from llmperf import api  # noqa: PLC0415
    from trainer.prediction.calibrate import TABLE_HEAD  # noqa: PLC0415

    summary = api.calibrate(run=run, data=data, launches=launches)
    if as_json:
        answer_json(
            {
                "run": str(summary.folder),
                "kernels": [
                    {
                        "kernel_id": one.kernel_id,
                        "kernel": summary.names.get(one.kernel_id),
                        "device": one.device_class,
                        "factor": 2**one.log2_factor,
                        "sd_log2": one.sd_log2,
                        "launches": one.num_launches,
                    }
                    for one in summary.factors
                ],
                "left_out": summary.num_left_out,
                "notes": list(summary.notes),
            }
        )
    else:
        title = f"factors of {len(summary.factors)} kernels"
        if len(summary.factors) > _MOST_FACTORS:
            title += f", the first {_MOST_FACTORS}; --json has them all"
        answer_table(title, TABLE_HEAD, summary.rows()[:_MOST_FACTORS])
    for note in summary.notes:
        say(f"note: {note}")
    if summary.num_left_out:
        say(
            f"{summary.num_left_out:,} rows left out: they time several launches per reading, or "
            "the model does not know their device class"
        )
    say(f"{summary.num_launches:,} launches used; factors written to {summary.folder}")


def predict(
    file: Annotated[Path, typer.Argument(help="An OpenCL source.", metavar="FILE.cl")],
    global_size: Annotated[
        str | None, typer.Option("--global-size", metavar="G", help="Work-items: G[,G2[,G3]].")
    ] = None,
    local_size: Annotated[
        str | None,
        typer.Option("--local-size", metavar="L", help="Work-items of a work-group: L[,L2[,L3]]."),
    ] = None,
    configs: Annotated[
        str | None,
        typer.Option(
            "--configs",
            metavar="FILE",
            help="Predict all launches of a file: JSON lines or array, CSV, Parquet; or - (stdin).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="With --configs: the .csv, .parquet or .jsonl file to write.",
            callback=local_only,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", metavar="NAME", help="The kernel, if the file has several."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="RUN",
            help="A run's folder or name; or h200, the model that comes with llmperf.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="Device class, if the model knows several."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="NAME=VALUE",
            help="The number of elements of a buffer or the value of a scalar; may be repeated.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", metavar="WHAT", help="local-size: predict every legal local size."),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            "--measured",
            metavar="DIR",
            help="A dataset with a few launches of this kernel, which correct the prediction.",
        ),
    ] = None,
    work: Annotated[
        str,
        typer.Option(
            "--work",
            metavar="WHEN",
            help="auto: count the launch's operations and accesses on a CPU OpenCL device, if "
            "there is one and the model uses the counts; off: do not count.",
        ),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Predict a kernel's run time from its source. No GPU is needed."""
    from llmperf import api  # noqa: PLC0415

    if sweep not in (None, "local-size"):
        raise CommandError(Exit.USAGE, f"--sweep {sweep!r}: only local-size is allowed")
    if configs is not None:
        if global_size is not None or local_size is not None or sweep is not None:
            raise CommandError(
                Exit.USAGE,
                "--configs gives the sizes of each launch: leave out --global-size, --local-size "
                "and --sweep",
            )
        predict_configs(
            lambda: api.load_model(model, measured=measured, work=work, progress=say),
            file,
            configs,
            out,
            kernel=kernel,
            device=device,
            args=_arguments(arg or []),
            as_json=as_json,
        )
        return
    if out is not None:
        raise CommandError(
            Exit.USAGE, "--out needs --configs; for one prediction use --json, which prints it"
        )
    if global_size is None or local_size is None:
        missing = "--global-size" if global_size is None else "--local-size"
        raise CommandError(
            Exit.USAGE,
            f"Missing option '{missing}': give both sizes, or a file of launches by --configs",
        )
    sizes = _sizes("--global-size", global_size), _sizes("--local-size", local_size)
    document = api.load_model(model, measured=measured, work=work, progress=say).predict(
        file,
        global_size=sizes[0],
        local_size=sizes[1],
        kernel=kernel,
        device=device,
        args=_arguments(arg or []),
        sweep=sweep is not None,
    )
    if as_json:
        answer_json(document)
    else:
        _tell(document)


def _sizes(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    # int() would also accept 1_000 and digits such as the Arabic ones.
    sizes = tuple(int(part) for part in parts if _DIGITS.fullmatch(part))
    if not 1 <= len(sizes) == len(parts) <= 3 or min(sizes) < 1:
        raise CommandError(
            Exit.USAGE,
            f"{option} {shown_value(text)}: write one to three positive numbers, such as 64,64",
        )
    return sizes


def _arguments(texts: list[str]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise CommandError(Exit.USAGE, f"--arg {shown_value(text)}: write it as name=value")
        if name.strip() in arguments:
            raise CommandError(
                Exit.USAGE,
                f"--arg {shown_value(text)}: {shown_value(name.strip())} is given twice",
            )
        arguments[name.strip()] = value.strip()
    return arguments


def _tell(prediction: Prediction) -> None:
    from llmperf.prediction.record import SWEEP_HEAD, sweep_rows, time_text  # noqa: PLC0415

    answer(
        f"{prediction['kernel']} on {prediction['device']}: {time_text(prediction.time_ns)}   "
        f"({prediction.interval_text()})"
    )
    best = ",".join(map(str, prediction.local_size_best))
    answer(
        f"best local size: {best or 'unknown'}   bound: {prediction['bound']}   "
        f"work: {prediction['work']}"
    )
    if prediction["ood"]:
        answer("this kernel or launch is unlike the training data: the time may be far off")
    for warning in prediction.warnings:
        say(f"warning: {warning}")
    if "sweep" in prediction:
        answer_table("local sizes, fastest first", SWEEP_HEAD, sweep_rows(prediction))
