"""How a job ended: the content of `result.json`, and of the workers' last report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

from edl_horovod.errors import EdlError, error_kind, error_of_kind
from edl_horovod.files.whole_file import read_json, write_json
from edl_horovod.job.json_fields import FieldError, Format

_HINT = "Remove it, and start the job again; with resume=auto it goes on from its checkpoint."


@dataclass(frozen=True, kw_only=True)
class Success:
    """The job is done."""

    steps: int
    metrics: dict[str, float]
    """The metrics of the last evaluation; empty where nothing was evaluated."""
    examples: int | None = None
    """Number of examples in the last evaluation."""
    output: str
    """Path of the job's output; empty where the job wrote none."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The job, or a worker that joins its ring, cannot go on."""

    worker: str | None = None
    """The worker that reported the failure to the coordinator, as `host:slot`."""
    error: str
    """Name of the error's class; see `error_kind`."""
    message: str

    @classmethod
    def of(cls, error: EdlError) -> Self:
        """The failure for an error that ends the job."""
        return cls(error=error_kind(error), message=str(error))

    def as_error(self) -> EdlError:
        """The error, with its class in the process that reported it."""
        return error_of_kind(self.error, self.message)


Outcome: TypeAlias = Success | Failure

_FORMATS: dict[str, Format[Any]] = {"finished": Format(Success), "failed": Format(Failure)}


def save(path: Path, outcome: Outcome) -> None:
    """Write a job's `result.json`.

    Raises:
        OSError: It cannot be written.
    """
    state = "finished" if isinstance(outcome, Success) else "failed"
    write_json(path, {"state": state, **_FORMATS[state].write(outcome)})


def load(path: Path) -> Outcome | None:
    """Read a job's `result.json`; None where the job has none yet.

    Raises:
        JobFailed: The file is damaged.
        OSError: It cannot be read.
    """
    return read_json(path, _parse, hint=_HINT)


def _parse(fields: dict[str, Any]) -> Outcome:
    format = _FORMATS.get(str(fields.get("state")))
    if format is None:
        raise FieldError("its state is neither finished nor failed")
    outcome: Outcome = format.read(fields)
    return outcome
