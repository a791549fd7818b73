"""The copy of the model zoo that a trained model carries, and the check that it loads."""

import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import EdlError, OutputError, UserCodeError, error_kind, error_of_kind
from edl_horovod.frameworks.base import Framework, Model
from edl_horovod.models import zoo_files
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.lookup import import_root, require_zoo
from edl_horovod.models.trained_model_file import read_adapted, write_adapted
from edl_horovod.models.zoo import LoadedSpec, Overrides, load_spec
from edl_horovod.models.zoo_files import CODE_SUFFIXES, ZooReads, watching_opens
from edl_horovod.records.sources.patterns import local_paths, parts_of

log = logging.getLogger(__name__)

MAX_REBUILT_BYTES = 256 << 20
"""Size of the parameters above which a model is not built a second time for the check."""

RESULT_SECONDS = 60.0
"""Longest wait for the check; after that the training continues without a result."""
_MAX_MESSAGE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to test-load a copy."""

    zoo: str
    """The original zoo; reading a file of it is an error."""
    copy: str
    """The folder of the copy; the value of the spec's `adapt` is in a file beside it."""
    model_def: str
    builds: bool
    """Whether the model is also built."""


class ZooCopyChecker:
    """Client of the process that test-loads the copy of the zoo."""

    def __init__(self, channel: socket.socket) -> None:
        """Use the socket of a process that waits for one request."""
        self._channel = channel
        self._channel.settimeout(RESULT_SECONDS)

    def begin(self, request: Request) -> None:
        """Send the request; `result` waits for the answer."""
        with contextlib.suppress(OSError):  # It was killed; `result` reports that.
            self._channel.send(json.dumps(asdict(request)).encode())

    def result(self) -> EdlError | None:
        """Wait for the answer: the error of loading the copy, or None if it loads.

        Without an answer, perhaps for lack of memory, a warning is logged, and None is returned.
        """
        try:
            answer = self._channel.recv(_MAX_MESSAGE_BYTES)
        except OSError as error:
            answer = b""
            log.debug("no result of the check: %s", error)
        if not answer:
            log.warning(
                "whether the trained model will load from its copy of the model zoo could not be"
                " checked within %.0f s",
                RESULT_SECONDS,
            )
            return None
        failure = json.loads(answer)
        return error_of_kind(failure["kind"], failure["message"]) if failure else None


