"""The description of a training that all of its processes share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from llmperf_common.config import ConfigError
from trainer.config import TrainConfig
from trainer.life.identity import LANGUAGE_MODEL, Init, init_of

RANDOM = "random"
"""Value of ``--init`` for random weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """A training to run in one or several processes.

    Attributes:
        data: the dataset: its folder, or ``s3://BUCKET/PREFIX``.
        out: the run's folder; all processes see it at this path.
        config: the resolved config.
        init: a Hugging Face checkpoint folder, ``random``, or None without ``--init``.
    """

    data: str
    out: Path
    config: TrainConfig
    init: str | None = None

    def absolute(self) -> TrainJob:
        """Return the job with absolute paths, because working directories differ between nodes."""
        init = self.init if self.init in (None, RANDOM) else str(Path(str(self.init)).absolute())
        return replace(
            self,
            data=self.data if "://" in self.data else str(Path(self.data).absolute()),
            out=self.out.absolute(),
            init=init,
        )

    def inputs(self) -> list[Path]:
        """Return the local paths that every process reads."""
        paths = [] if "://" in self.data else [Path(self.data)]
        weights = self.weights()
        return paths if weights is None else [*paths, weights]

    def weights(self) -> Path | None:
        """Return the checkpoint folder that ``--init`` names; None for random weights."""
        return None if self.init in (None, RANDOM) else Path(str(self.init))

    def pretrained(self) -> Init | None:
        """Return the checkpoint with the initial weights; None for random weights.

        Raises:
            ConfigError: ``init`` is None and the backbone needs it, or the model takes none.
            BadInput: The folder is not a checkpoint.
        """
        backbone = self.config.regressor.backbone if self.config.model == LANGUAGE_MODEL else ""
        if backbone in ("codegen", "auto"):
            if self.init is None:
                raise ConfigError(
                    f"--init is missing: regressor.backbone={backbone} starts from a Hugging Face "
                    "checkpoint; give its folder, or pass --init random to train from scratch"
                )
        elif not backbone and self.init is not None:
            raise ConfigError(
                f"--init {self.init}: model {self.config.model!r} takes no initial weights: leave "
                "--init out"
            )
        elif self.init not in (None, RANDOM):
            raise ConfigError(
                f"--init {self.init}: backbone {backbone!r} takes no pretrained weights: leave "
                "--init out, or set regressor.backbone"
            )
        return None if self.init in (None, RANDOM) else init_of(Path(self.init))
