"""Early stopping: the best step so far, and the decision to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The state of early stopping after some validations.

    Attributes:
        best_step: step of the lowest validation loss; None before the first validation.
        best_loss: the lowest validation loss.
        num_worse: number of validations since ``best_step``.
    """

    best_step: int | None = None
    best_loss: float = math.inf
    num_worse: int = 0

    def after(self, step: int, loss: float) -> Self:
        """Return the state after a validation at ``step`` with this loss."""
        if loss < self.best_loss:
            return type(self)(best_step=step, best_loss=loss)
        return type(self)(
            best_step=self.best_step, best_loss=self.best_loss, num_worse=self.num_worse + 1
        )

    def is_over(self, patience: int) -> bool:
        """Return whether ``patience`` validations have followed the best one; 0 never stops."""
        return 0 < patience <= self.num_worse

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value."""
        return {
            "best_step": self.best_step,
            "best_loss": self.best_loss if self.best_step is not None else None,
            "num_worse": self.num_worse,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the value of ``to_json``.

        Raises:
            KeyError: A key is missing.
        """
        if value["best_step"] is None:
            return cls()
        return cls(
            best_step=int(value["best_step"]),
            best_loss=float(value["best_loss"]),
            num_worse=int(value["num_worse"]),
        )
