"""`edl ledger`: prove from a job's ledger that each record was applied exactly once."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edl_horovod.cli.arguments import VerbParser, fact_lines
from edl_horovod.errors import ProofFailed

if TYPE_CHECKING:
    from edl_horovod.ledger import Proof, Violation

_MOST_LINES = 10


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl ledger`."""
    parser = VerbParser(verb, summary, "[-o json] [--debug] JOB_DIR")
    parser.add_job_dir()
    parser.add_format()
    flags = parser.parse_all(argv)
    from edl_horovod.ledger import prove

    proof = prove(flags.job_dir)
    print(json.dumps(proof.as_json(), indent=2) if flags.format == "json" else _as_table(proof))
    if not proof.is_good:
        raise ProofFailed(
            "The ledger does not show that each record was applied exactly once.",
            received=f"{proof.num_violations} violations; the first: {_line(proof.violations[0])}",
            hint=f"Look at that generation in {flags.job_dir.events} and in the workers' logs.",
        )
    return 0


def _as_table(proof: "Proof") -> str:
    rows = {
        "proof": _verdict(proof),
        "job": "finished" if proof.is_finished else "not finished: all this is so far",
        "steps": f"{proof.num_steps:,} ({proof.num_epochs:,} whole epochs)",
        "records": f"{proof.num_records:,}",
        "rings": f"{proof.num_rings}",
        "redone": f"{proof.num_redone_steps} steps, after all who had done them were lost",
        "restored": ", ".join(f"step {step}" for step in proof.restored),
        "variables": _variables(proof),
        "damaged": f"{proof.num_damaged} lines" if proof.num_damaged else "",
    }
    lines = fact_lines(rows)
    if proof.violations:
        lines += ["", *(_line(violation) for violation in proof.violations[:_MOST_LINES])]
        more = proof.num_violations - _MOST_LINES
        lines += [f"... and {more} more"] if more > 0 else []
    return "\n".join(lines)


def _verdict(proof: "Proof") -> str:
    if proof.is_good:
        return "each record was applied exactly once"
    if proof.num_violations > proof.num_gaps:
        return "FAILED"
    return "incomplete: entries are missing; the others show no record that was lost or doubled"


def _variables(proof: "Proof") -> str:
    if not proof.digest:
        return ""
    return f"{proof.digest}, the same on the last {proof.num_last_ranks} ranks"


def _line(violation: "Violation") -> str:
    rank = "" if violation.rank is None else f", rank {violation.rank}"
    records = ", ".join(map(str, violation.records))
    place = f"generation {violation.generation}, step {violation.step}{rank}"
    return f"{violation.kind}: {place}: {violation.message}{f': {records}' if records else ''}"
