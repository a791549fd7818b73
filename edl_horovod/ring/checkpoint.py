"""Checkpoints of a ring's state: written during training, read when no rank has the state.

The leader copies the variables between two steps, and a thread writes the copy. A checkpoint is one
file, `step-<number>.safetensors`, that appears whole or not at all. If it is damaged, the one
before it is used.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import CheckpointConfig
from edl_horovod.errors import ConfigError, DataError
from edl_horovod.files import whole_file
from edl_horovod.frameworks.values import Variable
from edl_horovod.job import checkpoint_files
from edl_horovod.job.checkpoint_files import LENGTH_BYTES, METADATA
from edl_horovod.job.events import CheckpointEvent, EventLog

log = logging.getLogger(__name__)

FORMAT_VERSION = 2
OPTIONAL = "job/"
"""Prefix of names of variables that need not be in a checkpoint, nor in the job that reads it."""

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_DIGEST = "sha256"
_TYPES_OF_BYTES = "types_of_bytes"
"""Key of the metadata: the types of tensors that are stored as bytes, by name."""
_ALIGNMENT = 8


class Checkpoints:
    """The checkpoints of one job, as one rank sees them."""

    def __init__(
        self,
        folder: Path,
        variables: Mapping[str, Variable],
        *,
        facts: Mapping[str, Any],
        config: CheckpointConfig,
        must_exist: bool,
        events: EventLog,
    ) -> None:
        """Prepare; no file is read or written yet.

        Args:
            folder: The folder of the checkpoints; created when the first one is written.
            variables: Everything that changes while the job runs, by name.
            facts: What determines the order of records (settings and data). A checkpoint with other
                facts is refused.
            config: When to write, and how many to keep.
            must_exist: Whether it is an error if no checkpoint is usable.
            events: Receives an event for each checkpoint that is written, failed or damaged.
        """
        self._folder = folder
        self._variables = dict(variables)
        self._facts = dict(facts)
        self._config = config
        self._must_exist = must_exist
        self._events = events
        self._bad: set[tuple[int, int]] = set()
        self._writer: threading.Thread | None = None
        self._last_step = -1
        self._last_time = time.monotonic()

    # -- writing

    def after_step(self, counters: Mapping[str, int]) -> None:
        """Save if a checkpoint is due; the leader calls it after each step.

        Args:
            counters: The state's counters by name, `step` among them.
        """
        step = counters["step"]
        every = self._config.every_steps
        is_due = bool(every) and step % every == 0
        seconds = self._config.every_seconds
        if not is_due and not (seconds and time.monotonic() - self._last_time >= seconds):
            return
        if self._writer is None or not self._writer.is_alive():
            self.save(counters)
        elif is_due:
            log.warning(
                "the checkpoint of step %d is still being written; that of step %d is left out. "
                "Raise checkpoint.every_steps, or use a faster disk",
                self._last_step,
                step,
            )

    def save(self, counters: Mapping[str, int]) -> None:
        """Copy the state now, and write it in a thread, unless this step is saved already."""
        step = counters["step"]
        if not self._config.is_on or step <= max(0, self._last_step):
            return
        self.wait()
        self._last_step, self._last_time = step, time.monotonic()
        tensors = {name: variable.numpy() for name, variable in self._variables.items()}
        texts = {name: str(value) for name, value in counters.items()}
        version, facts = {"format_version": str(FORMAT_VERSION)}, {"facts": json.dumps(self._facts)}
        metadata = version | texts | facts
        self._writer = threading.Thread(
            target=self._write, args=(step, tensors, metadata), name="checkpoint", daemon=True
        )
        self._writer.start()

    def wait(self) -> None:
        """Wait until the checkpoint that `save` began is written or has failed."""
        if self._writer is not None:
            self._writer.join()

    def _write(
        self, step: int, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
    ) -> None:
        began = time.monotonic()
        path = checkpoint_files.path_of(self._folder, step)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            num_bytes = write_tensors(path, tensors, metadata)
            checkpoint_files.remove_older(self._folder, step, keep=self._config.keep)
        except OSError as error:
            self._failed(step, f"cannot be written: {error}. Training goes on; check the disk")
            return
        # The end of the thread: without an event the failure would go unseen.
        except Exception as error:
            log.exception("writing the checkpoint of step %d", step)
            self._failed(step, f"cannot be written: {error!r}. Training goes on without it")
            return
        seconds = round(time.monotonic() - began, 4)
        log.info("checkpoint of step %d: %d bytes, %.3f s", step, num_bytes, seconds)
        self._events.write(
            CheckpointEvent(state="written", step=step, num_bytes=num_bytes, seconds=seconds)
        )

    def _failed(self, step: int, message: str) -> None:
        log.warning("the checkpoint of step %d %s", step, message)
        self._events.write(CheckpointEvent(state="failed", step=step, message=message))

    # -- reading

    def newest_step(self) -> int:
        """Step of the newest checkpoint that is not known to be damaged; -1 for none."""
        for step in reversed(checkpoint_files.steps_in(self._folder)):
            if self._stamp(step) not in self._bad:
                return step
        return -1

    def load(self, after: int) -> dict[str, int] | None:
        """Set the variables to the values of the newest undamaged checkpoint.

        Args:
            after: Checkpoints of this step and earlier ones are ignored.

        Returns:
            Its counters by name; None if there is no such checkpoint.

        Raises:
            ConfigError: It belongs to other data or another plan.
            DataError: It belongs to another model, or `must_exist` and no checkpoint is usable.
        """
        while (step := self.newest_step()) > after:
            stamp, path = self._stamp(step), checkpoint_files.path_of(self._folder, step)
            try:
                tensors, metadata = read_tensors(path)
                if metadata.get("step") != str(step):
                    raise DamagedFile(f"its name says step {step}, and its content says another")
            except (OSError, DamagedFile) as error:
                self._bad.add(stamp)
                message = f"cannot be used: {error}. The one before it is tried"
                log.warning("the checkpoint %s %s", path, message)
                self._events.write(CheckpointEvent(state="damaged", step=step, message=message))
                continue
            return self._restore(path, tensors, metadata)
        if self._must_exist and after < 0:
            raise DataError(
                f"There is no valid checkpoint in {self._folder}.",
                received="resume=must",
                hint="Use resume=auto to begin at step 0, or give the job_dir of the job to"
                " continue.",
            )
        return None

    def _restore(
        self, path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
    ) -> dict[str, int]:
        if int(metadata["format_version"]) > FORMAT_VERSION:
            raise DataError(
                f"{path} was written by a newer edl_horovod: this one reads up to format version"
                f" {FORMAT_VERSION}.",
                received=f"format version {metadata['format_version']}",
                hint="Install that version.",
            )
        self._require_same_facts(path, json.loads(metadata["facts"]))
        self._require_same_variables(path, tensors)
        for name, variable in self._variables.items():
            if name in tensors and tensors[name].shape == tuple(variable.shape):
                variable.assign(tensors[name])
        counters = {name: int(text) for name, text in metadata.items() if name != "facts"}
        self._last_step = counters["step"]
        log.info("restored the checkpoint of step %d", self._last_step)
        return counters | _epoch_counters(counters.get("calls"))

    def _require_same_facts(self, path: Path, saved: Mapping[str, Any]) -> None:
        keys = sorted({*saved, *self._facts})
        other = [key for key in keys if saved.get(key) != self._facts.get(key)]
        if other:
            now = ", ".join(f"{key}={self._facts.get(key)!r}" for key in other)
            before = ", ".join(repr(saved.get(key)) for key in other)
            raise ConfigError(
                f"The checkpoint {path} belongs to a training with another {' and '.join(other)},"
                " so it cannot be continued.",
                received=f"{now}; the checkpoint has {before}",
                hint="Set it back, or continue with the edl_horovod that wrote it; or start over"
                " with resume=never overwrite=true.",
            )

    def _require_same_variables(self, path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
        saved, ours = _described(tensors), _described(self._variables)
        if saved == ours:
            return
        only_saved = sorted(saved - ours) or ["none"]
        only_ours = sorted(ours - saved) or ["none"]
        raise DataError(
            f"The checkpoint {path} belongs to another model or optimizer. Only the checkpoint has:"
            f" {', '.join(only_saved[:5])}. Only the model and optimizer have:"
            f" {', '.join(only_ours[:5])}. Use the same model_def and params; or start over with "
            "resume=never overwrite=true."
        )

    def _stamp(self, step: int) -> tuple[int, int]:
        """Identify a file: a damaged checkpoint may be replaced by a good one of the same name."""
        try:
            return step, checkpoint_files.path_of(self._folder, step).stat().st_mtime_ns
        except OSError:
            return step, 0


def _described(variables: Mapping[str, NDArray[Any] | Variable]) -> set[str]:
    return {
        f"{name} ({variable.dtype.name}{list(variable.shape)})"
        for name, variable in variables.items()
        if not name.startswith(OPTIONAL)
    }


def _epoch_counters(calls: int | None) -> dict[str, int]:
    """Split the counter of format version 1: twice the step, plus 1 after an epoch's begin."""
    if calls is None or calls < 0:
        return {}
    step, has_begun = divmod(calls, 2)
    return {"epoch_ended_step": step, "epoch_begun_step": step if has_begun else step - 1}


