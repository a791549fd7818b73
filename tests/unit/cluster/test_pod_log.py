import io

from edl_horovod.cluster.pod_log import PodLog, events_in
from edl_horovod.job.events import Recorded, Span, line_of
from edl_horovod.job.state import summarize
from tests.job_events import event, recorded


def step(number, time):
    return recorded("step", time, step=number)


def shown(*batches):
    stream = io.StringIO()
    log = PodLog(stream)
    for batch in batches:
        log(batch)
    events = [it.event for it in events_in(stream.getvalue().splitlines())]
    return [getattr(it, "step", it.kind) for it in events]


def test_steps_are_shown_a_few_seconds_apart():
    assert shown([step(1, 10.0), step(2, 11.0)], [step(3, 14.9), step(4, 15.1)]) == [1, 4]


def test_a_clock_that_is_set_back_hides_no_steps():
    before = [step(number, 3600.0 + number) for number in range(1, 11)]
    after = [step(number, float(number)) for number in range(11, 23)]

    assert shown(before, after) == [1, 6, 11, 16, 21]


def test_the_last_step_is_shown_when_the_job_ends():
    ended = recorded("job", 12.0, state="finished")

    assert shown([step(1, 10.0), step(2, 11.0), step(3, 11.5)], [ended]) == [1, 3, "job"]


def test_a_step_that_was_shown_is_not_shown_again():
    ended = recorded("job", 16.0, state="finished")

    assert shown([step(1, 10.0), step(2, 11.0), step(3, 15.5), ended]) == [1, 3, "job"]


def test_what_autoscaling_decides_is_shown():
    assert shown([recorded("autoscale", limit=2)]) == ["autoscale"]


def test_the_accounts_of_all_ranks_are_shown_as_one_each_minute_and_at_the_end():
    def account(time, worker, **seconds):
        began = {"a:0": 91.0, "b:0": 93.0}[worker]
        fields = {"pid": 7, "began": began, "seconds": seconds, "doing": "computing"}
        return Recorded(time, worker, event("account", **fields))

    stream = io.StringIO()
    PodLog(stream)(
        [
            account(100.0, "a:0", computing=9.0),
            account(101.0, "b:0", building=8.0),
            account(161.0, "a:0", computing=70.0),
            account(162.0, "b:0", building=8.0, computing=61.0),
            recorded("job", 170.0, state="finished"),
        ]
    )
    *_, last, _ = shown = list(events_in(stream.getvalue().splitlines()))
    assert len(shown) == 4
    assert last.event.seconds == {"building": 8.0, "computing": 131.0, "lost": 17.0}
    (all_ranks,) = summarize(shown).account.ranks
    assert all_ranks.doing == ""


def test_a_rank_that_began_earlier_and_is_heard_of_later_doubles_no_account():
    def account(time, worker, began, **seconds):
        fields = {"pid": 7, "began": began, "seconds": seconds, "doing": "computing"}
        return Recorded(time, worker, event("account", **fields))

    stream = io.StringIO()
    PodLog(stream)(
        [
            account(100.0, "a:0", 90.0, computing=10.0),
            account(170.0, "b:0", 80.0, computing=90.0),
            account(240.0, "a:0", 90.0, computing=150.0),
        ]
    )
    found = summarize(events_in(stream.getvalue().splitlines())).account
    assert len(found.ranks) == 1
    assert found.seconds == {"computing": 240.0}


def test_a_trace_is_shown_without_its_stack_and_history():
    stream = io.StringIO()
    last = (Span(name="step 6", began=1.0, seconds=1.0),)
    trace = recorded("trace", place="model.py:7 in call", stack=("model.py:7 in call",), last=last)
    PodLog(stream)([trace])
    (logged,) = events_in(stream.getvalue().splitlines())
    assert logged.event == event("trace", place="model.py:7 in call")


def test_kinds_for_the_file_alone_are_left_out():
    assert shown([recorded("log", message="x")]) == []


def test_lines_of_the_users_code_that_look_like_events_are_passed_over():
    good = recorded("job", 1.0, state="running")
    damaged = line_of(good).replace('"running"', "7")

    assert list(events_in([damaged, "{", line_of(good)])) == [good]
