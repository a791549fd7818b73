"""What a process sees of Horovod's start besides its ring."""

import math

import pytest

from edl_horovod.coordinator.wire import VANISHED_SECONDS


@pytest.mark.long
def test_connections_of_the_ring_notice_vanished_hosts_and_no_others_are_touched(run_ranks):
    output, log = run_ranks("foreign_sockets")
    lines = map(str.split, output.splitlines())
    timeouts = {kind: list(map(int, times)) for kind, *times in lines}
    assert timeouts["foreign"] == [0, 0], log
    # For each of the two process sets, one connection for all ranks and one for those of a host.
    assert timeouts["ring"] == [round(VANISHED_SECONDS * 1000)] * 4, log


@pytest.mark.long
def test_a_rendezvous_that_fails_is_not_taken_for_one_of_the_old_kind(run_ranks):
    output, log = run_ranks("starts", "rendezvous")
    assert output.split() == ["POST", "failed"], log


@pytest.mark.long
def test_mpi_is_finalised_where_gloo_cannot_start(run_ranks):
    output, log = run_ranks("starts", "mpi")
    if output == "no MPI\n":
        pytest.skip("this Horovod was built without MPI")
    assert output == "failed finalised\n", log


# Unset, it is 10 ms with nothing to reduce, so there are 100 cycles a second at most.
@pytest.mark.long
@pytest.mark.parametrize(
    ("variables", "least", "most"), [({}, 0, 120), ({"HOROVOD_CYCLE_TIME": "1"}, 150, math.inf)]
)
def test_the_cycle_time_holds_with_nothing_to_reduce(run_ranks, tmp_path, variables, least, most):
    output, log = run_ranks("starts", "idle", tmp_path / "timeline.json", **variables)
    assert least < float(output) < most, log
