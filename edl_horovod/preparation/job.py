"""One run of `prepare`, from the input files to the output directory and the list of bad files."""

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edl_horovod.config.schema import PrepareConfig
from edl_horovod.errors import ConfigError, DataError, EdlError, Interrupted, OutputError
from edl_horovod.files.output_dir import check_output, writing
from edl_horovod.files.whole_file import write_text
from edl_horovod.job.output_checks import check_apart, check_not_in_work_folder
from edl_horovod.models import git_zoo, lookup
from edl_horovod.preparation.groups import (
    FUNCTION,
    BadFile,
    Group,
    GroupDone,
    GroupSettings,
    OpenPool,
    Pool,
)
from edl_horovod.preparation.inputs import LIST_MARK, Inputs, cut, find
from edl_horovod.preparation.partial_run import (
    Manifest,
    PartialRun,
    open_partial_run,
    partial_folder,
    saved_state,
    shards_folder,
)
from edl_horovod.preparation.pools import ProcessPool, on_all_ranks

OnProgress = Callable[[int, int, int], None]
"""Called with the numbers of finished files, of all files, and of records so far."""
_MAX_BAD_FILES_LISTED = 100
"""Number of bad files after which a group is aborted, if the first bad file ends the run."""
_PROGRESS_SECONDS = 0.1
_NUM_SHOWN = 10
"""Number of bad files that an error message lists."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """The result of a run."""

    num_records: int
    num_files: int
    """Number of input files."""
    num_empty: int
    """Number of input files without records."""
    num_bad: int
    """Number of input files that could not be prepared and were skipped."""
    files: list[str]
    """The output files in order."""
    bad_files: str
    """Path of the list of bad files; empty if there are none."""


def run(config: PrepareConfig, on_progress: OnProgress | None = None) -> PrepareResult:
    """Convert files to RecordIO files; the output appears once all of them are done.

    The result depends neither on the number of processes nor on interruptions. After an
    interruption a run with the same settings continues and does not repeat finished groups.

    Raises:
        DataError: There are no input files, too many cannot be prepared, or none has a record.
        OutputError: The output or an interrupted run exists and may not be replaced, or the output
            cannot be written.
        UserCodeError: The model file cannot be loaded or has no `prepare_data_for_a_single_file`.
        JobFailed: A process died.
        Interrupted: The user pressed Ctrl-C.
    """
    progress = on_progress or (lambda *counts: None)
    if config.launch == "mpi":
        return on_all_ranks(lambda open_pool: run_with(open_pool, config, progress))
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) > 1:
        problem = "Under mpirun with launch=local each rank would prepare all files."
        hint = "Set launch=mpi, or start it without mpirun."
        raise ConfigError(problem, received="launch=local", hint=hint)

    def open_pool(settings: GroupSettings, num_groups: int) -> ProcessPool:
        num_processes = config.processes or len(os.sched_getaffinity(0))
        return ProcessPool(settings, min(num_processes, num_groups))

    return run_with(open_pool, config, progress)


def describe(config: PrepareConfig) -> list[str]:
    """Describe in lines what a run would do; nothing is written and no user code runs.

    Raises:
        DataError: There are no input files.
        OutputError: The output exists and may not be replaced.
    """
    inputs, manifest = _plan(config)
    num_groups = len(manifest.group_starts)
    lines = [
        f"input files: {len(inputs.paths):,} ({inputs.num_bytes / 2**20:,.1f} MiB)",
        f"groups: {num_groups:,} of about {round(len(inputs.paths) / num_groups):,} files",
    ]
    state = saved_state(Path(config.output), manifest, inputs)
    return [*lines, state] if state else lines


def run_with(open_pool: OpenPool, config: PrepareConfig, on_progress: OnProgress) -> PrepareResult:
    """Prepare files as `run` does, with the caller's pool."""
    output = Path(config.output).absolute()
    inputs, manifest = _plan(config)
    config = replace(config, model_zoo=str(git_zoo.ensure_local(config.model_zoo).path))
    lookup.file_groups(lookup.require_zoo(config.model_zoo), config.model_def)
    with open_pool(_group_settings(config), len(manifest.group_starts)) as pool:
        manifest = replace(manifest, source=pool.source())
        with open_partial_run(output, manifest, inputs, overwrite=config.overwrite) as partial:
            try:
                _do_groups(config, inputs, partial, pool, on_progress)
                return _finish(config, inputs, partial)
            except KeyboardInterrupt as e:
                raise Interrupted(f"Interrupted.{_how_to_resume(partial)}") from e
            except EdlError as e:
                raise e.with_more_hint(_how_to_resume(partial)) from e


