"""Proof that a trained model's copy of the zoo loads, in a process beside the training's own.

It is forked before anything is initialised, as workers are (docs/adr/0008), so it has all imports
and costs some milliseconds; until it is asked it only waits. It knows nothing of what the worker
has loaded, and whatever the user's code does in it is gone with it.
"""

import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import EdlError, UserCodeError, error_kind, error_of_kind
from edl_horovod.frameworks.base import Framework
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.lookup import import_root
from edl_horovod.models.zoo import Overrides, load_spec
from edl_horovod.models.zoo_files import CODE_SUFFIXES, watching_opens
from edl_horovod.trained_model import read_adapted

__all__ = ["Prover", "Request", "forked_prover"]

log = logging.getLogger(__name__)

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


class Prover:
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


@contextlib.contextmanager
def forked_prover(config: JobConfig, framework: Framework) -> Iterator[Prover]:
    """Fork the process; it ends with the block. To be called before anything is initialised.

    Args:
        config: Of the training.
        framework: Imported, but not begun.
    """
    ours, prover_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _serve(prover_end, config, framework)
    prover_end.close()
    try:
        with ours:
            yield Prover(ours)
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
                f"The model reads {name} by a path that leads to the model zoo itself, where the"
                " trained model's copy of the zoo must do.",
                hint="Begin the path at the model's own file: Path(__file__).parent.",
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
            "The trained model would not load: it carries the sources of the model zoo and what"
            f" the model read of it, and with a copy of these: {error}"
        )
    return None
