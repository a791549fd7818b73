"""The part of the model zoo that the trained model carries, and the proof that it is enough."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import OutputError
from edl_horovod.frameworks.models import Model
from edl_horovod.models import zoo_files
from edl_horovod.models.lookup import require_zoo
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.models.zoo_files import ZooReads
from edl_horovod.records.sources.patterns import local_paths, parts_of
from edl_horovod.tasks.proof import Prover, Request
from edl_horovod.trained_model import write_adapted

__all__ = ["CarriedZoo"]

log = logging.getLogger(__name__)

MAX_REBUILT_BYTES = 256 << 20
"""Parameters of the largest model that is built a second time to prove the copy."""


class CarriedZoo:
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
        self._prover: Prover | None = None
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

    def prove(self, prover: Prover, loaded: LoadedSpec, model: Model) -> None:
        """Begin to load a copy of these files in another process.

        It builds the model, too, if that reads anything but modules, and is not large.
        """
        num_bytes = sum(weight.numpy().nbytes for weight in model.weights.values())
        reads = set(self._files) - set(zoo_files.sources(self._zoo))
        self._prover = prover
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
        prover.begin(request)

    def require_proof(self, *, is_first_step: bool) -> None:
        """Wait until the copy has been proven to load, if this process has it proven.

        Raises:
            UserCodeError: It does not load, and no step has been done yet. A training that has
                come further goes on, with an error in the log.
        """
        prover, self._prover = self._prover, None
        error = prover.result() if prover is not None else None
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