def _check_paths(config: PrepareConfig, inputs: Inputs) -> None:
    """Refuse an output that overlaps with the inputs or is in a job's directory.

    Raises:
        OutputError: It overlaps, or the list of bad files would replace another file.
    """
    _bad_files_path(config.output)
    check_not_in_work_folder(config.output)
    parts = [config.data] if os.path.exists(config.data) else config.data.split(",")
    patterns = [part.strip().removeprefix(LIST_MARK) for part in parts if part.strip()]
    read = [("data", os.path.expanduser(part)) for part in patterns]
    if git_zoo.parse(config.model_zoo) is None:
        read.append(("model_zoo", config.model_zoo))
    output = Path(config.output).absolute()
    for folder in (output, partial_folder(output)):
        # Only an existing output can contain an input, so the inputs of a new one are not checked.
        paths = inputs.paths if os.path.lexists(folder) else []
        check_apart("output", str(folder), [*read, *(("data", path) for path in paths)])


def _do_groups(
    config: PrepareConfig, inputs: Inputs, partial: PartialRun, pool: Pool, on_progress: OnProgress
) -> None:
    if partial.done:
        num_groups = len(partial.manifest.group_starts)
        log.info("Continuing: %d of %d groups are done.", len(partial.done), num_groups)
    # An earlier run may have had a different limit.
    _require_few_bad_files(config, list(partial.done.values()))

    last_counts, last_time = (-1, -1), float("-inf")

    def on_work(num_files: int, num_records: int, *, is_last: bool = False) -> None:
        """Report progress: the finished groups, and these counts of the groups in work."""
        nonlocal last_counts, last_time
        now, counts = time.monotonic(), (partial.num_files + num_files, partial.num_records)
        # The display computes the rate since the last report, so skip reports without changes.
        if counts != last_counts and (is_last or now - last_time >= _PROGRESS_SECONDS):
            last_counts, last_time = counts, now
            on_progress(counts[0], len(inputs.paths), partial.num_records + num_records)

    on_work(0, 0)
    groups = (
        Group(number=number, files=inputs.paths[slice(*partial.manifest.bounds(number))])
        for number in range(len(partial.manifest.group_starts))
        if number not in partial.done
    )
    for done in pool.work(groups, on_work):
        if not done.bad or (config.bad_files == "skip" and not done.is_given_up):
            for bad in done.bad:
                log.warning("Skipped: %s: %s", bad.path, bad.reason)
            with writing(Path(config.output)):
                partial.add(done, inputs.digest_of_states(*partial.manifest.bounds(done.number)))
        if done.bad:
            _require_few_bad_files(config, [*partial.done.values(), done])
    on_work(0, 0, is_last=True)


def _finish(config: PrepareConfig, inputs: Inputs, partial: PartialRun) -> PrepareResult:
    output = Path(config.output).absolute()
    done = [partial.done[number] for number in sorted(partial.done)]
    num_records = sum(group.num_records for group in done)
    bad_files = _write_bad_files(config.output, [bad for group in done for bad in group.bad])
    if not num_records:
        partial.discard()
        partial.done.clear()
        problem = f"{FUNCTION} returned no record for any of {len(inputs.paths)} files."
        hint = "Check that it returns bytes for these files."
        raise DataError(problem, received={"data": config.data}, hint=hint)
    with writing(output):
        names = partial.finish(output, overwrite=config.overwrite)
    return PrepareResult(
        num_records=num_records,
        num_files=len(inputs.paths),
        num_empty=sum(group.num_empty for group in done),
        num_bad=sum(len(group.bad) for group in done),
        files=[os.path.join(config.output, name) for name in names],
        bad_files=bad_files,
    )


