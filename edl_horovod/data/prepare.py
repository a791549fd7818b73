"""From the user's own files to RecordIO: `prepare_data_for_a_single_file` over all of them."""

import concurrent.futures
import contextlib
import glob
import itertools
import logging
import multiprocessing
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.config.schema import PrepareConfig
from edl_horovod.data.recordio import Codec, Writer
from edl_horovod.errors import DataError, JobFailed, UserCodeError
from edl_horovod.models.calling import user_code
from edl_horovod.models.functions import load_function
from edl_horovod.models.lookup import require_zoo
from edl_horovod.output_dir import staged

__all__ = ["PrepareResult", "run"]

_FUNCTION = "prepare_data_for_a_single_file"
_FILES_PER_TASK = 8
_TASKS_AHEAD_PER_PROCESS = 4
_SHUFFLE_SEED = 0
_CHUNK_BYTES = 1 << 16
_GIVE_UP_AFTER_FAILED = 100
_NUM_FAILED_SHOWN = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """What was written."""

    num_records: int
    num_files: int
    """Input files read."""
    num_skipped: int
    """Those of them that gave no record."""
    files: list[str]
    """The files written, in order."""


@dataclass
class _Tally:
    num_done: int = 0
    num_skipped: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Prepared:
    """What one input file gave."""

    records: list[bytes]
    failure: str = ""


def run(
    config: PrepareConfig, on_progress: Callable[[int, int], None] | None = None
) -> PrepareResult:
    """Turn files into RecordIO files, whole or not at all.

    The files are taken in an order that is shuffled once, the same each time, so that records of a
    folder that is sorted by class come mixed. The number of processes does not change the result.

    Args:
        config: What to read, with which model file, and where to write.
        on_progress: Told the number of files done and of all files, now and then.

    Raises:
        DataError: There is no input file, one cannot be prepared, or none gives a record.
        OutputError: The output is in the way or cannot be written.
        UserCodeError: The model file cannot be loaded or has no `prepare_data_for_a_single_file`.
        JobFailed: A process died.
    """
    inputs = _input_files(config.data)
    random.Random(_SHUFFLE_SEED).shuffle(inputs)
    tally = _Tally()
    with staged(Path(config.output), overwrite=config.overwrite) as folder:
        with contextlib.closing(_prepared(config, inputs)) as prepared:
            records = _records(prepared, tally, num_files=len(inputs), on_progress=on_progress)
            num_records, shards = _write_shards(records, folder, config)
        if tally.failed:
            raise DataError(_failure_text(tally, num_files=len(inputs)))
        if not num_records:
            raise DataError(
                f"{_FUNCTION} gave no record for any of {len(inputs)} files."
                f" Received: data={config.data!r}. Check that it returns bytes for these files."
            )
        names = [
            f"{config.prefix}-{number:05d}-of-{len(shards):05d}.recordio"
            for number in range(len(shards))
        ]
        for shard, name in zip(shards, names, strict=True):
            shard.rename(folder / name)
    log.info("Wrote %d records of %d files to %s.", num_records, len(inputs), config.output)
    return PrepareResult(
        num_records=num_records,
        num_files=len(inputs),
        num_skipped=tally.num_skipped,
        files=[os.path.join(config.output, name) for name in names],
    )


def _input_files(data: str) -> list[str]:
    """The files that a path, a folder with all it holds, a glob, or a comma list of these means."""
    parts = [data] if os.path.exists(data) else [part.strip() for part in data.split(",")]
    found = {os.path.abspath(file) for part in parts for file in _matches(part)}
    return sorted(found)


def _matches(part: str) -> list[str]:
    path = os.path.expanduser(part)
    if os.path.isdir(path):
        files = glob.glob(f"{glob.escape(path)}/**", recursive=True)
    else:
        files = [path] if os.path.exists(path) else glob.glob(path, recursive=True)
    files = [file for file in files if os.path.isfile(file)]
    if not files:
        raise DataError(
            f"There is no input file. Received: data={part!r}."
            " Give a file, a folder, a glob such as images/*/*.png, or several with commas."
        )
    return files


