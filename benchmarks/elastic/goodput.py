"""What changing rings get done: records of a disturbed job, and the makespan of two jobs."""

import itertools
import signal
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import matplotlib as mpl

from benchmarks import stamps
from benchmarks.elastic.events import OTHER, SURVIVOR, DrivenJob, Setup, driven_job
from benchmarks.report import Line, Results
from benchmarks.run import OURS, Run, wait_for
from benchmarks.stamps import Rows
from edl_horovod.job.account import Account, RankAccount
from edl_horovod.job.events import read
from edl_horovod.job.state import summarize
from edl_horovod.ring.activity import Activity

EVERY_SECONDS = 10.0
LEAST_PERCENT = 97.0
DEVICE_SECONDS = 0.06
SLOTS, WANTED = 3, 2
"""Slots of the machine, and those that each of the two jobs wants."""
BOUND_SECONDS = 240.0
SHORTER_PERCENT = 16.0
"""What ElasticDL's report has: 809 s against 968 s."""
GOODPUT_CAPTION = "A job through a kill, a removal and a join in turn, one every 10 s"
TWO_JOBS_CAPTION = "Two jobs that each want two of three slots: gang, and elastic"
COLOURS = ("#1f5fa8", "#d9822b")
Wanted = tuple[float, int]
"""From when on how many slots are there."""
STYLE: Any = {
    "svg.hashsalt": "edl_horovod",  # The same numbers give the same file.
    "svg.fonttype": "none",
    "font.size": 11,
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def ideal_steps(wanted: list[Wanted], end: float, rates: dict[int, float]) -> float:
    """Steps that undisturbed rings of the slots that were there would have done.

    The first entry of `wanted` begins the span; `rates` are steps a second by the ring's size.
    """
    spans = itertools.pairwise([*wanted, (end, 0)])
    return sum(rates[slots] * (until - at) for (at, slots), (until, _) in spans)


def measure_goodput(
    run: Run, setup: Setup, *, num_jobs: int, undisturbed_seconds: float, seconds: float
) -> Results:
    """Measure jobs undisturbed, and then with an event every 10 seconds for so many seconds."""
    percents, accounts = [], []
    for _ in range(num_jobs):
        rates = {}
        options = {"restart_backoff_seconds": 1.0, "spares": 1}
        with driven_job(run, setup, "goodput", slots=1, **options) as job:
            for slots in (1, 2):
                if slots > 1:
                    job.want(slots)
                job.wait_for_ring(slots)
                job.wait_for(lambda slots=slots: job.num_warm() > slots, "the spare worker")
                time.sleep(setup.settle_seconds)
                began = time.monotonic()
                time.sleep(undisturbed_seconds)
                rates[slots] = stamps.steps_per_second(job.all_stamps(), began, time.monotonic())
            began = time.monotonic()
            wanted = _disturb(job, began, seconds)
            end = time.monotonic()
            all_stamps = job.all_stamps()
        done = stamps.steps_per_second(all_stamps, began, end) * (end - began)
        percents.append(100 * done / ideal_steps(wanted, end, rates))
        log = read(job.job_dir / "events.jsonl")
        accounts.append((summarize(log).account, len(all_stamps)))
    line = Line(
        f"goodput over {seconds:.0f} s, an event every 10 s",
        OURS,
        percents,
        unit="%",
        least_median=LEAST_PERCENT,
        detail=f"the last: {done:.0f} steps; undisturbed {rates[1]:.1f} a second on 1 slot, "
        f"{rates[2]:.1f} on 2; with one spare worker; a slot counts from when it is given; new "
        "workers start on the ring's cores",
    )
    rows = stamps.rate_over_time(all_stamps, began, end, every=max(1.0, seconds / 240))
    notes = draw(run, "goodput", GOODPUT_CAPTION, {"": [rows]})
    return Results(lines=[line, *account_lines(accounts)], notes=notes)


def account_lines(accounts: Sequence[tuple[Account, int]]) -> list[Line]:
    """What jobs' own accounts say, by what they miss the lives of processes, and what they cost.

    Each comes with the number of steps that all ranks of the job did.
    """
    step, totals = seconds_of_calls(), [sum(account.seconds.values()) for account, _ in accounts]
    causes = sorted(accounts[-1][0].seconds.items(), key=lambda cause: -cause[1])
    shares = ", ".join(f"{cause} {100 * spent / totals[-1]:.2f} %" for cause, spent in causes)
    lives = f"the last: {len(accounts[-1][0].ranks)} processes, {totals[-1]:.0f} rank-seconds"
    calls = f"{1e6 * step:.1f} us a step, timed apart; the last: {accounts[-1][1]} steps of ranks"
    values = [(100 * (it.goodput or 0), 100 * max(map(_missed, it.ranks))) for it, _ in accounts]
    goodputs, missed = zip(*values, strict=True)
    costs = [100 * step * steps / total for (_, steps), total in zip(accounts, totals, strict=True)]
    return [
        Line("goodput by the account of all processes", OURS, goodputs, unit="%", detail=shares),
        Line("causes beside a process' life", OURS, missed, unit="%", most=0.5, detail=lives),
        Line("share of the account itself", OURS, costs, unit="%", most=0.1, detail=calls),
    ]


def _missed(rank: RankAccount) -> float:
    return abs(1 - sum(rank.seconds.values()) / rank.age)


def seconds_of_calls() -> float:
    """What the calls of a step take that keep the account of a rank: those of `tasks.train`."""
    activity = Activity()

    def step() -> None:
        with activity.doing("works", "examples of step 7", "input"):
            pass
        with activity.doing("works", "step 7", "computing", bool):
            activity.step_ended(exchange=1e-3, applying=1e-3)
        with activity.doing("works", "the end of step 7", "between"):
            pass

    return statistics.median(timeit.repeat(step, number=100, repeat=100)) / 100


def _disturb(job: DrivenJob, began: float, seconds: float) -> list[Wanted]:
    """Kill, take the slot away, give it back, and so on; returns what slots there were."""
    wanted = [(began, 2)]
    for number in range(int(seconds / EVERY_SECONDS)):
        _sleep_until(began + (number + 0.5) * EVERY_SECONDS)
        event = number % 3
        if event == 0:
            # One of the ring; on a machine too slow for its starts, one that gets warm.
            others = [slot for slot in job.members() if slot != SURVIVOR] or [OTHER]
            job.send(others[0], signal.SIGKILL)
            continue
        slots = 1 if event == 1 else 2
        job.want(slots)
        wanted.append((time.monotonic(), slots))
    _sleep_until(began + seconds)
    return wanted


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def measure_two_jobs(run: Run, setup: Setup) -> Results:
    """Run two jobs that each want two of three slots: one after the other, or elastic.

    The experiment of ElasticDL's report (docs/benchmark/allreduce/report.md in its repository), in
    small. A step waits as for an accelerator of its own, 60 ms on one rank and 30 on each of two:
    three ranks that compute would share two cores, and no scheduler could gain from that.
    """

    def started(name: str, slots: int) -> AbstractContextManager[DrivenJob]:
        options = {"max_steps": run.amount(300, 100), "device_seconds": DEVICE_SECONDS}
        return driven_job(run, setup, name, slots=slots, **options)

    def wait_for_end(job: DrivenJob) -> None:
        wait_for(lambda: job.child.exit_code == 0 or None, "a job's end", seconds=BOUND_SECONDS)

    def gang() -> list[DrivenJob]:
        """The second job waits until two slots are free: until the first one has ended."""
        jobs = []
        for number in range(2):
            with started(f"gang-{number}", WANTED) as job:
                wait_for_end(job)
                jobs.append(job)
        return jobs

    def elastic() -> list[DrivenJob]:
        """The second job takes the third slot at once, and another when the first has ended."""
        with ExitStack() as stack:
            first = stack.enter_context(started("elastic-0", WANTED))
            second = stack.enter_context(started("elastic-1", SLOTS - WANTED))
            wait_for_end(first)
            second.want(WANTED)
            wait_for_end(second)
        return [first, second]

    gang_seconds, gang_rows = _timed(gang)
    elastic_seconds, elastic_rows = _timed(elastic)
    line = Line(
        "two jobs on three slots: makespan shorter than gang by",
        OURS,
        (100 * (1 - elastic_seconds / gang_seconds),),
        unit="%",
        least_median=SHORTER_PERCENT,
        detail=f"{elastic_seconds:.1f} s elastic, {gang_seconds:.1f} s gang",
    )
    columns = {
        f"gang: {gang_seconds:.0f} s": gang_rows,
        f"elastic: {elastic_seconds:.0f} s": elastic_rows,
    }
    return Results(lines=[line], notes=draw(run, "two-jobs", TWO_JOBS_CAPTION, columns))


def _timed(way: Callable[[], list[DrivenJob]]) -> tuple[float, list[Rows]]:
    began = time.monotonic()
    jobs = way()
    end = time.monotonic()
    rows = [stamps.rate_over_time(job.all_stamps(), began, end, every=0.5) for job in jobs]
    return end - began, rows


def draw(
    run: Run,
    name: str,
    caption: str,
    columns: dict[str, list[Rows]],
    *,
    labels: Sequence[str] = ("job 1", "job 2"),
    value: str = "steps/s",
    scale: str = "linear",
    marks: Mapping[str, float] | None = None,
) -> list[str]:
    """Draw a value and the ring's size over time, a column for each title, as SVG.

    A column has the rows of some jobs, with labels in that order; marks are moments with a text.
    """
    if run.pictures is None:
        return []
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 4.5), facecolor="white", layout="constrained")
        options = {"height_ratios": (2, 1), "sharex": True, "sharey": "row", "squeeze": False}
        axes = figure.subplots(2, len(columns), **options)
        for column, (title, jobs) in enumerate(columns.items()):
            for label, colour, rows in zip(labels, COLOURS, jobs, strict=False):
                times, values, sizes = zip(*rows, strict=True)
                # The first one is wider, so that it is seen where another one has the same values.
                line: Any = {"color": colour, "linewidth": 3 if colour == COLOURS[0] else 1.5}
                axes[0, column].plot(times, values, label=label, **line)
                axes[1, column].step(times, sizes, where="post", **line)
            axes[0, column].set_title(title)
            axes[1, column].set_xlabel("seconds")
        axes[0, 0].set_ylabel(value)
        axes[0, 0].set_yscale(scale)
        axes[1, 0].set_ylabel("ranks that train")
        axes[1, 0].yaxis.get_major_locator().set_params(integer=True)
        axes[1, 0].set_ylim(bottom=0)
        if scale == "linear":
            axes[0, 0].set_ylim(bottom=0)
        else:
            axes[0, 0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes[0, 0].yaxis.set_major_formatter("{x:g}")
            axes[0, 0].minorticks_off()
        for number, (text, at) in enumerate((marks or {}).items()):
            for axis in axes.flat:
                axis.axvline(at, color="grey", linestyle=":", linewidth=1)
            place = {"xytext": (4, -15 * number), "textcoords": "offset points", "va": "top"}
            axes[0, 0].annotate(text, (at, 1), xycoords=("data", "axes fraction"), **place)
        if any(len(jobs) > 1 for jobs in columns.values()):
            axes[0, -1].legend(frameon=False, loc="upper right")
        file = f"benchmarks-elastic-{name}.svg"
        figure.savefig(run.pictures / file, metadata={"Date": None})
    return [f"![{caption}]({file})", caption]
