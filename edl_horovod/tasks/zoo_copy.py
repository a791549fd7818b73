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
from edl_horovod.frameworks.base import Framework
from edl_horovod.frameworks.models import Model
from edl_horovod.models import zoo_files
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.lookup import import_root, require_zoo
from edl_horovod.models.trained_model_file import read_adapted, write_adapted
from edl_horovod.models.zoo import LoadedSpec, Overrides, load_spec
from edl_horovod.models.zoo_files import CODE_SUFFIXES, ZooReads, watching_opens
from edl_horovod.records.sources.patterns import local_paths, parts_of

__all__ = ["ZooCopy", "ZooCopyChecker", "Request", "forked_zoo_copy_checker"]

log = logging.getLogger(__name__)

MAX_REBUILT_BYTES = 256 << 20
"""Parameters of the largest model that is built a second time to prove the copy."""

RESULT_SECONDS = 60.0
"""Longest wait for a proof: then the training goes on without one."""
_MAX_MESSAGE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to prove."""

    zoo: str
    """The zoo itself, of which nothing may be read."""
    copy: str
    """The folder with the copy, beside which lies what a trained model has of `adapt`."""
    model_def: str
    builds: bool
    """Whether the model is built, too."""


class ZooCopyChecker:
    """The way to the process that proves."""

    def __init__(self, channel: socket.socket) -> None:
        """Take the socket of a process that waits to be asked."""
        self._channel = channel
        self._channel.settimeout(RESULT_SECONDS)

    def begin(self, request: Request) -> None:
        """Ask it; the answer is waited for by `result`."""
        with contextlib.suppress(OSError):  # It was killed: `result` tells.
            self._channel.send(json.dumps(asdict(request)).encode())

    def result(self) -> EdlError | None:
        """Wait for the answer: what is wrong with the copy, None if it loads.

        Where there is no answer, for want of memory perhaps, that is logged, and nothing is wrong.
        """
        try:
            answer = self._channel.recv(_MAX_MESSAGE_BYTES)
        except OSError as error:
            answer = b""
            log.debug("no proof: %s", error)
        if not answer:
            log.warning(
                "whether the trained model will load from its copy of the model zoo could not be"
                " tried within %.0f s",
                RESULT_SECONDS,
            )
            return None
        failure = json.loads(answer)
        return error_of_kind(failure["kind"], failure["message"]) if failure else None


class ZooCopy:
    """What of a job's model zoo its trained model will carry."""

    def __init__(self, config: JobConfig) -> None:
        """Look at nothing yet.

        Raises:
            ConfigError: The model zoo is not there.
        """
        self._config = config
        self._zoo = require_zoo(config.model_zoo)
        self._reads = ZooReads(self._zoo)
        self._files: list[Path] = []
        self._checker: ZooCopyChecker | None = None
        self._folder = contextlib.ExitStack()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record which files of the zoo are opened, while the model is made and later."""
        with self._reads.recording(), self._folder:
            yield

    def check(self) -> None:
        """Find out which files the trained model will carry, once the model is made.

        Raises:
            ConfigError: The zoo holds a link that leads out of it.
            OutputError: The zoo's sources, or what the model reads of it, are too large.
        """
        self._files = self._found()

    def prove(self, checker: ZooCopyChecker, loaded: LoadedSpec, model: Model) -> None:
        """Begin to load a copy of these files in another process.

        It builds the model, too, if that reads anything but modules, and is not large.
        """
        num_bytes = sum(weight.numpy().nbytes for weight in model.weights.values())
        reads = set(self._files) - set(zoo_files.sources(self._zoo))
        self._checker = checker
        temporary = self._folder.enter_context(tempfile.TemporaryDirectory(prefix="edl-proof-"))
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
        log.debug("proving the copy of the zoo: %s", asdict(request))
        checker.begin(request)

    def require_loadable(self, *, is_first_step: bool) -> None:
        """Wait until the copy has been proven to load, if this process has it proven.

        Raises:
            UserCodeError: It does not load, and no step has been done yet. A training that has
                come further goes on, with an error in the log.
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
        """The files to carry; what has been opened since, too, as far as there is room for it."""
        try:
            self._files = self._found()
        except OutputError as error:
            log.error("%s The trained model does not have what was read since.", error)
        return self._files

    def _found(self) -> list[Path]:
        data = [Path(path).absolute() for path in self._data()]
        root = self._zoo if self._zoo.is_dir() else self._zoo.parent
        apart = [path for path in data if not root.is_relative_to(path)]
        reads = self._reads.files()
        of_model = [f for f in reads if not any(f.is_relative_to(path) for path in apart)]
        return zoo_files.with_reads(self._zoo, of_model)

    def _data(self) -> Iterator[str]:
        """The job's data: it may lie in the zoo's folder, and is no part of the model."""
        for pattern in (self._config.data, self._config.validation_data):
            for part in parts_of(pattern):
                if "://" not in part:
                    yield from local_paths(part)


@contextlib.contextmanager
def forked_zoo_copy_checker(config: JobConfig, framework: Framework) -> Iterator[ZooCopyChecker]:
    """Fork the process; it ends with the block. To be called before anything is initialised.

    Args:
        config: The training job.
        framework: Imported, but not begun.
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
    """Wait for a request, and answer it; the end of the other process is the end of this one."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # What the user's code prints, the worker has printed.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        if text := channel.recv(_MAX_MESSAGE_BYTES):
            error = _wrong_with(Request(**json.loads(text)), config, framework)
            answer = {"kind": error_kind(error), "message": str(error)} if error is not None else {}
            channel.send(json.dumps(answer).encode()[: _MAX_MESSAGE_BYTES // 2])
    finally:
        os._exit(0)


def _wrong_with(request: Request, config: JobConfig, framework: Framework) -> EdlError | None:
    root, copy = import_root(Path(request.zoo)), Path(request.copy)

    def refuse(name: str) -> None:
        # Code of the zoo may be imported as part of an installed package, too.
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
