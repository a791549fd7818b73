"""The proof from a ledger that each record was applied exactly once, whatever happened.

A state is a step number, the number of records taken, and the variables that belong to them; they
travel together. So the proof is an induction over rings. A ring starts from a state that an earlier
ring left (the digest says which) and does one step after the other; the records that its members
give to a step are exactly those that the data plan assigns to it, from where the ring before it
ended. Then the last ring's state contains each of its steps once. A step that no later ring started
from (all members that had it died) is done again and counts once.

Entries may be missing, because a disk was full or a file is damaged. Where the last state contains
the step that they belong to, nothing is proven, but nothing is contradicted either.
"""

import contextlib
import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any, TypeVar

import numpy as np

from edl_horovod.config.tasks import num_lanes, training_batch
from edl_horovod.errors import ConfigError
from edl_horovod.job.directory import JobDir
from edl_horovod.job.earlier import with_checkpoint_lanes
from edl_horovod.ledger.files import Begin, Done, Entry, Give, Leave, Source, key, read
from edl_horovod.records.plan import DataPlan, EpochOrder, Ids, StepSpans

MOST_VIOLATIONS = 100
"""Violations that are listed; further ones are only counted."""
MOST_RECORDS = 10
"""Records that one violation lists."""

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
"""Keeps TensorFlow's notices from the terminal, and the GPU free: nothing is computed here."""


@dataclass(frozen=True)
class Violation:
    """A fact in the ledger that contradicts the proof, or what the proof lacks."""

    kind: str
    """`missing`, `doubled`, `foreign` (records); `rolled back`, `differs` (states); `gap` (entries
    that are not there)."""
    generation: int
    step: int
    rank: int | None
    """None if the violation concerns the whole ring."""
    records: tuple[int, ...]
    """The first of the records."""
    message: str


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a ledger shows."""

    violations: tuple[Violation, ...]
    num_violations: int
    num_gaps: int
    """Violations that are no more than missing entries."""
    is_finished: bool
    """Whether a ring reported the end of the job; if not, the proof covers the steps so far."""
    num_steps: int
    """Steps in the last ring's state."""
    num_epochs: int
    """Complete epochs: each record of the data was applied this many times."""
    num_records: int
    """Records applied, over all epochs."""
    num_rings: int
    num_redone_steps: int
    """Steps that were lost with all ranks that had them, and then done again."""
    restored: tuple[int, ...]
    """Steps at which a ring started from a checkpoint: no earlier ring had left that state."""
    digest: str
    """Digest of the variables with which the ranks left the last ring; empty if none left it."""
    num_last_ranks: int
    """Ranks that left the last ring with these variables."""
    num_damaged: int
    """Damaged lines, such as the last line of a killed worker."""

    @property
    def is_good(self) -> bool:
        """Whether each record of the steps so far was applied exactly once."""
        return self.num_violations == 0

    def as_json(self) -> dict[str, Any]:
        """The proof for programs."""
        return {"is_good": self.is_good, **dataclasses.asdict(self)}


def prove(job_dir: JobDir) -> Proof:
    """The proof from the ledger of a job that has ended, or of what a running one has done so far.

    Raises:
        ConfigError: The job has no ledger.
        DataError: Its data is not there any more, so it is not known what it should have applied.
    """
    from edl_horovod.models.lookup import require_zoo
    from edl_horovod.models.modules import make_importable
    from edl_horovod.records.job_data import open_source, plan_of
    from edl_horovod.records.sources.table import kind_of

    config = with_checkpoint_lanes(job_dir.read_config())
    if config.debug.ledger and not any(job_dir.ledger.glob("*.jsonl")):
        problem = "The job's ledger has no entries yet: no rank of it has reached the first step."
        raise ConfigError(problem, received=repr(str(job_dir)), hint=f"See edl status {job_dir}")
    if not job_dir.ledger.is_dir():
        hint = "Only a training that was started with debug.ledger=true has one."
        raise ConfigError("The job has no ledger.", received=repr(str(job_dir)), hint=hint)
    if kind_of(config.data).runs_user_code:
        make_importable(require_zoo(config.model_zoo).absolute())
    # What the user's own data imports reads these variables while it is imported.
    with (
        _environment(_QUIET),
        open_source(config.data, config.data_plan, folders=job_dir.folders) as source,
    ):
        lanes, batch = num_lanes(config), training_batch(config)
        plan = plan_of(source, config.data_plan, num_lanes=lanes, is_training=True, **batch)
    return check(read(job_dir.ledger), plan)


