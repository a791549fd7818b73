"""The values that a search may choose for a setting, from Hydra's grammar or from SQL."""

from dataclasses import dataclass

from hydra.core.override_parser.types import Override as Parsed

from edl_horovod.config.fields import settings
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError

__all__ = ["Candidates", "Interval", "space_of"]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The numbers between two bounds, both included."""

    low: int | float
    high: int | float
    is_whole: bool
    """Whether only whole numbers are chosen; then the bounds are whole numbers, too."""
    is_log: bool = False
    """Whether numbers are chosen uniformly on a logarithmic scale."""
    step: int = 1
    """Difference between neighbouring whole numbers."""
    written: str
    """As the user wrote it."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """A list of values."""

    names: tuple[str, ...]
    """The text of each value."""
    written: str
    """As the user wrote it."""


def space_of(key: str, parsed: Parsed) -> Interval | Candidates:
    """The search space of a setting that Hydra parsed; names of candidates are as typed.

    Raises:
        ConfigError: The setting has no value.
    """
    value, written = parsed.value(), str(parsed.input_line)
    if parsed.is_interval_sweep():
        annotations = {setting.key: setting.annotation for setting in settings(JobConfig)}
        low, high, is_log = value.start, value.end, "log" in value.tags
        if annotations.get(key) is int or all(isinstance(end, int) for end in (low, high)):
            low, high = int(low), int(high)
            return Interval(low=low, high=high, is_whole=True, is_log=is_log, written=written)
        return Interval(low=low, high=high, is_whole=False, is_log=is_log, written=written)
    texts = tuple(parsed.sweep_string_iterator())
    if not texts:
        raise ConfigError(
            f"{key} has no value to choose from.",
            received=written,
            hint=f"Write {key}=choice(a,b) or {key}=interval(low,high).",
        )
    step = parsed.is_range_sweep() and not value.shuffle and value.step
    if isinstance(step, int) and step > 0 and isinstance(value.start, int):
        low, high = value.start, int(texts[-1])
        return Interval(low=low, high=high, is_whole=True, step=step, written=written)
    return Candidates(names=texts, written=written)
