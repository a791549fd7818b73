"""The account of a job from the events of its ranks."""

import pytest

from edl_horovod.job.account import LOST
from edl_horovod.job.events import AccountEvent, JobEvent, Recorded, WorkerEvent
from edl_horovod.job.state import summarize
from tests.job_events import recorded


def account(time, worker, pid, doing="computing", began=None, age=None, **seconds):
    began = time - sum(seconds.values()) if began is None else began
    event = AccountEvent(pid=pid, began=began, seconds=seconds, doing=doing, age=age)
    return Recorded(time, worker, event)


def seconds_of(*events):
    return summarize(events).account.seconds


def missed(time, worker, state="lost"):
    return Recorded(time, "coordinator", WorkerEvent(worker=worker, state=state))


def step(time):
    return recorded("step", time, "host:0")


def test_the_newest_account_of_each_process_counts():
    events = [
        account(10, "host:0", 1, building=4.0, computing=6.0),
        account(11, "host:1", 2, building=5.0, computing=5.0),
        step(12),
        account(20, "host:0", 1, building=4.0, computing=12.0, exchange=4.0),
        account(21, "host:1", 2, doing="", building=5.0, computing=14.0, applying=1.0),
    ]
    total = summarize(events).account
    assert total.seconds == {"building": 9.0, "computing": 26.0, "exchange": 4.0, "applying": 1.0}
    assert total.goodput == 31 / 40
    assert [(rank.worker, rank.began, rank.doing) for rank in total.ranks] == [
        ("host:0", 0.0, "computing"),
        ("host:1", 1.0, ""),
    ]


@pytest.mark.parametrize("state", ["lost", "failed", "left"])
def test_the_time_up_to_a_sudden_end_is_a_cause_of_its_own(state):
    events = [
        account(10, "host:0", 1, computing=10.0),
        account(10, "host:1", 2, computing=10.0),
        missed(12.5, "host:1", state),
        missed(13, "host:1"),  # Of the same process, which is told twice.
        account(20, "host:1", 3, building=6.0),
    ]
    total = summarize(events).account
    assert total.seconds == {"building": 6.0, "computing": 20.0, LOST: 2.5}
    assert [(rank.pid, rank.until, rank.doing) for rank in total.ranks] == [
        (1, 10, "computing"),
        (2, 12.5, ""),
        (3, 20, "computing"),
    ]


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_clock_that_is_set_invents_and_hides_no_lost_time(jump):
    """Before the last account, which goes on with a step of 1.5 s."""
    events = [
        account(8010, "host:0", 1, began=8000.0, age=10.0, computing=10.0),
        account(8020 + jump, "host:0", 1, began=8000.0, age=20.0, computing=18.5),
        missed(8022.5 + jump, "host:0"),
    ]
    total = summarize(events).account
    assert total.seconds == {"computing": 18.5, LOST: 4.0}
    assert [rank.age for rank in total.ranks] == [22.5]


def test_the_clock_of_another_host_that_is_behind_makes_no_life_shorter():
    events = [account(100, "host:0", 1, age=10.0, computing=9.0), missed(95, "host:0")]
    (rank,) = summarize(events).account.ranks
    assert (rank.until, rank.age, rank.seconds) == (100, 10.0, {"computing": 9.0, LOST: 1.0})


def hung(time, worker, seconds):
    event = WorkerEvent(worker=worker, state="hung", pid=2, message="", seconds=seconds)
    return Recorded(time, "coordinator", event)


def test_the_time_since_the_last_progress_of_one_that_hung_is_no_unknown_time():
    events = [account(10, "host:1", 2, computing=10.0), hung(45, "host:1", 30.0)]
    end = missed(50, "host:1")
    assert seconds_of(*events, end) == {"computing": 10.0, "hung": 35.0, LOST: 5.0}
    returned = account(60, "host:1", 2, began=0.0, computing=60.0)
    end = missed(62, "host:1")
    assert seconds_of(*events, returned, end) == {"computing": 60.0, LOST: 2.0}


def test_a_process_without_a_last_word_has_ended_when_its_worker_has_a_newer_one():
    events = [
        account(10, "host:0", 1, doing="building", building=10.0),
        account(7300, "host:0", 2, computing=10.0),
        missed(7302, "host:0"),
    ]
    total = summarize(events).account
    assert total.seconds == {"building": 10.0, "computing": 10.0, LOST: 2.0}
    assert [rank.doing for rank in total.ranks] == ["", ""]


@pytest.mark.parametrize("state", ["finished", "failed", "suspended", "lost"])
def test_no_process_outlives_its_job(state):
    end = Recorded(20, "launcher", JobEvent(state=state))
    total = summarize([account(10, "host:0", 1, doing="building", building=10.0), end]).account
    assert [rank.doing for rank in total.ranks] == [""]
    # As a rank under mpirun, whose end is that of all: it writes no last account then.
    assert total.seconds == {"building": 10.0, LOST: 10.0}


def test_a_rank_that_outlives_the_jobs_event_for_a_moment_has_the_last_word():
    events = [
        account(10, "host:0", 1, computing=10.0),
        Recorded(20, "host:1", JobEvent(state="finished")),
        account(21, "host:0", 1, doing="", began=0.0, computing=19.0, ending=2.0),
    ]
    assert seconds_of(*events) == {"computing": 19.0, "ending": 2.0}


def test_the_first_process_that_was_heard_of_stays_the_first():
    events = [account(10, "a:0", 1, computing=1.0), account(11, "b:0", 2, computing=1.0)]
    events += [account(12, "b:0", 2, doing="", began=10.0, ending=2.0)]
    events += [account(13, "a:0", 1, doing="", began=9.0, ending=4.0)]
    assert [rank.pid for rank in summarize(events).account.ranks] == [1, 2]


@pytest.mark.parametrize(
    ("began", "seconds"),
    [
        (0.0, {"computing": float("nan")}),
        (0.0, {"computing": 1e308, "input": 1e308}),
        (0.0, {"computing": 1.0, "input": -1.0}),
        (1e300, {"computing": 1.0}),
        (-1.0, {"computing": 1.0}),
    ],
)
def test_an_account_that_cannot_be_is_passed_over(began, seconds):
    event = AccountEvent(pid=1, began=began, seconds=seconds, doing="computing")
    assert summarize([Recorded(1, "host:0", event)]).account.ranks == ()


def test_a_process_that_said_goodbye_is_not_lost():
    last = account(10, "host:0", 1, doing="", ending=10.0)
    assert seconds_of(last, missed(40, "host:0")) == {"ending": 10.0}


def test_a_pid_that_is_used_again_is_another_process():
    events = [
        account(10, "host:0", 1, doing="", began=0.0, ending=10.0),
        account(30, "host:0", 1, began=20.0, computing=10.0),
        account(31, "host:0", 1, began=20.0, computing=11.0),
    ]
    assert seconds_of(*events) == {"computing": 11.0, "ending": 10.0}


def test_causes_of_another_version_are_not_counted_as_steps():
    total = summarize([account(10, "host:0", 1, computing=5.0, daydreaming=5.0)]).account
    assert total.seconds == {"computing": 5.0, "daydreaming": 5.0}
    assert total.goodput == 0.5


def test_a_job_without_accounts_has_no_goodput():
    assert summarize([step(1)]).account.goodput is None
