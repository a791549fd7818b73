"""The tests of `ranks/` as the ranks of one ring: `rank_tests SIZE MARKS SCRATCH`.

It prints what pytest printed in each rank, and ends with 0 where all tests of all ranks succeeded.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from edl_horovod.job.lifeline import end_with_parent
from tests.parallel.forks import fork, serve
from tests.parallel.places import set_horovod, set_place
from tests.parallel.ring_framework import ring_framework

RANKS = Path(__file__).parent / "ranks"
PATIENCE_SECONDS = 600
"""In a collective: a rank may be computing what the others are compared with."""


def be_rank(rank, size, address, marks, scratch, say):
    """Run the tests as one rank, with what they print in a file of its own."""
    end_with_parent()
    with (scratch / f"rank-{rank}.log").open("wb") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    os.environ |= {"RING_SIZE": str(size), "RING_SCRATCH": str(scratch)}
    set_place(rank, size, *address)
    set_horovod(ELASTIC=1, GLOO_TIMEOUT_SECONDS=PATIENCE_SECONDS)
    say(int(pytest.main(["-q", "-p", "no:cacheprovider", str(RANKS), "-m", marks])))


def main(size, marks, scratch):
    """Be the ring; returns the process' exit code."""
    ring_framework()  # Imported once for all ranks.
    server, told = fork(serve, PATIENCE_SECONDS)
    address = told.recv()
    ranks = [fork(be_rank, rank, size, address, marks, scratch) for rank in range(size)]
    codes = []
    for pid, said in ranks:
        try:
            codes.append(said.recv())
        except EOFError:
            codes.append("died")
        os.waitpid(pid, 0)
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    for rank, code in enumerate(codes):
        text = (scratch / f"rank-{rank}.log").read_text(errors="replace")
        sys.stdout.write(f"--- rank {rank}: {code}\n{text}")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
