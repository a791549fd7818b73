"""`python -m benchmarks.elastic`: all kinds of events, a table and two pictures."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.elastic import events, forming, goodput
from benchmarks.elastic.events import Setup, keras_setup, torch_setup
from benchmarks.report import (
    Line,
    Page,
    Results,
    Section,
    add_torch_python,
    measure,
    over,
    parser_of,
)
from benchmarks.run import OURS, PLAIN, Run

JOIN_RATIO = 1 / 30
COST_PERCENT = 1.0
METHOD = """\
- All sides train the convolutional model of 0.7 M parameters (`benchmarks/models/cnn.py`) with a
  global batch of 128 and one thread a rank. Every rank writes down the end of every step. A stall
  is the longest gap between two steps around the event, on the rank that stays, less its median
  step.
- Ours is the real job: `edl_horovod.supervisor`, its coordinator, its workers, records from files.
  It is driven by its hosts file and by signals. Slots that fail again start again at once
  (`elastic.restart_backoff_seconds=0.01`); all other settings are the defaults.
- Plain Horovod is a loop as its documents teach it, on Keras 3, under `horovodrun` with a discovery
  script, on the Horovod that we build; it commits every 10 steps. Each newcomer has a host name of
  its own, because Horovod does not use a host again that failed.
- TorchElastic is two `torchrun` agents with one worker each, DDP on Gloo, a checkpoint every 50
  steps, and `last_call_timeout=1` instead of 30 s. It starts all workers again at each event: the
  stall is the gap between two steps of the agent that stays. `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`
  is set, because without it a second agent could not join the first (torch 2.13).
- Plain Horovod trains on one batch in memory, so that no input pipeline is part of its stall;
  TorchElastic's workers load 6 MB of arrays when they start.
- [The benchmarks over networks](benchmarks-network.md) have the same events in PyTorch."""


def _in_keras(part: Callable[[Run, Setup], Results]) -> Callable[[Run], Results]:
    return lambda run: part(run, keras_setup(run))


def measure_step_cost(run: Run) -> Results:
    """What commit and membership check cost a step, by clocks inside the real job."""
    steps = {"warmup_steps": 50, "timed_steps": run.amount(150, 100)}
    work = replace(keras_setup(run).work, **steps)
    jobs = [run.job(work, 2, is_timed=True) for _ in range(run.amount(3, 1))]
    event = "commit, membership check and activity markers, of a step"
    shares = [100 * numbers["elastic_share"] for numbers in jobs]
    middle = sorted(jobs, key=lambda numbers: numbers["elastic_microseconds"])[len(jobs) // 2]
    microseconds, step = middle["elastic_microseconds"], 1e3 * middle["step_seconds"]
    detail = f"{microseconds:.0f} us of {step:.1f} ms, on 2 ranks"
    line = Line(event, OURS, shares, unit="%", most_median=COST_PERCENT, detail=detail)
    return Results(lines=[line])


def measure_goodput(run: Run) -> Results:
    """Measure three jobs for two minutes each."""
    amounts: dict[str, Any] = {
        "num_jobs": run.amount(3, 1),
        "undisturbed_seconds": run.amount(10.0, 5.0),
        "seconds": run.amount(120.0, 40.0),
    }
    return goodput.measure_goodput(run, keras_setup(run), **amounts)


def join_ratio(lines: Sequence[Line]) -> Sequence[Line]:
    """Our joins over those of plain Horovod, where both were measured."""
    joins = {line.side: line for line in lines if line.event == events.JOIN}
    if OURS not in joins or PLAIN not in joins:
        return []
    event = "a worker joins: ours over plain Horovod's"
    return [over(event, joins[OURS], joins[PLAIN], most_median=JOIN_RATIO)]


PAGE = Page(
    title="Benchmarks of elasticity",
    module="benchmarks.elastic",
    introduction="What changes of a ring cost, beside plain elastic Horovod and TorchElastic.",
    sections=[
        Section(
            title="Events",
            method=METHOD,
            parts={
                "ring_events": _in_keras(events.measure_ours),
                "horovod_events": _in_keras(events.measure_horovod),
                "torch_events": lambda run: events.measure_torchrun(
                    run, torch_setup(run, run.amount(5, 1))
                ),
                "forming_events": _in_keras(forming.measure_failures),
                "warm_horovodrun": _in_keras(events.measure_warm_horovodrun),
                "forming_rings": forming.measure_rings,
                "many_ranks": forming.measure_many_ranks,
                "step_cost": measure_step_cost,
            },
            more_lines=join_ratio,
        ),
        Section(
            title="Goodput",
            method="Steps of a disturbed job over those that undisturbed rings of the same slots "
            "would have done.",
            parts={"goodput": measure_goodput},
        ),
        Section(
            title="Two jobs on three slots",
            method="The experiment of ElasticDL's report, in small: each job wants two slots. A "
            "step waits as for an accelerator, 60 ms on one rank and 30 on each of two.",
            parts={"two_jobs": _in_keras(goodput.measure_two_jobs)},
        ),
    ],
)


def main() -> int:
    """Run what was asked for; returns 1 where a target is missed."""
    parser = parser_of(PAGE)
    add_torch_python(parser)
    args = parser.parse_args()
    pictures = args.write.parent if args.write is not None else None
    torch_python = Path(args.torch_python)
    options = {"is_quick": args.quick, "torch_python": torch_python, "pictures": pictures}
    return measure(PAGE, args, lambda folder: Run(folder, **options))


if __name__ == "__main__":
    sys.exit(main())