def _plan(config: PrepareConfig) -> tuple[Inputs, Manifest]:
    """Find the input files, check the paths, and cut the files into groups."""
    check_output(Path(config.output), config.overwrite)
    inputs = find(config.data, shuffle=config.shuffle)
    if inputs.missing and config.bad_files == "raise":
        raise DataError(
            f"{len(inputs.missing)} of {len(inputs.paths)} input files do not exist, for instance"
            f" {inputs.missing[0]}.",
            received={"data": config.data},
            hint="Correct the list, or skip them with bad_files=skip.",
        )
    _check_paths(config, inputs)
    cuts = ("records_per_shard", "bytes_per_shard", "files_per_group")
    names = ("model_def", "shuffle", *cuts, "prefix", "codec")
    settings = {name: getattr(config, name) for name in names}
    return inputs, Manifest(
        settings=settings,
        paths_digest=inputs.digest_of_paths(),
        num_files=len(inputs.paths),
        source="",
        group_starts=cut(inputs.sizes, **{name: settings[name] for name in cuts}),
    )


def _group_settings(config: PrepareConfig) -> GroupSettings:
    names = ("model_zoo", "model_def", "prefix", "records_per_shard", "bytes_per_shard", "codec")
    is_skipping = config.bad_files == "skip"
    return GroupSettings(
        **{name: getattr(config, name) for name in names},
        folder=str(shards_folder(Path(config.output).absolute())),
        max_bad_files=config.max_bad_files if is_skipping else _MAX_BAD_FILES_LISTED - 1,
    )


def _how_to_resume(partial: PartialRun) -> str:
    if not partial.done:
        return ""
    num_groups = len(partial.manifest.group_starts)
    return (
        f"\n{len(partial.done)} of {num_groups} groups of files are done and stored in"
        f" {partial.folder}: run the same command to continue."
    )


def _bad_files_path(output: str) -> Path:
    """Return the path of `<output>.bad_files.jsonl`, after checking that it may be written.

    Raises:
        OutputError: The file exists and is not such a list.
    """
    path = Path(f"{os.path.abspath(output)}.bad_files.jsonl")
    with writing(path):
        try:
            lines = path.read_bytes().splitlines()
            is_ours = all(json.loads(line).keys() == {"path", "reason"} for line in lines)
        except FileNotFoundError:
            is_ours = True
        except (ValueError, AttributeError):
            is_ours = False
    if not is_ours or path.is_symlink():
        raise OutputError(
            f"{path} is the path for the list of bad files, but edl_horovod did not write the"
            " existing file.",
            received={"output": output},
            hint="Move the file, or choose another output.",
        )
    return path


def _write_bad_files(output: str, bad: Sequence[BadFile]) -> str:
    """Write `<output>.bad_files.jsonl`, or remove an older one if there are no bad files.

    Returns:
        The path; empty if there are no bad files.
    """
    path = _bad_files_path(output)
    with writing(path):
        if not bad:
            path.unlink(missing_ok=True)
            return ""
        write_text(path, "".join(f"{json.dumps(asdict(bad_file))}\n" for bad_file in bad))
    return str(path)


def _require_few_bad_files(config: PrepareConfig, groups: Sequence[GroupDone]) -> None:
    """Raise if there are more bad files than the settings allow.

    Raises:
        DataError: There are too many bad files; the list has been written.
    """
    bad = list(dict.fromkeys(bad_file for group in groups for bad_file in group.bad))
    is_skipping = config.bad_files == "skip"
    max_bad_files = config.max_bad_files if is_skipping else 0
    if len(bad) <= max_bad_files:
        return
    path = _write_bad_files(config.output, bad)
    bad_lines = "".join(f"\n  {bad_file.path}: {bad_file.reason}" for bad_file in bad[:_NUM_SHOWN])
    more = f"\n  and {len(bad) - _NUM_SHOWN} more" if len(bad) > _NUM_SHOWN else ""
    listing = f"All bad files so far are listed in {path}:{bad_lines}{more}"
    advice = "Repair them, or skip them with bad_files=skip."
    if is_skipping:
        advice = "Raise max_bad_files, or repair the files."
    raise DataError(
        f"{len(bad)} input files cannot be prepared.",
        received={"max_bad_files": max_bad_files} if is_skipping else "",
        hint=f"{advice} {listing}",
    )
