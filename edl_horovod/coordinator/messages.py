"""The messages between a job's coordinator and its workers, as values.

A message is one flat JSON object: its `kind` and the fields of its class. A field that has its
default is left out. Kinds and fields that a newer version added are passed over.
"""

from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, TypeVar

from edl_horovod.coordinator.wire import WireError

__all__ = [
    "RANK_FIELDS",
    "Change",
    "Dump",
    "End",
    "Failed",
    "Finished",
    "Formed",
    "Hello",
    "Leaving",
    "Message",
    "Ping",
    "Place",
    "Pong",
    "Progress",
    "Ready",
    "Stop",
    "decode",
    "encode",
]

RANK_FIELDS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
"""Of a `Place`; in the order in which horovodrun's driver tells them."""

_Class = TypeVar("_Class")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """A worker's first message on a connection: all that an earlier connection may have lost."""

    worker: str
    """Its incarnation: unique over the whole job, never used again."""
    host: str
    slot: int
    pid: int
    generation: int
    """The last one that it was given a place in."""
    formed: int
    """The last one that it was in a formed ring of."""
    is_ready: bool
    is_leaving: bool
    step: int
    """Steps of the job that it has; -1 for none."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The worker is in no ring and waits for a place."""

    generation: int
    step: int
    reason: str
    """Why its ring broke; empty where it did not."""
    unreached: tuple[str, ...] = ()
    """Addresses of other members that it could not connect to."""


@dataclass(frozen=True, kw_only=True)
class Formed:
    """The worker is in the ring of a generation and has the ring's state."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """The worker asks to be left out of the next ring."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How many steps of the job are done."""

    step: int


@dataclass(frozen=True, kw_only=True)
class Pong:
    """The answer to a ping, with what the worker's main thread does."""

    generation: int
    doing: str
    """`works`, `waits`, `joins` or `unwatched`; see `Membership.doing`."""
    what: str
    """The same for people."""
    seconds: float
    """How long it has done so."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The job is done."""

    result: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The job, or a newcomer, cannot go on."""

    error: dict[str, Any]
    """Its kind as `error`, and its `message`."""


@dataclass(frozen=True, kw_only=True)
class Ping:
    """The coordinator asks for a sign of life."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A worker's place in a ring that is about to form. The names of its ranks are Horovod's."""

    worker: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    generation: int
    step: int
    """The step that the ring is likely to begin at."""
    host: str
    rendezvous_address: str
    rendezvous_port: int
    rendezvous_token: str = ""
    """First part of the paths of our own rendezvous; horovodrun's has none."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The worker's ring is to be replaced."""

    generation: int
    """The next one."""


@dataclass(frozen=True, kw_only=True)
class Dump:
    """The worker is to write the stacks of its threads into its log."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class End:
    """The worker hangs: it is to write its stacks and end at once."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The worker is dismissed."""

    reason: str
    is_over: bool = False
    """Whether the job is over."""
    has_state: bool = False
    """Whether this worker is the one that must keep the job's state."""


Message = (
    Hello
    | Ready
    | Formed
    | Leaving
    | Progress
    | Pong
    | Finished
    | Failed
    | Ping
    | Place
    | Change
    | Dump
    | End
    | Stop
)

_KINDS: dict[str, type[Message]] = {
    "hello": Hello,
    "ready": Ready,
    "formed": Formed,
    "leaving": Leaving,
    "progress": Progress,
    "pong": Pong,
    "finished": Finished,
    "failed": Failed,
    "ping": Ping,
    "assign": Place,
    "change": Change,
    "dump": Dump,
    "end": End,
    "stop": Stop,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


def encode(message: Message) -> dict[str, Any]:
    """The JSON object of a message."""
    values = {each.name: getattr(message, each.name) for each in fields(message)}
    given = {e.name: values[e.name] for e in fields(message) if values[e.name] != e.default}
    return {"kind": _NAMES[type(message)], **given}


def decode(values: dict[str, Any]) -> Message | None:
    """The message of a JSON object; None for a kind that a newer version added.

    Raises:
        WireError: A field is missing or has the wrong type.
    """
    cls = _KINDS.get(values["kind"])
    return None if cls is None else _build(cls, values)


def _build(cls: type[_Class], values: dict[str, Any]) -> _Class:
    given = {}
    for each in fields(cls):  # type: ignore[arg-type]  # All of them are dataclasses.
        if each.name in values:
            given[each.name] = _checked(values["kind"], each, values[each.name])
        elif each.default is MISSING:
            raise WireError(f"a message {values['kind']!r} lacks the field {each.name!r}")
    return cls(**given)


def _checked(kind: str, each: Field[Any], value: Any) -> Any:
    if each.type is float and type(value) is int:
        return float(value)
    if each.type == tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return tuple(value)
    elif type(value) is (dict if each.type == dict[str, Any] else each.type):
        return value
    raise WireError(f"the field {each.name!r} of a message {kind!r} has the wrong type")
