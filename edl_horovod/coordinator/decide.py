"""Pure functions that decide who is in the next ring, and as which rank (D8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl_horovod.coordinator.messages import Place
from edl_horovod.job.hosts import num_workers


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A worker that could be in the ring."""

    worker: str
    """The incarnation: unique over the whole job, never used again."""
    host: str
    slot: int
    order: int
    """Workers are numbered as they come; a lower number is an older worker."""


def choose_members(
    candidates: Sequence[Candidate],
    wanted: Mapping[str, int],
    current: Sequence[str],
    most: int,
    *,
    spares: int = 0,
) -> tuple[str, ...]:
    """The workers of the next ring, in the order of their ranks; maybe fewer than a ring needs.

    Members take precedence over newcomers: a worker that trains is not replaced by one that waits.
    Hosts are ordered by their oldest worker, so rank 0 has been in the job for longest. A slot has
    one worker at a time: its successor waits until a leaving worker has left. But any worker of a
    host may take any of its places, so that a spare replaces a lost worker at once.

    Args:
        candidates: Workers that are warm (or in the ring), alive and not leaving.
        wanted: Host name to number of slots, as host discovery gives them.
        current: Workers of the ring now.
        most: Most ranks that a ring may have.
        spares: Workers of a host beyond its slots.
    """
    allowed = [c for c in candidates if c.slot < num_workers(wanted.get(c.host, 0), spares)]
    by_slot: dict[tuple[str, int], Candidate] = {}
    members = frozenset(current)
    for candidate in sorted(allowed, key=lambda c: (c.worker not in members, c.order)):
        by_slot.setdefault((candidate.host, candidate.slot), candidate)
    left = dict(wanted)
    chosen = []
    for candidate in by_slot.values():
        if left[candidate.host] > 0:
            left[candidate.host] -= 1
            chosen.append(candidate)
    return in_order_of_ranks(chosen[:most])


def in_order_of_ranks(members: Sequence[Candidate]) -> tuple[str, ...]:
    """Order members by rank: host by host, the hosts in the order of their oldest workers."""
    host_age: dict[str, int] = {}
    for member in sorted(members, key=lambda c: c.order):
        host_age.setdefault(member.host, member.order)
    ranked = sorted(members, key=lambda c: (host_age[c.host], c.order))
    return tuple(member.worker for member in ranked)


def assign_ranks(
    members: Sequence[Candidate],
    *,
    generation: int,
    step: int,
    rendezvous_address: str,
    rendezvous_port: int,
    rendezvous_token: str,
) -> list[Place]:
    """Compute the places of a ring: ranks, local ranks, cross ranks and the rendezvous.

    The members must be in the order of their ranks.
    """
    by_host: dict[str, list[str]] = {}
    across: dict[int, list[str]] = {}
    places = []
    for member in members:
        neighbours = by_host.setdefault(member.host, [])
        places.append((member, len(neighbours)))
        neighbours.append(member.worker)
    for workers in by_host.values():
        for local_rank, worker in enumerate(workers):
            across.setdefault(local_rank, []).append(worker)
    cross_ranks = {w: cross for workers in across.values() for cross, w in enumerate(workers)}
    return [
        Place(
            worker=member.worker,
            rank=rank,
            size=len(members),
            local_rank=local_rank,
            local_size=len(by_host[member.host]),
            cross_rank=cross_ranks[member.worker],
            cross_size=len(across[local_rank]),
            generation=generation,
            step=step,
            host=member.host,
            rendezvous_address=rendezvous_address,
            rendezvous_port=rendezvous_port,
            rendezvous_token=rendezvous_token,
        )
        for rank, (member, local_rank) in enumerate(places)
    ]
