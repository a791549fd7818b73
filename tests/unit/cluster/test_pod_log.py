import io

from edl_horovod.cluster.pod_log import PodLog, events_in
from edl_horovod.displays.page.snapshot import History
from edl_horovod.job.events import Recorded, Span, line_of
from edl_horovod.job.state import summarize
from tests.job_events import event, recorded


def step(number, time):
    return recorded("step", time, step=number)


def account(time, worker, began, **seconds):
    fields = {"pid": 7, "began": began, "seconds": seconds, "doing": "computing"}
    return Recorded(time, worker, event("account", **fields))


def logged(*batches):
    """The lines of a log to which events come in batches."""
    stream = io.StringIO()
    log = PodLog(stream)
    for batch in batches:
        log(list(batch))
    return stream.getvalue().splitlines()


def shown(*batches):
    events = [entry.event for entry in events_in(logged(*batches))]
    return [getattr(entry, "step", entry.kind) for entry in events]


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


def test_the_accounts_of_all_ranks_are_shown_as_one_each_minute_and_at_the_end():
    events = [
        account(100.0, "a:0", 91.0, computing=9.0),
        account(101.0, "b:0", 93.0, building=8.0),
        account(161.0, "a:0", 91.0, computing=70.0),
        account(162.0, "b:0", 93.0, building=8.0, computing=61.0),
        recorded("job", 170.0, state="finished"),
    ]
    *_, last, _ = shown = list(events_in(logged(events)))
    assert len(shown) == 4
    assert last.event.seconds == {"building": 8.0, "computing": 131.0, "lost": 17.0}
    (all_ranks,) = summarize(shown).account.ranks
    assert all_ranks.doing == ""


def test_a_rank_that_began_earlier_and_is_heard_of_later_doubles_no_account():
    events = [
        account(100.0, "a:0", 90.0, computing=10.0),
        account(170.0, "b:0", 80.0, computing=90.0),
        account(240.0, "a:0", 90.0, computing=150.0),
    ]
    total = summarize(events_in(logged(events))).account
    assert len(total.ranks) == 1
    assert total.seconds == {"computing": 240.0}


def test_a_trace_is_shown_without_its_stack_and_history():
    last = (Span(name="step 6", began=1.0, seconds=1.0),)
    trace = recorded("trace", place="model.py:7 in call", stack=("model.py:7 in call",), last=last)
    (entry,) = events_in(logged([trace]))
    assert entry.event == event("trace", place="model.py:7 in call")


def long_training(num_minutes):
    """The events of a job whose ring changed twice and was evaluated once, early on."""
    members = ("a:0", "b:0")
    metrics, parties = {"accuracy": 0.75}, {"north": {"accuracy": 0.5}}
    yield recorded("job", 1000.0, "launcher", state="starting", task="train", output="/model")
    yield recorded("reset", 1001.0, "a:0", generation=1, new_size=1)
    yield recorded("reset", 1002.0, "a:0", generation=2, old_size=1, new_size=2)
    yield recorded("reset", 1003.0, "a:0", generation=3, old_size=2, new_size=2)
    yield recorded("generation", 1003.5, generation=3, size=2, members=members, is_formed=True)
    yield recorded("evaluation", 1004.0, "a:0", metrics=metrics, parties=parties)
    for second in range(5, num_minutes * 60):
        yield recorded("step", 1000.0 + second, "a:0", step=second, size=2)


def facts(state):
    named = (state.task, state.output, state.state, state.metrics, state.parties)
    ring = (state.generation, state.size, state.members, state.num_resets)
    return (*named, *ring, state.step)


def test_the_end_of_a_log_has_all_facts_of_a_long_job():
    lines = logged(long_training(60))

    whole, end = summarize(events_in(lines)), summarize(events_in(lines[-50:]))

    assert whole.num_resets == 2
    assert facts(end) == facts(whole)


def test_resets_are_counted_on_where_the_end_of_a_log_begins():
    later = [
        recorded("reset", 4700.0, "a:0", generation=4, old_size=2, new_size=1),
        recorded("step", 4701.0, "a:0", step=9000, size=1),
    ]
    lines = logged([*long_training(60), *later])

    assert summarize(events_in(lines[-50:])).num_resets == 3


def test_a_rank_that_is_lost_after_hours_is_the_last_stop():
    lost = recorded("worker", 4700.0, "coordinator", worker="b:0", state="lost")
    lines = logged([*long_training(60), lost])

    stop = summarize(events_in(lines[-50:])).stops.last
    assert (stop.worker, stop.rank, stop.generation) == ("b:0", 1, 3)


def test_a_rank_is_lost_once_whatever_is_repeated_while_its_process_ends():
    end = [
        recorded("worker", 4700.0, "coordinator", worker="b:0", state="lost"),
        recorded("step", 4770.0, "a:0", step=9000, size=1),
        recorded("worker", 4771.0, "launcher", worker="b:0", state="failed", message="SIGKILL"),
    ]
    lines = logged([*long_training(60), *end])

    for read in (lines, lines[-50:]):
        (stop,) = summarize(events_in(read)).stops.losses
        assert stop.end == "SIGKILL"


def test_what_is_repeated_is_nothing_that_happened():
    history = History()
    for entry in events_in(logged(long_training(60))):
        history.add(entry)

    snapshot = history.snapshot(history.state)
    assert [reset.event.generation for reset in snapshot.resets] == [2, 3]
    notable = [text.partition(" ")[0] for _, text in snapshot.notable]
    assert notable == [*["ring"] * 3, "evaluation"]
    assert snapshot.ring == ((1001.0, 1), (1002.0, 2))


def test_what_autoscaling_decides_is_shown_and_kinds_for_the_file_alone_are_not():
    assert shown([recorded("autoscale", limit=2), recorded("log", message="x")]) == ["autoscale"]


def test_lines_of_the_users_code_that_look_like_events_are_passed_over():
    good = recorded("job", 1.0, state="running")
    damaged = line_of(good).replace('"running"', "7")

    assert list(events_in([damaged, "{", line_of(good)])) == [good]
