"""Models, rates and lengths of the runs over networks."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from benchmarks import common
from benchmarks.common import Workspace
from benchmarks.network.namespace import Rate

__all__ = [
    "FULL",
    "MODELS",
    "NO_LIMIT",
    "NUM_RANKS",
    "QUICK",
    "RATES",
    "Model",
    "Run",
    "Settings",
    "name_of",
]

NO_LIMIT = Rate(name="no limit", bits_per_second=0.0)
RATES = (
    NO_LIMIT,
    Rate(name="4 Gbit/s", bits_per_second=4e9),
    Rate(name="1 Gbit/s", bits_per_second=1e9),
)
NUM_RANKS = 2
SIDE_SECONDS = 300.0
"""Longest life of one training; hours on no machine."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained."""

    title: str
    spec: str
    """Module and class in `benchmarks/models`."""
    batch_size: int
    """The global batch, records."""
    num_parameters: int
    timed_steps: int
    """At each rate."""
    warmup_steps: int = 3
    """At the first rate: both sides trace and allocate in their first steps."""
    records: str = "pictures"
    """Folder of its records."""
    torch_spec: str
    """The same in PyTorch; `benchmarks.models.torch_network` has it by its key in `MODELS`."""
    picture_shape: tuple[int, int, int] = (3, 64, 64)
    """Of PyTorch's records."""


MODELS = {
    "conv": Model(
        title="11.7 M, 8 convolutions and 2 dense",
        spec="network.ConvSpec",
        torch_spec="torch_specs.ConvSpec",
        batch_size=64,
        num_parameters=11_657_936,
        timed_steps=6,
    ),
    "resnet": Model(
        title="ResNet-50, pictures of 64x64",
        spec="network.ResNetSpec",
        torch_spec="torch_specs.ResNetSpec",
        batch_size=16,
        num_parameters=23_608_202,
        timed_steps=5,
    ),
    "dense": Model(
        title="45 M dense, Adam",
        spec="network.DenseSpec",
        torch_spec="torch_specs.DenseSpec",
        batch_size=512,
        num_parameters=45_170_506,
        timed_steps=4,
    ),
    "small": Model(
        title="0.7 M, 2 convolutions and 2 dense",
        spec="cnn.CnnSpec",
        torch_spec="torch_specs.CnnSpec",
        batch_size=128,
        num_parameters=690_874,
        timed_steps=100,
        warmup_steps=40,
        records="numbers",
        picture_shape=(1, 28, 28),
    ),
}


def name_of(model: Model) -> str:
    """The key of a model in `MODELS`."""
    return next(name for name, each in MODELS.items() if each == model)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much of everything."""

    name: str
    repetitions: int
    num_pictures: int
    """Records of pictures."""
    step_share: float
    """Of a model's timed steps."""


FULL = Settings(name="full", repetitions=3, num_pictures=4096, step_share=1.0)
QUICK = Settings(name="quick", repetitions=1, num_pictures=1024, step_share=0.5)


class Run:
    """One run: settings, models and rates that were asked for, records, folders."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        models: tuple[str, ...] = tuple(MODELS),
        rates: tuple[Rate, ...] = RATES,
        torch_python: Path = Path("none"),
        released_horovod: Path = Path("none"),
    ) -> None:
        """Take an empty folder that somebody else removes.

        Args:
            folder: Takes records, logs and jobs.
            settings: How much of everything.
            models: Names in `MODELS`.
            rates: In the order in which each training goes through them.
            torch_python: An interpreter that has torch; it need not exist.
            released_horovod: Folder with a Horovod without our patch; it need not exist.
        """
        self.settings = settings
        self.models = models
        self.rates = rates
        self.torch_python = torch_python
        self.released_horovod = released_horovod
        self._folder = folder
        self._num_places = 0

    def place(self, name: str) -> Path:
        """A new folder."""
        self._num_places += 1
        place = self._folder / f"{self._num_places:03d}-{name}"
        place.mkdir()
        return place

    def data(self, model: Model) -> Path:
        """Folder of a model's records, made where it is not there yet.

        Raises:
            SideFailed: They could not be written.
        """
        folder = self._folder / model.records
        if not folder.exists():
            module = {"pictures": "benchmarks.network.records", "numbers": "benchmarks.records"}
            space = Workspace(self.place("records"), common.QUICK)
            space.data = folder
            space.run_side(module[model.records], f"--num-records={self.settings.num_pictures}")
        return folder

    def arrays(self, model: Model) -> Path:
        """Folder of a model's records as arrays, made where it is not there yet.

        Raises:
            SideFailed: They could not be written.
        """
        folder = self._folder / f"{model.records}-arrays"
        if not folder.exists():
            space = Workspace(self.place("records"), common.QUICK)
            space.data = folder
            space.write_arrays(self.settings.num_pictures, model.picture_shape)
        return folder

    def timed_steps(self, model: Model) -> int:
        """Steps that count, at each rate."""
        return max(3, round(model.timed_steps * self.settings.step_share))

    def space(self, model: Model, *, total_steps: int) -> Workspace:
        """A workspace for one training.

        Args:
            model: What it trains.
            total_steps: Warm-up included.
        """
        settings = dataclasses.replace(
            common.QUICK,
            warmup_steps=model.warmup_steps,
            timed_steps=total_steps - model.warmup_steps,
            batch_size=model.batch_size,
            timeout_seconds=SIDE_SECONDS,
        )
        space = Workspace(self.place("side"), settings)
        space.data = self.data(model)
        return space
