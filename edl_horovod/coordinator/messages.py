"""The messages between a job's coordinator and its workers, as values.

A message is one flat JSON object: its `kind` and the fields of its class. Fields with their default
values are left out. Kinds and fields of a newer version are ignored.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from edl_horovod.coordinator.wire import WireError
from edl_horovod.job.json_fields import FieldError, Format
from edl_horovod.job.outcome import Failure, Success

RANK_FIELDS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
"""Fields of a `Place`, in the order in which horovodrun's driver sends them."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message from one end of a connection to the other."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind


@dataclass(frozen=True, kw_only=True)
class Hello(Message, kind="hello"):
    """A worker's first message on a connection.

    It repeats everything that may have been lost with an earlier connection.
    """

    worker: str
    """Its incarnation: unique over the whole job, never used again."""
    host: str
    slot: int
    pid: int
    generation: int
    """The last generation in which it got a place."""
    formed: int
    """The last generation of which it was in the formed ring."""
    is_ready: bool
    is_leaving: bool
    step: int
    """Steps of the job in its state; -1 for a worker without state."""
    has_state: bool = True
    """Whether it has all of its ring's state, if it is in a formed ring."""


@dataclass(frozen=True, kw_only=True)
class Ready(Message, kind="ready"):
    """The worker is in no ring and waits for a place."""

    generation: int
    step: int
    reason: str
    """Why its ring broke; empty if it did not break."""
    unreached: tuple[str, ...] = ()
    """Other members that it could not connect to: their IP addresses, or the names of parties."""


@dataclass(frozen=True, kw_only=True)
class Formed(Message, kind="formed"):
    """The worker is in the ring of a generation."""

    generation: int
    has_state: bool = True
    """Whether it has all of the ring's state; if not, it sends the message again when it has."""


@dataclass(frozen=True, kw_only=True)
class Leaving(Message, kind="leaving"):
    """The worker asks to be left out of the next ring."""


@dataclass(frozen=True, kw_only=True)
class Progress(Message, kind="progress"):
    """How many steps of the job are done."""

    step: int


@dataclass(frozen=True, kw_only=True)
class Pong(Message, kind="pong"):
    """The answer to a ping, with what the worker's main thread does."""

    generation: int
    doing: str
    """`works`, `waits`, `joins` or `unwatched`; see `Membership.doing`."""
    phase: str
    """The same for people."""
    seconds: float
    """How long it has done so."""
    sent: float = 0.0
    """When it was sent, by the worker's monotonic clock."""


@dataclass(frozen=True, kw_only=True)
class Finished(Message, kind="finished"):
    """The job is done."""

    result: Success


@dataclass(frozen=True, kw_only=True)
class Failed(Message, kind="failed"):
    """The job cannot continue; from a worker outside the ring: the worker cannot join."""

    error: Failure


@dataclass(frozen=True, kw_only=True)
class Ping(Message, kind="ping"):
    """The coordinator asks for a sign of life.

    The times tell the worker how its clock differs from the coordinator's.
    """

    sent: float = 0.0
    """When it was sent, by the coordinator's clock."""
    heard: float = 0.0
    """When the last pong was received, by the coordinator's clock."""
    pong_sent: float = 0.0
    """When that was sent, by the worker's monotonic clock; 0 before the first one."""


@dataclass(frozen=True, kw_only=True)
class Place(Message, kind="assign"):
    """A worker's place in a ring that is about to form; ranks and sizes are as in Horovod."""

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
    """First part of the paths of our own rendezvous; empty for horovodrun's."""
    parties: tuple[str, ...] = ()
    """The parties of the ring in the order of their ranks; empty unless they encrypt."""


@dataclass(frozen=True, kw_only=True)
class Change(Message, kind="change"):
    """The worker's ring is to be replaced."""

    generation: int
    """The generation that replaces it."""


@dataclass(frozen=True, kw_only=True)
class Shortage(Message, kind="shortage"):
    """Tells a worker that waits for a place whether there are fewer than `elastic.min_np`."""

    is_short: bool


@dataclass(frozen=True, kw_only=True)
class Dump(Message, kind="dump"):
    """The worker must write the stacks of its threads into its log."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class End(Message, kind="end"):
    """The worker hangs: it must write its stacks and end at once."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Stop(Message, kind="stop"):
    """The worker is dismissed."""

    reason: str
    is_over: bool = False
    """Whether the job is over."""
    has_state: bool = False
    """Whether this worker is the one that must save the job's state."""
    error: str = ""
    """Name of the class of the error that ends a party of a federated training; see `Failure`."""
    message: str = ""
    """The text of this error."""


_FORMATS = {cls.kind: Format(cls, omits_defaults=True) for cls in Message.__subclasses__()}


def encode(message: Message) -> dict[str, Any]:
    """Encode a message as a JSON object."""
    return {"kind": message.kind, **_FORMATS[message.kind].write(message)}


def decode(values: dict[str, Any]) -> Message | None:
    """Decode a message; None for a kind that a newer version added.

    Raises:
        WireError: A field is missing or has the wrong type.
    """
    try:
        form = _FORMATS.get(values["kind"])
        return None if form is None else form.read(values)
    except FieldError as error:
        raise WireError(f"in a message {values['kind']!r} {error}") from error
