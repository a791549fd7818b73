"""`python -m benchmarks.elastic`: all kinds of events, a table and two pictures."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.elastic import events, forming, goodput, three_ranks
from benchmarks.elastic.events import Setup, keras_setup, torch_setup
from benchmarks.report import Line, Page, Part, Results, add_peers, measure, over, parser_of
from benchmarks.run import OURS, PLAIN, Run

JOIN_RATIO = 1 / 30
COST_PERCENT = 1.0


def _in_keras(part: Callable[[Run, Setup], Results | list[Line]]) -> Part:
    return lambda run: part(run, keras_setup(run))


def measure_step_cost(run: Run) -> list[Line]:
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
    return [line]


def measure_goodput(run: Run, seconds: float | None = None) -> Results:
    """Measure three jobs for two minutes each, or one for so many seconds."""
    num_jobs = 1 if seconds else run.amount(3, 1)
    options = {"num_jobs": num_jobs, "undisturbed_seconds": run.amount(10.0, 5.0)}
    seconds = seconds or run.amount(120.0, 40.0)
    return goodput.measure_goodput(run, keras_setup(run), seconds=seconds, **options)


def join_ratio(lines: Sequence[Line]) -> Sequence[Line]:
    """Our joins over those of plain Horovod, where both were measured."""
    joins = {line.side: line for line in lines if line.event == events.JOIN}
    if OURS not in joins or PLAIN not in joins:
        return []
    event = "a worker joins: ours over plain Horovod's"
    return [over(event, joins[OURS], joins[PLAIN], most_median=JOIN_RATIO)]


PAGE = Page(
    module="benchmarks.elastic",
    description="What changes of a ring cost, beside plain elastic Horovod and TorchElastic.",
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
        "goodput": measure_goodput,
        "two_jobs": _in_keras(goodput.measure_two_jobs),
        "three_ranks": _in_keras(three_ranks.measure),
    },
    more_lines=join_ratio,
)


def main() -> int:
    """Run what was asked for; returns 1 where a target is missed."""
    parser = parser_of(PAGE)
    add_peers(parser)
    text = "measure goodput over one job that is disturbed so long: two hours are 7200"
    parser.add_argument("--goodput-seconds", type=float, metavar="SECONDS", help=text)
    args = parser.parse_args()
    parts = {**PAGE.parts, "goodput": lambda run: measure_goodput(run, args.goodput_seconds)}
    pictures = args.write.parent if args.write is not None else None
    options = {"is_quick": args.quick, "torch_python": args.torch_python, "pictures": pictures}
    options |= {"released_horovod": args.released_horovod}
    return measure(replace(PAGE, parts=parts), args, lambda folder: Run(folder, **options))


if __name__ == "__main__":
    sys.exit(main())
