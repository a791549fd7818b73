"""A chaos schedule: actions and their times, written by hand or drawn from a seed."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from edl_horovod.errors import ConfigError, did_you_mean

KINDS = ("kill", "stop", "add", "remove", "coordinator")
"""Kinds of actions: kill a worker (SIGKILL), stop one for some time (SIGSTOP), add a slot, remove a
slot, and kill the coordinator (SIGKILL)."""
STOP_SECONDS = 3.0
_WITH_SLOT = ("kill", "stop")
_FORM = "SECONDS:KIND, or SECONDS:kill:SLOT, or SECONDS:stop:SLOT:SECONDS"


@dataclass(frozen=True, kw_only=True)
class Action:
    """One action."""

    at_seconds: float
    """Seconds after the start of the schedule."""
    kind: str
    slot: int | None = None
    """Slot of the worker; None lets `pick` choose among the workers in the ring."""
    seconds: float = STOP_SECONDS
    """How long a stopped worker stays stopped."""
    pick: float = 0.0
    """Position of the worker among those in the ring, ordered by slot: 0 to below 1."""

    def __str__(self) -> str:
        words = [f"{self.at_seconds:g}", self.kind]
        if self.kind in _WITH_SLOT:
            words += ["" if self.slot is None else str(self.slot)]
        if self.kind == "stop":
            words += [f"{self.seconds:g}"]
        return ":".join(words).rstrip(":")


def parse(text: str, *, seed: int = 0) -> tuple[Action, ...]:
    """Parse a schedule such as `10:kill:1 20:stop::5 30:add`, which may have lines and # comments.

    Args:
        text: The schedule.
        seed: Chooses the workers of actions that name no slot.

    Raises:
        ConfigError: A word is not an action.
    """
    source = random.Random(seed)
    lines = (line.partition("#")[0] for line in text.splitlines())
    actions = [_parse_word(word, source.random()) for line in lines for word in line.split()]
    return tuple(sorted(actions, key=lambda action: action.at_seconds))


def _parse_word(word: str, pick: float) -> Action:
    at, _, rest = word.partition(":")
    kind, *more = rest.split(":")
    most, hint = {"kill": 1, "stop": 2}.get(kind, 0), "Seconds and slots are numbers from 0 on."
    if kind not in KINDS:
        hint = f"{did_you_mean(kind, KINDS)} Kinds: {', '.join(KINDS)}."
    with suppress(ValueError):
        slot = int(more[0]) if more and more[0] else None
        seconds = float(more[1]) if len(more) > 1 else STOP_SECONDS
        is_right = len(more) <= most and float(at) >= 0 and seconds > 0 and (slot or 0) >= 0
        if is_right and kind in KINDS:
            return Action(at_seconds=float(at), kind=kind, slot=slot, seconds=seconds, pick=pick)
    raise ConfigError(f"An action of a chaos schedule is {_FORM}.", received=repr(word), hint=hint)


def random_schedule(
    *, seed: int, seconds: float, every: float, kinds: Sequence[str] = KINDS
) -> tuple[Action, ...]:
    """Draw actions of random kinds at roughly equal intervals; equal arguments draw equal actions.

    Args:
        seed: Seed of the random choices.
        seconds: Length of the schedule.
        every: Mean interval between two actions, in seconds; the first action comes after it.
        kinds: Kinds to choose from; a kind that is listed twice is drawn twice as often.

    Raises:
        ConfigError: A kind does not exist, or the schedule is too short for an action.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(
                f"There is no kind {kind!r} of chaos.",
                hint=f"{did_you_mean(kind, KINDS)} Kinds: {', '.join(KINDS)}.",
            )
    if not kinds or every <= 0 or seconds < every:
        raise ConfigError(
            "Chaos needs kinds, and time for one action.",
            received={"--kinds": ",".join(kinds), "--every": every, "--seconds": seconds},
            hint="Give for instance --kinds kill --every 5 --seconds 60.",
        )
    source = random.Random(seed)
    actions = []
    for number in range(1, int(seconds / every) + 1):
        jitter = source.uniform(-0.25, 0.25) * every
        at, kind = round(min(number * every + jitter, seconds), 2), source.choice(list(kinds))
        actions.append(Action(at_seconds=at, kind=kind, pick=source.random()))
    return tuple(actions)
