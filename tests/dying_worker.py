"""The real worker, which kills itself at chosen moments: the product knows nothing of it.

`EDL_TEST_DEATHS` is a list of deaths, each `POINT:RANK/SIZE`: the rank of a ring of that size that
dies when it gets to that point; size 0 means any. Deaths with `+` between them happen at once,
those after a blank only when all before them have happened. Each happens once; files in `deaths/`
of the job's directory say which have.
"""

import argparse
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

VARIABLE = "EDL_TEST_DEATHS"
POINTS = ("step", "commit", "reset", "forming", "sync", "evaluation", "finish")


@dataclass(frozen=True)
class Death:
    point: str
    rank: int
    size: int

    @property
    def name(self):
        return f"{self.point}-{self.rank}-of-{self.size}"

    def is_at(self, point, world):
        return (point, world.rank) == (self.point, self.rank) and self.size in (0, world.size)


def parse(text):
    """Groups of deaths, in their order."""
    return [[_death(word) for word in group.split("+")] for group in text.split()]


def _death(word):
    point, _, place = word.partition(":")
    assert point in POINTS, word
    rank, _, size = place.partition("/")
    return Death(point, int(rank), int(size))


class Reaper:
    """Ends this process where it is due; `world` is the last ring that it was given a place in."""

    def __init__(self, folder, groups):
        self.world = SimpleNamespace(rank=-1, size=0)
        self._folder, self._groups = folder, groups
        folder.mkdir(parents=True, exist_ok=True)

    def at(self, point):
        for group in self._groups:
            waiting = [death for death in group if not (self._folder / death.name).exists()]
            for death in waiting:
                if death.is_at(point, self.world):
                    (self._folder / death.name).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            if waiting:
                return


def before(reaper, owner, name, point):
    """Let a function be a moment at which this process may die."""
    call = getattr(owner, name)

    def die_or_call(*args, **kwargs):
        reaper.at(point)
        return call(*args, **kwargs)

    setattr(owner, name, die_or_call)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    config = parser.parse_known_args()[0].config
    folder = config.parent / "deaths"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["HOROVOD_ELASTIC"] = "1"
    from edl_horovod.frameworks.horovod import Horovod
    from edl_horovod.ring import state
    from edl_horovod.ring.membership import coordinated
    from edl_horovod.tasks.evaluate import Evaluator
    from edl_horovod.tasks.train import TrainWork
    from edl_horovod.worker import __main__ as worker

    if "framework: torch" in config.read_text():
        from edl_horovod.frameworks.torch.step import TorchStep as Step
    else:
        from edl_horovod.frameworks.keras.step import KerasStep as Step

    reaper = Reaper(folder, parse(os.environ[VARIABLE]))
    before(reaper, Step, "step", "step")
    before(reaper, state.RingState, "commit", "commit")
    before(reaper, coordinated.CoordinatedMembership, "join", "reset")
    before(reaper, state.RingState, "sync", "sync")
    before(reaper, Evaluator, "over_ring", "evaluation")
    before(reaper, TrainWork, "finish", "finish")
    form = Horovod.form_assigned

    def die_or_form(horovod, place, **more):
        reaper.world = SimpleNamespace(rank=place.rank, size=place.size)
        reaper.at("forming")
        return form(horovod, place, **more)

    Horovod.form_assigned = die_or_form
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
