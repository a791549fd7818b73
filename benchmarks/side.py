"""The sides of comparisons: functions that run in processes of their own and return numbers.

`python -m benchmarks.side MODULE.FUNCTION PLACE` calls a function of `benchmarks.MODULE` with the
work and the arguments in PLACE/arguments.json, and writes what it returns to PLACE/numbers.json.
Only the standard library is imported here, because the peers' environments lack our packages.
"""

import importlib
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ARGUMENTS_FILE = "arguments.json"
NUMBERS_FILE = "numbers.json"

Numbers = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all sides of a comparison do."""

    data: Path
    """The folder of the records."""
    batch_size: int = 128
    """The global batch, in records."""
    warmup_steps: int = 40
    """Steps before the clock starts."""
    timed_steps: int = 160

    @property
    def total_steps(self) -> int:
        """Steps of a training, warm-up included."""
        return self.warmup_steps + self.timed_steps

    def scaled(self, share: float) -> "Work":
        """The same work with a share of its steps."""
        warmup, timed = (round(share * steps) for steps in (self.warmup_steps, self.timed_steps))
        return replace(self, warmup_steps=warmup, timed_steps=timed)


class StepClock:
    """Wall time of a step, the warm-up left out."""

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._num_steps = 0
        self._began = self._ended = 0.0

    def tick(self) -> None:
        """Count a step that is done."""
        self._num_steps += 1
        self._ended = time.perf_counter()
        if self._num_steps == self._warmup_steps:
            self._began = self._ended

    @property
    def num_timed_steps(self) -> int:
        """Steps since the warm-up; negative during it."""
        return self._num_steps - self._warmup_steps

    @property
    def step_seconds(self) -> float:
        """Mean over the steps after the warm-up."""
        assert self.num_timed_steps > 0, (self._num_steps, self._warmup_steps)
        return (self._ended - self._began) / self.num_timed_steps


def spec_of(name: str) -> Any:
    """An instance of a spec of `benchmarks/models`, such as `cnn.CnnSpec`."""
    module, _, symbol = name.partition(".")
    return getattr(importlib.import_module(f"benchmarks.models.{module}"), symbol)()


def main() -> None:
    """Call the function that the command line names."""
    module, _, name = sys.argv[1].rpartition(".")
    place = Path(sys.argv[2])
    arguments = json.loads((place / ARGUMENTS_FILE).read_text())
    fields = arguments.pop("work")
    work = Work(**{**fields, "data": Path(fields["data"])})
    function = getattr(importlib.import_module(f"benchmarks.{module}"), name)
    # Of several ranks only the first one returns numbers.
    if (numbers := function(work, place, **arguments)) is not None:
        (place / NUMBERS_FILE).write_text(json.dumps(numbers))


if __name__ == "__main__":
    main()
