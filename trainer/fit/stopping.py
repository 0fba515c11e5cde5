"""Early stopping: the best step so far, and the decision to stop."""

from __future__ import annotations

import math
import sys
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
    def from_json(cls, value: Any) -> Self:
        """Read the value of ``to_json``.

        Raises:
            ValueError: The value is not one that ``to_json`` returns.
        """
        if not isinstance(value, Mapping) or value.keys() != cls().to_json().keys():
            raise ValueError(
                "the state of early stopping is not an object with the keys "
                f"{', '.join(cls().to_json())}"
            )
        step, loss, num_worse = value["best_step"], value["best_loss"], value["num_worse"]
        if step is None:
            return cls()
        if type(step) is not int or step < 0 or type(num_worse) is not int or num_worse < 0:
            raise ValueError(
                "the state of early stopping: best_step and num_worse must be whole numbers from 0 "
                "on"
            )
        if not isinstance(loss, int | float) or not abs(loss) <= sys.float_info.max:
            raise ValueError(
                f"the state of early stopping has the loss {loss!r:.40}, which is not a finite "
                "number"
            )
        return cls(best_step=step, best_loss=float(loss), num_worse=num_worse)
