"""How long many ranks take to form a ring, with our rendezvous and with Horovod's."""

import json

from benchmarks.common import NUMBERS_FILE, SideFailed
from benchmarks.elastic.settings import OURS, PLAIN, Run, python
from benchmarks.elastic.table import Line

__all__ = ["measure"]

TARGETS = {8: 0.5, 12: 1.0}
BOUND_SECONDS = 300.0


def measure(run: Run) -> list[Line]:
    """Form rings of each size several times.

    Args:
        run: Starts the processes.

    Raises:
        SideFailed: A ring was not formed.
    """
    lines = []
    for num_ranks in run.settings.num_forming_ranks:
        place = run.place(f"forming-{num_ranks}")
        arguments = ["--place", place, "--num-ranks", num_ranks]
        arguments += ["--repetitions", run.settings.num_events]
        with run.process(place, python("benchmarks.ours.forming_ranks", *arguments)) as child:
            if not child.wait(BOUND_SECONDS) or child.exit_code != 0:
                raise SideFailed(f"forming {num_ranks} ranks failed. Its log ends:\n{child.tail()}")
        found = json.loads((place / NUMBERS_FILE).read_text())
        event = f"forming a ring of {num_ranks} ranks (hvd.init alone)"
        target = TARGETS.get(num_ranks)
        ours = Line(event=event, side=OURS, values=tuple(found["ours"]), most_median=target)
        lines += [ours, Line(event=event, side=PLAIN, values=tuple(found["theirs"]))]
    return lines
