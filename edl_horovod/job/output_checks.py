"""Check the paths that a job writes, so that none of its inputs is overwritten (D23)."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import OutputError
from edl_horovod.files import marker
from edl_horovod.files.output_dir import SINGLE_FILE_SUFFIX, check_output, check_writable, writing
from edl_horovod.models import job_zoo
from edl_horovod.records.sources.patterns import local_paths
from edl_horovod.records.sources.table import kind_of

_WORK_FOLDERS = ("job", "prepare run", marker.PARTIAL)
"""Kinds of folders in which no output may lie, because their content is removed."""


def check_is_free(config: JobConfig) -> None:
    """Refuse a job whose output exists and may not be replaced, before the job does any work.

    Raises:
        OutputError: The output exists and must stay, or cannot be written.
    """
    if config.output:
        may_be_file = TASKS[config.task].writes_one_file
        is_file = may_be_file and config.output.endswith(SINGLE_FILE_SUFFIX)
        check_output(Path(config.output), config.overwrite, is_file=is_file)


def check_can_be_written(config: JobConfig) -> None:
    """Refuse a job whose output cannot be written, by trying to write there on this machine.

    Raises:
        OutputError: The output cannot be written.
    """
    if config.output:
        check_writable(Path(config.output))


def check_paths(config: JobConfig) -> None:
    """Refuse a job whose output or directory would overwrite its inputs.

    Raises:
        OutputError: The output is, holds or lies in an input, the model zoo, a trained model or a
            job's directory; or the job's directory is or holds one of those.
    """
    inputs = list(_inputs_of(config))
    if config.output:
        check_apart("output", config.output, [("job_dir", config.job_dir), *inputs])
        check_not_in_work_folder(config.output)
    check_apart("job_dir", config.job_dir, inputs, may_lie_in=True)


def check_not_in_work_folder(output: str) -> None:
    """Refuse an output in a folder whose unknown files are removed.

    Raises:
        OutputError: It lies in a job's directory, or in a folder that a command is writing.
    """
    for above in Path(output).absolute().parents:
        with writing(above):
            kind = marker.kind_of(above)
        if kind in _WORK_FOLDERS:
            raise OutputError(
                f"The output lies in {above}, a work folder of a job or a command, which may"
                " remove it.",
                received={"output": output},
                hint="Give another output.",
            )


def check_apart(
    key: str, path: str, others: Iterable[tuple[str, str]], *, may_lie_in: bool = False
) -> None:
    """Refuse a path to write that is, holds or lies in another one, links followed or not.

    Args:
        key: The setting that names the path.
        path: The folder or file to write.
        others: Other settings and the local paths that they name.
        may_lie_in: Whether the path may lie in one of them.

    Raises:
        OutputError: It is, holds or lies in one of them.
    """
    own_paths = _spellings(path)
    folders: dict[str, str] = {}
    for other_key, other in others:
        for other_path in _spellings(other, folders):
            for own_path in own_paths:
                relation = _relation(own_path, other_path)
                if relation and not (may_lie_in and relation == "lies in"):
                    raise OutputError(
                        f"{key} {relation} the path of {other_key}, which could be overwritten.",
                        received={key: path, other_key: other},
                        hint=f"Give another {key}, apart from everything that is read.",
                    )


def _inputs_of(config: JobConfig) -> Iterator[tuple[str, str]]:
    for key in ("data", "validation_data"):
        data = getattr(config, key)
        for pattern in kind_of(data).local_patterns(data):
            for path in local_paths(pattern):
                yield key, path
    yield from job_zoo.sources(config)
    for key in ("trained_model", "init_from"):
        if path := getattr(config, key):
            yield key, path


def _spellings(path: str, folders: dict[str, str] | None = None) -> set[str]:
    """The absolute path as it is written, and with all links followed.

    Args:
        path: The path.
        folders: A cache of resolved folders: resolving them is slow for a million files.
    """
    absolute = os.path.abspath(path)
    if folders is None or os.path.islink(absolute):
        return {absolute, os.path.realpath(absolute)}
    folder, name = os.path.split(absolute)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return {absolute, os.path.join(folders[folder], name)}


def _relation(own_path: str, other: str) -> str:
    if own_path == other:
        return "is"
    if other.startswith(own_path.rstrip("/") + "/"):
        return "holds"
    if own_path.startswith(other.rstrip("/") + "/"):
        return "lies in"
    return ""