class ZooCopy:
    """The files of a job's model zoo that its trained model will contain."""

    def __init__(self, config: JobConfig) -> None:
        """Prepare; `check` finds the files.

        Raises:
            ConfigError: The model zoo does not exist.
        """
        self._config = config
        self._zoo = require_zoo(config.model_zoo)
        self._reads = ZooReads(self._zoo)
        self._files: list[Path] = []
        self._checker: ZooCopyChecker | None = None
        self._folder = contextlib.ExitStack()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record which files of the zoo are opened within this context."""
        with self._reads.recording(), self._folder:
            yield

    def check(self) -> None:
        """Find the files that the trained model will contain; called once the model is built.

        Raises:
            ConfigError: The zoo contains a link to a file outside of it.
            OutputError: The zoo's sources and the files that the model reads are too large.
        """
        self._files = self._find_files()

    def begin_check(self, checker: ZooCopyChecker, loaded: LoadedSpec, model: Model) -> None:
        """Begin to test-load a copy of these files in another process; see `require_loadable`.

        That process also builds the model, if that is small and reads files other than modules.
        """
        num_bytes = sum(weight.numpy().nbytes for weight in model.weights.values())
        reads = set(self._files) - set(zoo_files.sources(self._zoo))
        self._checker = checker
        temporary = self._folder.enter_context(tempfile.TemporaryDirectory(prefix="edl-zoo-copy-"))
        folder = Path(temporary, "zoo")
        zoo_files.copy(self._zoo, self._files, to=folder)
        write_adapted(folder.parent, loaded.spec.adapted)
        config = self._config
        request = Request(
            zoo=str(self._zoo),
            copy=str(folder),
            model_def=config.model_def if self._zoo.is_dir() else loaded.full_name,
            builds=bool(reads) and num_bytes <= MAX_REBUILT_BYTES,
        )
        log.debug("checking the copy of the zoo: %s", asdict(request))
        checker.begin(request)

    def require_loadable(self, *, is_first_step: bool) -> None:
        """Wait for the result of `begin_check`, if this process has called it.

        Raises:
            UserCodeError: The copy does not load, and no step is done yet. A training that has done
                steps continues, with an error in its log.
        """
        checker, self._checker = self._checker, None
        error = checker.result() if checker is not None else None
        self._folder.close()
        if error is None:
            return
        if is_first_step:
            raise error
        log.error("%s", error)

    def files(self) -> list[Path]:
        """The files to copy, including those opened since `check` unless these are too large."""
        try:
            self._files = self._find_files()
        except OutputError as error:
            log.error("%s The trained model will lack the files that were read since.", error)
        return self._files

    def _find_files(self) -> list[Path]:
        data = [Path(path).absolute() for path in self._data()]
        root = self._zoo if self._zoo.is_dir() else self._zoo.parent
        apart = [path for path in data if not root.is_relative_to(path)]
        reads = self._reads.files()
        of_model = [f for f in reads if not any(f.is_relative_to(path) for path in apart)]
        return zoo_files.with_reads(self._zoo, of_model)

    def _data(self) -> Iterator[str]:
        """Paths of the job's data, which is not part of the model even within the zoo's folder."""
        for pattern in (self._config.data, self._config.validation_data):
            for part in parts_of(pattern):
                if "://" not in part:
                    yield from local_paths(part)


@contextlib.contextmanager
def forked_zoo_copy_checker(config: JobConfig, framework: Framework) -> Iterator[ZooCopyChecker]:
    """Fork the process; it ends with the block.

    Args:
        config: The training job.
        framework: The framework: imported, but not initialised, because the process is forked.
    """
    ours, checker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _serve(checker_end, config, framework)
    checker_end.close()
    try:
        with ours:
            yield ZooCopyChecker(ours)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _serve(channel: socket.socket, config: JobConfig, framework: Framework) -> NoReturn:
    """Answer one request, then end; also ends when the other process does."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The user's code prints the same as in the worker, so drop it.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        if text := channel.recv(_MAX_MESSAGE_BYTES):
            error = _load_error(Request(**json.loads(text)), config, framework)
            answer = {"kind": error_kind(error), "message": str(error)} if error is not None else {}
            channel.send(json.dumps(answer).encode()[: _MAX_MESSAGE_BYTES // 2])
    finally:
        os._exit(0)


def _load_error(request: Request, config: JobConfig, framework: Framework) -> EdlError | None:
    root, copy = import_root(Path(request.zoo)), Path(request.copy)

    def refuse(name: str) -> None:
        # Code is allowed: it may be imported as a part of an installed package.
        if not name.endswith(CODE_SUFFIXES) and (copy / Path(name).relative_to(root)).is_file():
            raise UserCodeError(
                f"The model reads {name} from the model zoo itself, not from the trained model's"
                " copy of the zoo, so it could not be used without the zoo.",
                hint="Make the path relative to the model's own file: Path(__file__).parent.",
            )

    try:
        with watching_opens(root, refuse):
            loaded = load_spec(
                request.copy,
                request.model_def,
                params=config.params,
                overrides=Overrides.of(config),
                plain_models=framework.plain_models,
            )
            loaded.spec.adapted = read_adapted(copy.parent)
            if request.builds:
                with user_code(f"create_model of {loaded.symbol}", root=loaded.zoo):
                    call_declared(loaded.spec.create_model, {})
    except EdlError as error:
        return UserCodeError(
            "The trained model could not be loaded later. It contains a copy of the model zoo's"
            f" sources and of the files that the model read, and loading the model from"
            f" it fails: {error}"
        )
    return None
