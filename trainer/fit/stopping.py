"""Which step was best so far, and whether to go on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """What the looks at the validation loss have said so far; a value.

    Attributes:
        best_step: step of the lowest loss; None before the first look.
        best_loss: that loss.
        num_worse: looks since then.
    """

    best_step: int | None = None
    best_loss: float = math.inf
    num_worse: int = 0

    def after(self, step: int, loss: float) -> Self:
        """Return what is known after a look at ``step``."""
        if loss < self.best_loss:
            return type(self)(best_step=step, best_loss=loss)
        return type(self)(
            best_step=self.best_step, best_loss=self.best_loss, num_worse=self.num_worse + 1
        )

    def is_over(self, patience: int) -> bool:
        """Whether ``patience`` looks in a row brought nothing better; never with 0."""
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
        """Read what ``to_json`` gave.

        Raises:
            KeyError: It did not.
        """
        if value["best_step"] is None:
            return cls()
        return cls(
            best_step=int(value["best_step"]),
            best_loss=float(value["best_loss"]),
            num_worse=int(value["num_worse"]),
        )
