"""A job's state as metrics for Prometheus, in its text format.

Names and units follow https://prometheus.io/docs/practices/naming/.
"""

from collections.abc import Iterator, Mapping

from edl_horovod.displays.page.snapshot import JobSnapshot
from edl_horovod.errors import MissingDependency, how_to_install

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as e:
    raise MissingDependency(
        f"Metrics of jobs need a package that is not installed: {e}. To install it where this"
        f" command runs, {how_to_install('dashboard')}"
    ) from e

__all__ = ["CONTENT_TYPE_LATEST", "STATES", "RankSeconds", "exposition"]

STATES = (
    *("starting", "waiting", "running", "stopping"),
    *("suspended", "finished", "failed", "lost", "unknown"),
)
"""Those of `edl_job_state`; a launch target's own states are `unknown`, but for these."""


class RankSeconds:
    """The rank-seconds of jobs by cause as counters, which must not fall.

    Those of a process that was missed are lost until it writes its next account, where it returns.
    """

    def __init__(self) -> None:
        self._highest: dict[str, tuple[float | None, dict[str, float]]] = {}
        """By the name of the job: when it was created or began, and its values."""

    def of(self, name: str, snapshot: JobSnapshot) -> dict[str, float]:
        """The largest values of a job so far."""
        if snapshot.state is None:
            return {}
        began = snapshot.began if snapshot.details is None else snapshot.details.created
        last_began, highest = self._highest.get(name, (None, {}))
        highest = dict(highest) if last_began == began else {}
        for cause, seconds in snapshot.state.account.seconds.items():
            highest[cause] = max(seconds, highest.get(cause, 0.0))
        self._highest[name] = began, highest
        return highest


def exposition(snapshots: Mapping[str, JobSnapshot], rank_seconds: RankSeconds) -> bytes:
    """The metrics of jobs at one moment.

    Args:
        snapshots: The state of each job by its name, which is the label `job_name`; without a
            state only `edl_up` is there.
        rank_seconds: What was given before.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshots(snapshots, rank_seconds))
    return bytes(generate_latest(registry))


_Family = GaugeMetricFamily | CounterMetricFamily


class _Snapshots(Collector):
    """Gives the metrics of snapshots to the client of Prometheus, which writes them."""

    def __init__(self, snapshots: Mapping[str, JobSnapshot], rank_seconds: RankSeconds) -> None:
        self._snapshots, self._rank_seconds = snapshots, rank_seconds

    def collect(self) -> Iterator[Metric]:
        # The text format has each family once, with the samples of all jobs.
        families: dict[str, Metric] = {}
        for name, snapshot in self._snapshots.items():
            seconds = self._rank_seconds.of(name, snapshot)
            for family in _Snapshot(name, snapshot, seconds).collect():
                if family.name in families:
                    families[family.name].samples += family.samples
                else:
                    families[family.name] = family
        yield from families.values()


class _Snapshot:
    """The metrics of one snapshot."""

    def __init__(self, name: str, snapshot: JobSnapshot, rank_seconds: dict[str, float]) -> None:
        self._name, self._snapshot = _readable(name), snapshot
        self._rank_seconds = rank_seconds

    def collect(self) -> Iterator[Metric]:
        state, details = self._snapshot.state, self._snapshot.details
        yield self._gauge("up", "Whether the job's state is known now", not self._snapshot.problem)
        if state is None:
            return
        present = (details or state).state
        present = present if present in STATES else "unknown"
        text = "1 for the state that the job is in"
        states = GaugeMetricFamily("edl_job_state", text, labels=["job_name", "state"])
        yield self._add_all(states, {label: float(label == present) for label in STATES})
        yield self._gauge("steps_done", "Steps of the training that are done", state.step)
        yield self._gauge("steps", "Steps of the whole training", state.total_steps)
        yield self._gauge("records_done", "Records that are done", state.records)
        if state.total_records:
            yield self._gauge(
                "records", "Records of a whole job without steps", state.total_records
            )
        if state.loss is not None:
            yield self._gauge("loss", "Loss of the last reported step", state.loss)
        is_over = self._snapshot.is_over
        if state.records_per_second is not None and not is_over:
            text = "Records per second between the last two reports"
            yield self._gauge("records_per_second", text, state.records_per_second)
        if state.seconds_left is not None and not is_over:
            yield self._gauge("left_seconds", "Estimated time to the end", state.seconds_left)
        yield self._gauge("ring_ranks", "Ranks in the ring", 0 if is_over else state.size)
        yield self._gauge("ring_generation", "Number of the ring", state.generation)
        yield self._gauge("spare_workers", "Warm workers outside of the ring", len(state.spares))
        resets = CounterMetricFamily("edl_resets", "Changes of the ring", labels=["job_name"])
        yield self._add_all(resets, {"": state.num_resets})
        text = "Metrics of the last evaluation"
        evaluation = GaugeMetricFamily("edl_evaluation", text, labels=["job_name", "metric"])
        yield self._add_all(evaluation, state.metrics)
        text = "Time of all ranks by its cause"
        seconds = CounterMetricFamily("edl_rank_seconds", text, labels=["job_name", "cause"])
        yield self._add_all(seconds, self._rank_seconds)
        if state.account.goodput is not None:
            text = "Share of the ranks' time that went into steps which count"
            yield self._gauge("goodput_ratio", text, state.account.goodput)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return self._add_all(
            GaugeMetricFamily(f"edl_{name}", text, labels=["job_name"]), {"": value}
        )

    def _add_all(self, metric: _Family, values: Mapping[str, float]) -> Metric:
        """Add values by the second label, which is not there for a single value."""
        for label, value in values.items():
            metric.add_metric([self._name, *([_readable(label)] if label else [])], value)
        return metric


def _readable(name: str) -> str:
    """A name in UTF-8, which cannot encode the lone surrogates that JSON may contain."""
    return name.encode(errors="backslashreplace").decode()
