"""The values of options that can switch off a step that needs a CPU OpenCL device."""

from __future__ import annotations

from enum import StrEnum

from llmperf_common.config import ConfigError


class CpuStep(StrEnum):
    """Whether a step that needs a CPU OpenCL device runs if such a device is usable, or never."""

    AUTO = "auto"
    OFF = "off"

    @classmethod
    def parse(cls, text: str, *, option: str, verb: str) -> CpuStep:
        """Return the member with the value ``text``.

        Args:
            text: the value that the user gave.
            option: the name of the option, for the message.
            verb: what the step does, for the message: ``count``, ``trace``.

        Raises:
            ConfigError: ``text`` is neither ``auto`` nor ``off``.

        >>> CpuStep.parse("off", option="work", verb="count")
        <CpuStep.OFF: 'off'>
        """
        try:
            return cls(text)
        except ValueError:
            raise ConfigError(
                f"{option} {text!r}: use auto ({verb} if a CPU OpenCL device is usable) or off"
            ) from None
