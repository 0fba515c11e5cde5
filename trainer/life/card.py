"""The model card: what a run is good for, in numbers and plain words."""

from __future__ import annotations

from llmperf_common.files.visible import visible
from llmperf_common.statistics.splits import Split
from trainer.config import TrainConfig
from trainer.evaluation.scoring import markdown_table
from trainer.life.summary import RunSummary

_INTENDED = """\
Predicts the time of one OpenCL kernel launch (warm median of device event times) from the kernel's source
features, the launch config and the device's record, for the device classes in `device.json`. It is a ranking
and planning aid: measure before you rely on a single number. A prediction outside the training ranges says
`ood: true`."""

_READING = """\
- `test`: families that nothing of this run has seen. `seen_configs`: launch configs held out of the kernels
  that were fitted. `validation` chose the model and `calibration` made the intervals: both flatter.
- Rankings (Spearman) are within a kernel; regret is the time lost by choosing the local size by prediction.
- `global-median` answers one number for everything, `log-linear` is the launch floor plus a power law,
  `roofline` the analytic bound with nothing fitted, `nearest-kernel` the most similar train kernel's own times.
- MAPE flatters a model that guesses low. `within 1.25x` to `2x` are shares of launches by the factor
  max(predicted / measured, measured / predicted); `by family` is the mean over families of the coverage."""


def model_card(summary: RunSummary, config: TrainConfig, split: Split) -> str:
    """Return ``model_card.md`` of a finished training."""
    metrics = summary.metrics
    censored = metrics["censored_share"]["all"]
    noise = metrics["noise_floor_within_run_median_ape_percent"]
    facts = [
        f"- model: `{summary.model}`, seed {config.train.seed}, row weights: {config.train.balance}",
        f"- split: by {split.kind}, seed {split.seed}; rows "
        + ", ".join(f"{part} {count}" for part, count in summary.num_rows.items())
        + "; families "
        + ", ".join(f"{part} {count}" for part, count in summary.num_families.items()),
        f"- launches cut off by the time budget: {_percent(censored)} (they have no time and no error)",
        f"- noise floor: a further reading is {'unknown' if noise is None else f'{noise:.2f} %'} "
        "(median) from the median of its own run; two runs differ by more",
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