def check(entries: Iterable[tuple[Source, Entry]], plan: DataPlan) -> Proof:
    """Check a ledger in one pass that holds the records of one step in memory."""
    return _Check(plan).run(entries)


_EntryT = TypeVar("_EntryT", Begin, Give, Done, Leave)


@dataclass
class _Ring:
    """A ring as its members' entries describe it."""

    number: int
    generation: int
    size: int
    start: int
    spans: StepSpans
    """What its steps take."""
    digest: str
    ranks: dict[int, int | None] = field(default_factory=dict)
    """Rank of each source, by the `id` of the source."""
    done_by: dict[int, int] = field(default_factory=dict)
    """Steps that are done in each source's state."""
    end: int = 0
    """Steps that are done in its most advanced member's state."""
    parent: int | None = None
    """The ring whose state it started from; None for the first state and for a checkpoint."""
    is_over: bool = False
    gaps: list[tuple[int, int | None, str]] = field(default_factory=list)
    """Steps whose entries are missing, with the rank and what is missing."""
    left: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Digests that members left with, by step."""


class _Check:
    """One pass over a ledger; each entry comes with the `id` of its source, a worker's file."""

    def __init__(self, plan: DataPlan) -> None:
        self._plan = plan
        self._rings: dict[int, _Ring] = {}
        self._left_by: dict[tuple[int, str], int] = {}
        """The ring that left a state, by the number of its steps and its digest."""
        self._restored: set[int] = set()
        self._violations: list[Violation] = []
        self._num_violations = self._num_gaps = 0
        self._order: tuple[int, EpochOrder] | None = None

    def run(self, entries: Iterable[tuple[Source, Entry]]) -> Proof:
        sources: dict[int, Source] = {}
        for (number, _), group in groupby(entries, key=lambda pair: key(pair[1])):
            of_ring = list(group)
            sources |= {id(source): source for source, _ in of_ring}
            begins, gives = _of(Begin, of_ring), _of(Give, of_ring)
            dones, leaves = _of(Done, of_ring), _of(Leave, of_ring)
            if begins:
                self._begin(number, begins)
            ring = self._rings.get(number)
            if ring is None:
                # All lines about its start are damaged, so its steps are missing in the lineage.
                continue
            if dones:
                self._step(ring, gives, dones)
            if leaves:
                self._leave(ring, leaves)
        return self._proof(sum(source.num_damaged for source in sources.values()))

    # -- a ring's begin and end

    def _begin(self, number: int, begins: Sequence[tuple[int, Begin]]) -> None:
        _, first = begins[0]
        size, step = first.size, first.step
        spans = self._plan.spans(size, first_step=step, first_record=first.records)
        ring = _Ring(number, first.generation, size, step, spans, first.digest, end=step)
        self._rings[number] = ring
        for source, begin in begins:
            if begin.rank in ring.ranks.values():
                self._note(ring, "differs", first.step, begin.rank, "two workers have one rank")
            ring.ranks[source], ring.done_by[source] = begin.rank, begin.step
            if replace(begin, rank=first.rank, own_step=first.own_step) != first:
                message = "a member began with another state than the others"
                self._note(ring, "differs", begin.step, begin.rank, message)
        most, rank = max((begin.own_step, begin.rank) for _, begin in begins)
        if most > ring.start:
            message = f"a member had done {most} steps, and the ring went back to {ring.start}"
            self._note(ring, "rolled back", ring.start, rank, message)
        ring.parent = self._left_by.get((ring.start, ring.digest))
        if ring.parent is not None or (ring.start == 0 and most < 0):
            return
        if ring.start == max((r.end for r in self._rings.values() if r.is_over), default=None):
            # A rank was lost at the very end, after the leader may have restored the best weights.
            ring.parent = max(r.number for r in self._rings.values() if r.is_over)
            return
        if most == ring.start and any(step == ring.start for step, _ in self._left_by):
            message = "the ring's state is not the one that its member had left"
            self._note(ring, "differs", ring.start, rank, message)
        elif most == ring.start:
            message = "it is not known with which state a member came"
            self._note(ring, "gap", ring.start, rank, message)
        self._restore(ring)

    def _restore(self, ring: _Ring) -> None:
        """Find the ring that did the steps of a state that was read from a checkpoint."""
        self._restored.add(ring.number)
        taken = ring.spans.records_before(ring.start)
        able = [
            candidate.number
            for candidate in self._rings.values()
            if candidate.start <= ring.start <= candidate.end
            and candidate.spans.records_before(ring.start) == taken
        ]
        able.remove(ring.number)
        if able:
            ring.parent = max(able)
        elif ring.start > 0:
            message = f"nothing in the ledger says how the first {ring.start} steps were done"
            self._note(ring, "gap", 0, None, message)

    def _leave(self, ring: _Ring, leaves: Sequence[tuple[int, Leave]]) -> None:
        """Check the entries of members that left a ring, and note the states that they left with.

        A later ring whose digest is among these states continues this ring; see `_begin`.
        """
        for source, leave in leaves:
            rank = ring.ranks.get(source)
            if leave.step < ring.done_by.get(source, leave.step):
                message = f"a member left with {leave.step} steps, and had said that more are done"
                self._note(ring, "rolled back", leave.step, rank, message)
            if leave.step > ring.end:
                self._skip(ring, leave.step)
            known = ring.left[leave.step]
            if any(digest != leave.digest for digest in known):
                message = "ranks left the same step with different variables"
                self._note(ring, "differs", leave.step, rank, message)
            known.append(leave.digest)
            self._left_by[leave.step, leave.digest] = ring.number
            ring.is_over = ring.is_over or leave.is_over

    # -- a step

    def _step(
        self, ring: _Ring, gives: Sequence[tuple[int, Give]], dones: Sequence[tuple[int, Done]]
    ) -> None:
        step = dones[0][1].step
        if step < ring.start:
            message = f"a step was done in a ring that began at step {ring.start}"
            self._note(ring, "rolled back", step, ring.ranks.get(dones[0][0]), message)
            return
        if step > ring.end:
            self._skip(ring, step)
        ring.end = step + 1
        for source, _ in dones:
            ring.done_by[source] = step + 1
        sums = {(done.examples, repr(done.loss)) for _, done in dones}
        if len(sums) > 1:
            self._note(ring, "differs", step, None, "ranks counted different examples or losses")
        self._check_records(ring, step, gives)

    def _skip(self, ring: _Ring, step: int) -> None:
        """Note that the entries of the steps before this one are missing."""
        message = f"no rank said that the steps before {step} are done"
        ring.gaps.append((ring.end, None, message))
        ring.end = step

    def _check_records(self, ring: _Ring, step: int, gives: Sequence[tuple[int, Give]]) -> None:
        expected = np.sort(self._expected(ring, step, range(self._plan.num_lanes)))
        parts = [give.ids for _, give in gives]
        read_ids = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        if np.array_equal(read_ids, expected):
            return
        known = {ring.ranks.get(source) for source, _ in gives}
        for rank in range(ring.size):
            lanes = self._plan.lanes_of(rank, ring.size)
            lost = np.setdiff1d(self._expected(ring, step, lanes), read_ids)
            if rank in known:
                self._note_records(ring, "missing", step, rank, lost)
            elif len(lost):
                ring.gaps.append((step, rank, "it is not known which records the rank gave"))
        twice = np.unique(read_ids[1:][read_ids[1:] == read_ids[:-1]])
        for source, give in gives:
            giver, foreign = ring.ranks.get(source), np.setdiff1d(give.ids, expected)
            self._note_records(ring, "doubled", step, giver, np.intersect1d(give.ids, twice))
            self._note_records(ring, "foreign", step, giver, foreign)

    def _expected(self, ring: _Ring, step: int, lanes: range) -> Ids:
        span = ring.spans[step]
        if self._order is None or self._order[0] != span.epoch:
            self._order = span.epoch, self._plan.order(span.epoch)
        return self._order[1].between(span.first, span.last, lanes)

    # -- violations and the proof

    def _note_records(
        self, ring: _Ring, kind: str, step: int, rank: int | None, records: Ids
    ) -> None:
        if len(records):
            first = tuple(int(record) for record in records[:MOST_RECORDS])
            self._note(ring, kind, step, rank, f"{len(records)} records are {kind}", first)

    def _note(
        self,
        ring: _Ring,
        kind: str,
        step: int,
        rank: int | None,
        message: str,
        records: tuple[int, ...] = (),
    ) -> None:
        self._num_violations += 1
        self._num_gaps += kind == "gap"
        if len(self._violations) < MOST_VIOLATIONS:
            self._violations.append(Violation(kind, ring.generation, step, rank, records, message))

    def _proof(self, num_damaged: int) -> Proof:
        lineage = self._lineage()
        last = lineage[0] if lineage else None
        num_steps = last.end if last is not None else 0
        num_records = last.spans.records_before(num_steps) if last is not None else 0
        digests = last.left.get(num_steps, []) if last is not None else []
        done = sum(ring.end - ring.start for ring in self._rings.values())
        known_from = min((ring.start for ring in lineage), default=0)
        return Proof(
            violations=tuple(self._violations),
            num_violations=self._num_violations,
            num_gaps=self._num_gaps,
            is_finished=last is not None and last.is_over,
            num_steps=num_steps,
            num_epochs=num_records // self._plan.num_records,
            num_records=num_records,
            num_rings=len(self._rings),
            num_redone_steps=done - (num_steps - known_from),
            restored=tuple(sorted(ring.start for ring in lineage if ring.number in self._restored)),
            digest=digests[0] if digests else "",
            num_last_ranks=len(digests),
            num_damaged=num_damaged,
        )

    def _lineage(self) -> list[_Ring]:
        """The rings that led to the last state, the last one first."""
        over = [ring for ring in self._rings.values() if ring.is_over]
        candidates = over or list(self._rings.values())
        if not candidates:
            return []
        lineage = [max(candidates, key=lambda ring: (ring.end, ring.number))]
        while (parent := lineage[-1].parent) is not None:
            lineage.append(self._rings[parent])
        self._note_gaps(lineage[0], lineage[0].end)
        for later, earlier in pairwise(lineage):
            if earlier.end < later.start:
                self._skip(earlier, later.start)
            self._note_gaps(earlier, later.start)
            self._check_place(later, earlier.spans.records_before(later.start))
        if lineage[-1].start == 0:
            self._check_place(lineage[-1], 0)
        return lineage

    def _note_gaps(self, ring: _Ring, end: int) -> None:
        """Name the missing entries of the steps that a later state contains."""
        for step, rank, message in ring.gaps:
            if step < end:
                self._note(ring, "gap", step, rank, message)

    def _check_place(self, ring: _Ring, taken: int) -> None:
        """Check that a ring began with the record after the last one that was applied before."""
        began = ring.spans.records_before(ring.start)
        if began != taken:
            message = f"the ring began after {began} records, and {taken} had been taken"
            self._note(ring, "gap", ring.start, None, message)


def _of(kind: type[_EntryT], entries: Sequence[tuple[Source, Entry]]) -> list[tuple[int, _EntryT]]:
    return [(id(source), entry) for source, entry in entries if isinstance(entry, kind)]


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables that the user has not set, for a while."""
    new = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in new})
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
