"""`edl chaos`: kill, stop, add and remove workers of a running job, and report the cost."""

import dataclasses
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edl_horovod.chaos import KINDS, Action, ActionResult, Cost, parse
from edl_horovod.chaos import random_schedule as draw
from edl_horovod.chaos.disturbance import check_disturbable, disturb_job
from edl_horovod.cli.arguments import VerbParser, fact_lines
from edl_horovod.errors import ConfigError, ProofFailed

if TYPE_CHECKING:
    from edl_horovod.ledger import Proof

_AFTER_SECONDS = 10.0
"""How long a schedule that was given is watched after its last action."""
_EXAMPLES = """\
examples:
  edl chaos out.job --seed 7 --seconds 60 --every 5 --kinds kill,stop,add,remove
  edl chaos out.job 10:kill:1 20:stop:0:5 30:add 40:remove 50:coordinator
  edl chaos out.job --schedule bad-day.txt --dry-run
"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl chaos`."""
    flags = _parser(verb, summary).parse_all(argv)
    check_disturbable(flags.job_dir)
    schedule, seconds = _schedule_of(flags)
    is_table = flags.format == "table"
    if flags.dry_run:
        words = [str(action) for action in schedule]
        print("\n".join(words) if is_table else json.dumps({"schedule": words}))
        return 0
    # What is stopped must go on: SIGTERM ends this command as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def show(result: ActionResult) -> None:
        print(_line(result), file=sys.stdout if is_table else sys.stderr, flush=True)

    results, cost = disturb_job(flags.job_dir, schedule, seconds=seconds, on_action=show)
    proof = None
    if flags.job_dir.read_config().debug.ledger:
        from edl_horovod.ledger import prove

        proof = prove(flags.job_dir)
    print(_as_table(cost, proof) if is_table else json.dumps(_as_json(results, cost, proof)))
    if proof is not None and not proof.is_good:
        raise ProofFailed(
            "Records were lost or applied twice.",
            received=f"{proof.num_violations} violations in the ledger",
            hint=f"See edl ledger {flags.job_dir}.",
        )
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    usage = "[--seed N] [--seconds S] [--every S] [--kinds KIND,...] [--schedule FILE] "
    usage += "[--dry-run] [-o json] [--debug] JOB_DIR [ACTION ...]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: _EXAMPLES)
    parser.add_job_dir()
    text = "action at a given time: SECONDS:KIND[:SLOT]"
    parser.add_argument("actions", metavar="ACTION", nargs="*", help=text)
    parser.add_file("--schedule", help="file with one action per line")
    parser.add_argument("--seed", type=int, help="seed of random actions (default: a new one)")
    text = "duration in seconds (default with random actions: 60)"
    parser.add_argument("--seconds", type=float, help=text)
    text = "seconds between random actions (default: 5)"
    parser.add_argument("--every", type=float, default=5.0, help=text)
    text = f"kinds of random actions: {', '.join(KINDS)}"
    parser.add_argument("--kinds", default="kill,stop,add,remove", help=text)
    parser.add_dry_run("print the schedule, and stop")
    parser.add_format()
    return parser


def _schedule_of(flags: Any) -> tuple[tuple[Action, ...], float]:
    """The planned disturbances, and how long they take."""
    seed = random.SystemRandom().randrange(1 << 31) if flags.seed is None else flags.seed
    text = "\n".join(flags.actions)
    if flags.schedule is not None:
        try:
            text += "\n" + flags.schedule.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The schedule cannot be read: {error}.", received=repr(str(flags.schedule))
            ) from error
    if text.strip():
        schedule = parse(text, seed=seed)
        last = schedule[-1].at_seconds if schedule else 0.0
        return schedule, max(flags.seconds or 0.0, last + _AFTER_SECONDS)
    print(f"seed {seed}", file=sys.stderr)
    seconds = 60.0 if flags.seconds is None else flags.seconds
    kinds = [kind for kind in flags.kinds.split(",") if kind]
    return draw(seed=seed, seconds=seconds, every=flags.every, kinds=kinds), seconds


def _line(result: ActionResult) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(result.time))
    left_out = "" if result.is_done else "left out: "
    return f"{at}  {result.seconds:7.2f} s  {result.kind:11}  {left_out}{result.message}"


def _as_json(results: Sequence[ActionResult], cost: Cost, proof: "Proof | None") -> dict[str, Any]:
    return {
        "actions": [dataclasses.asdict(result) for result in results],
        **dataclasses.asdict(cost),
        "ledger": None if proof is None else proof.as_json(),
    }


def _as_table(cost: Cost, proof: "Proof | None") -> str:
    quiet, disturbed = cost.quiet_records_per_second, cost.disturbed_records_per_second
    rows = {
        "records/s": f"{_shown(quiet)} in {cost.quiet_seconds:.1f} s before, "
        f"{_shown(disturbed)} in {cost.disturbed_seconds:.1f} s disturbed",
        "goodput": "not known" if cost.goodput is None else f"{cost.goodput:.3f}",
        "resets": _resets(cost),
        "lost": f"{cost.num_lost_workers} workers",
        "ledger": _lost(proof),
    }
    return "\n".join(["", *fact_lines(rows)])


def _shown(rate: float | None) -> str:
    return "too few" if rate is None else f"{rate:,.0f}"


def _resets(cost: Cost) -> str:
    if cost.median_reset_seconds is None or cost.max_reset_seconds is None:
        return "0"
    median, most = cost.median_reset_seconds, cost.max_reset_seconds
    return f"{cost.num_resets}, median {median:.2f} s, longest {most:.2f} s"


def _lost(proof: "Proof | None") -> str:
    if proof is None:
        return "off: debug.ledger=true would say whether a record was lost"
    if not proof.is_good:
        return f"{proof.num_violations} violations"
    return (
        f"no record lost or doubled in {proof.num_steps:,} steps; "
        f"{proof.num_redone_steps} steps redone"
    )
