"""The model card of a run: intended use, data, results, notes."""

from __future__ import annotations

from llmperf_common.files.visible import visible
from llmperf_common.statistics.splits import Split
from trainer.config import TrainConfig
from trainer.evaluation.scoring import markdown_table
from trainer.life.summary import RunSummary

_INTENDED = """\
Predicts the time of one OpenCL kernel launch (warm median of device event times) from the kernel's
source features, the launch config and the device's record, for the device classes in `device.json`.
Use it to rank and plan, but measure before you rely on a single number. A prediction outside of the
training ranges has `ood: true`."""

_READING = """\
- `test`: families that this run has not used. `seen_configs`: held-out launch configs of fitted
  kernels. `validation` selected the model and `calibration` set the intervals, so the figures of
  both parts look too good.
- Rankings (Spearman) are within a kernel; regret is the time lost by choosing the local size by
  prediction.
- `global-median` predicts one number for every launch, `log-linear` is the launch floor plus a
  power law, `roofline` is the analytic bound without a fit, `nearest-kernel` takes the times of the
  most similar train kernel.
- MAPE favours predictions that are too short. `within 1.25x` to `2x` are shares of launches by the
  factor max(predicted / measured, measured / predicted); `by family` is the mean coverage over
  families."""


def model_card(summary: RunSummary, config: TrainConfig, split: Split) -> str:
    """Return ``model_card.md`` of a finished training."""
    metrics = summary.metrics
    censored = metrics["censored_share"]["all"]
    noise = metrics["noise_floor_within_run_median_ape_percent"]
    facts = [
        f"- model: `{summary.model}`, seed {config.train.seed}, "
        f"row weights: {config.train.balance}",
        f"- split: by {split.kind}, seed {split.seed}; rows "
        + ", ".join(f"{part} {count}" for part, count in summary.num_rows.items())
        + "; families "
        + ", ".join(f"{part} {count}" for part, count in summary.num_families.items()),
        f"- launches over the time budget: {_percent(censored)} (they have no time and no error)",
        "- noise floor: the median distance of a further reading from the median of its run is "
        f"{'unknown' if noise is None else f'{noise:.2f} %'}; two runs differ by more",
    ]
    notes = [f"- {visible(note)}" for note in summary.notes] or ["- none"]
    sections = [
        f"# LLMPerf run: {summary.model}",
        _INTENDED,
        "## Made from",
        "\n".join(facts),
        "## Results",
        markdown_table(metrics["parts"]),
        _READING,
        "## Notes",
        "\n".join(notes),
    ]
    return "\n\n".join(sections) + "\n"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.2f} %"