def _prepared(config: PrepareConfig, inputs: Sequence[str]) -> Generator[_Prepared]:
    """Yield what each input file gave, in order, made by a pool of processes that works ahead."""
    tasks = [
        list(inputs[start : start + _FILES_PER_TASK])
        for start in range(0, len(inputs), _FILES_PER_TASK)
    ]
    num_processes = min(config.processes or os.cpu_count() or 1, len(tasks))
    pool = concurrent.futures.ProcessPoolExecutor(
        num_processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_process,
    )
    waiting: deque[concurrent.futures.Future[list[_Prepared]]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(_prepare_files, config.model_zoo, config.model_def, task))
            if len(waiting) >= num_processes * _TASKS_AHEAD_PER_PROCESS:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as e:
        raise JobFailed(
            "A process of prepare died, perhaps for want of memory."
            f" Received: processes={num_processes}. Try fewer processes."
        ) from e
    finally:
        pool.shutdown(cancel_futures=True)


def _records(
    prepared: Iterator[_Prepared],
    tally: _Tally,
    *,
    num_files: int,
    on_progress: Callable[[int, int], None] | None,
) -> Iterator[bytes]:
    for one in prepared:
        tally.num_done += 1
        if one.failure:
            log.warning("%s", one.failure)
            tally.failed.append(one.failure)
            if len(tally.failed) >= _GIVE_UP_AFTER_FAILED:
                return
        elif not one.records:
            tally.num_skipped += 1
        yield from one.records
        is_end_of_task = tally.num_done % _FILES_PER_TASK == 0 or tally.num_done == num_files
        if on_progress is not None and is_end_of_task:
            on_progress(tally.num_done, num_files)


def _write_shards(
    records: Iterator[bytes], folder: Path, config: PrepareConfig
) -> tuple[int, list[Path]]:
    """Write the records to numbered files; return how many records and which files."""
    num_records = 0
    shards: list[Path] = []
    for first in records:
        shards.append(folder / f"{len(shards):05d}")
        rest = itertools.islice(records, config.records_per_shard - 1)
        with Writer(
            shards[-1], codec=Codec[config.codec.upper()], chunk_bytes=_CHUNK_BYTES
        ) as writer:
            for record in itertools.chain((first,), rest):
                writer.write(record)
                num_records += 1
    return num_records, shards


def _failure_text(tally: _Tally, *, num_files: int) -> str:
    gave_up = "" if tally.num_done == num_files else f" The rest of {num_files} was not tried."
    shown = "\n  ".join(tally.failed[:_NUM_FAILED_SHOWN])
    more = len(tally.failed) - _NUM_FAILED_SHOWN
    return (
        f"{len(tally.failed)} of {tally.num_done} files cannot be prepared, so nothing was"
        f" written.{gave_up} Mend or remove them, or have {_FUNCTION} return None for them:"
        f"\n  {shown}{f'{chr(10)}  and {more} more' if more > 0 else ''}"
    )


def _start_process() -> None:
    """Set up a process of the pool, before the user's imports."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Nothing is computed here; with it on, TensorFlow says so on the user's terminal.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # Each process would reserve the whole GPU.
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _prepare_files(model_zoo: str, model_def: str, files: list[str]) -> list[_Prepared]:
    function = load_function(model_zoo, model_def, _FUNCTION)
    return [_prepare_one(function, file, root=require_zoo(model_zoo)) for file in files]


def _prepare_one(function: Callable[[str], object], file: str, *, root: Path) -> _Prepared:
    try:
        with user_code(f"{file}: {_FUNCTION}", root=root):
            made = function(file)
            if made is None:
                return _Prepared([])
            records = [made] if isinstance(made, bytes) else list(made)  # type: ignore[call-overload]
    except UserCodeError as e:
        return _Prepared([], failure=str(e))
    wrong = {type(record).__name__ for record in records if not isinstance(record, bytes)}
    if wrong:
        return _Prepared([], failure=f"{file}: {_FUNCTION} gave {', '.join(wrong)}, not bytes.")
    return _Prepared(records)