_NAMES = {code: name for name, code in _DTYPES.items()}


class DamagedFile(Exception):
    """The file is truncated, or its bytes are not those that were written."""


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> int:
    """Write a safetensors file that appears whole, and is on the disk, or not at all.

    Hashing and writing, which take the time, release Python's interpreter lock.

    Args:
        path: The file; replaced if it exists.
        tensors: Tensors by name, in little-endian byte order.
        metadata: Texts for the file's header, by name.

    Returns:
        The file's size in bytes.

    Raises:
        OSError: It cannot be written; a former file is unchanged.
    """
    # The widest types first, so that each tensor is aligned for its type.
    widest = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    arrays = {name: np.asarray(array, order="C") for name, array in widest}
    of_bytes = {name: a.dtype.name for name, a in arrays.items() if a.dtype.name not in _DTYPES}
    for name in of_bytes:
        arrays[name] = arrays[name][..., np.newaxis].view(np.uint8)
    types = {_TYPES_OF_BYTES: json.dumps(of_bytes)} if of_bytes else {}
    header = _header(arrays, {**metadata, **types})
    data = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    header[METADATA][_DIGEST] = _digest(header, data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    parts: list[bytes | memoryview] = [len(text).to_bytes(LENGTH_BYTES, "little"), text, *data]
    whole_file.write_bytes(path, parts)
    return sum(len(part) for part in parts)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read and check a file.

    Returns:
        The tensors by name, read-only, and the metadata.

    Raises:
        OSError: It cannot be read.
        DamagedFile: Its content is not what was written.
    """
    content = memoryview(path.read_bytes())
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < start:
        raise DamagedFile("it is truncated")
    try:
        header = json.loads(bytes(content[LENGTH_BYTES:start]))
        digest = header[METADATA].pop(_DIGEST)
        if digest != _digest(header, [content[start:]]):
            raise DamagedFile("its digest does not match its content, or it is truncated")
        metadata = header.pop(METADATA)
        tensors = {name: _array(content[start:], entry) for name, entry in header.items()}
        for name, dtype in json.loads(metadata.pop(_TYPES_OF_BYTES, "{}")).items():
            tensors[name] = tensors[name].view(np.dtype(dtype))[..., 0]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"its header cannot be read: {error!r}") from error
    return tensors, metadata


def _header(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> dict[str, Any]:
    header: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        dtype, shape = _DTYPES[array.dtype.name], list(array.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return header


def _digest(header: Mapping[str, Any], data: Iterable[memoryview]) -> str:
    hashed = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for part in data:
        hashed.update(part)
    return hashed.hexdigest()


def _array(data: memoryview, entry: Mapping[str, Any]) -> NDArray[Any]:
    import ml_dtypes  # noqa: F401  Registers bfloat16 with NumPy.

    start, end = entry["data_offsets"]
    flat = np.frombuffer(data[start:end], dtype=np.dtype(_NAMES[entry["dtype"]]))
    return flat.reshape(entry["shape"])
