"""What the trainings of a job's directory have used up of a party's privacy, in one file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.files.whole_file import read_json, write_json
from edl_horovod.job.json_fields import Format


@dataclass(frozen=True)
class Spent:
    """What a training has used up."""

    training: str
    """Identifies the federated training; empty for a training of one party alone."""
    passes: int
    """The number of passes that a record was in, at most."""
    mu_squared: float
    """The sum of 1 / noise^2 over these passes."""


@dataclass(frozen=True)
class _Accounts:
    """The accounts of all trainings of a directory: none may forget what it has used up."""

    trainings: tuple[Spent, ...]


_FORMAT = Format(_Accounts)


def read(file: Path) -> tuple[Spent, ...]:
    """What each training has used up; nothing if the file does not exist.

    Raises:
        JobFailed: The file is damaged.
        OSError: It cannot be read.
    """
    hint = "Restore it, or take part in another training: what it has used up is not known."
    accounts = read_json(file, _FORMAT.read, hint=hint)
    return () if accounts is None else accounts.trainings


def write(file: Path, trainings: Sequence[Spent]) -> None:
    """Replace the file.

    Raises:
        OSError: It cannot be written.
    """
    write_json(file, _FORMAT.write(_Accounts(tuple(trainings))))
