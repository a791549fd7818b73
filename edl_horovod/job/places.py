"""Where a job writes, held against what it reads: nothing of the user's is replaced (D23)."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from edl_horovod.config import model_spec
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import OutputError
from edl_horovod.files import marker
from edl_horovod.files.output_dir import (
    SINGLE_FILE_SUFFIX,
    check_output,
    check_writable,
    writing,
)
from edl_horovod.models import git_zoo
from edl_horovod.records.sources.patterns import local_paths
from edl_horovod.records.sources.table import kind_of

__all__ = [
    "check_apart",
    "check_can_be_written",
    "check_is_free",
    "check_not_worked_in",
    "check_places",
]

_WORKED_IN = ("job", "prepare run", marker.PARTIAL)
"""Kinds of folders in which no output may lie: what is in them goes."""


def check_is_free(config: JobConfig) -> None:
    """Refuse a job whose output is in the way, before any work is done for it.

    Raises:
        OutputError: There is something that must stay, or nothing can be written there.
    """
    if config.output:
        may_be_file = TASKS[config.task].writes_one_file
        is_file = may_be_file and config.output.endswith(SINGLE_FILE_SUFFIX)
        check_output(Path(config.output), config.overwrite, is_file=is_file)


def check_can_be_written(config: JobConfig) -> None:
    """Refuse a job whose result could not be put in its place: by trying, on this machine.

    Raises:
        OutputError: It could not.
    """
    if config.output:
        check_writable(Path(config.output))


def check_places(config: JobConfig) -> None:
    """Refuse a job whose output, or whose directory, would replace what it reads.

    Raises:
        OutputError: The output is, holds or lies in an input, the model zoo, a trained model or a
            job's directory; or the job's directory is or holds one of those.
    """
    read = list(_read_by(config))
    if config.output:
        check_apart("output", config.output, [("job_dir", config.job_dir), *read])
        check_not_worked_in(config.output)
    check_apart("job_dir", config.job_dir, read, may_lie_in=True)


def check_not_worked_in(output: str) -> None:
    """Refuse an output in a folder where what we do not know of goes.

    Raises:
        OutputError: It lies in a job's directory, or where a command makes something.
    """
    for above in Path(output).absolute().parents:
        with writing(above):
            kind = marker.kind_of(above)
        if kind in _WORKED_IN:
            raise OutputError(
                f"The output lies in {above}, where a job or a command works: it could be removed"
                " there.",
                received={"output": output},
                hint="Give another output.",
            )


def check_apart(
    key: str, path: str, others: Iterable[tuple[str, str]], *, may_lie_in: bool = False
) -> None:
    """Refuse a folder to write that is, holds or lies in something else, links followed or not.

    Args:
        key: The setting that names it.
        path: The folder, or the file.
        others: Settings and the paths that they name, of this machine.
        may_lie_in: Whether it may lie in one of them.

    Raises:
        OutputError: It is, holds or lies in one.
    """
    ours = _spellings(path)
    folders: dict[str, str] = {}
    for other_key, other in others:
        for other_path in _spellings(other, folders):
            for mine in ours:
                how = _relation(mine, other_path)
                if how and not (may_lie_in and how == "lies in"):
                    raise OutputError(
                        f"{key} {how} what {other_key} names, so it could be replaced with it.",
                        received={key: path, other_key: other},
                        hint=f"Give another {key}, apart from everything that is read.",
                    )


def _read_by(config: JobConfig) -> Iterator[tuple[str, str]]:
    for key in ("data", "validation_data"):
        data = getattr(config, key)
        for pattern in kind_of(data).local_patterns(data):
            for path in local_paths(pattern):
                yield key, path
    if config.model:
        for path in model_spec.paths_in(config.model):
            yield "model.spec", path
    elif TASKS[config.task].takes_zoo and git_zoo.parse(config.model_zoo) is None:
        yield "model_zoo", config.model_zoo
    for key in ("trained_model", "init_from"):
        if path := getattr(config, key):
            yield key, path


def _spellings(path: str, folders: dict[str, str] | None = None) -> set[str]:
    """A path as it is written, and with all links followed.

    Args:
        path: The path.
        folders: Those that were followed before: of a million files that costs most.
    """
    written = os.path.abspath(path)
    if folders is None or os.path.islink(written):
        return {written, os.path.realpath(written)}
    folder, name = os.path.split(written)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return {written, os.path.join(folders[folder], name)}


def _relation(mine: str, other: str) -> str:
    if mine == other:
        return "is"
    if other.startswith(mine.rstrip("/") + "/"):
        return "holds"
    if mine.startswith(other.rstrip("/") + "/"):
        return "lies in"
    return ""
