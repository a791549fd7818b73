"""The coordinator: who is in the ring, whatever workers, hosts and connections do."""

import asyncio
import threading
import time

import pytest

from edl_horovod.coordinator import saved
from edl_horovod.errors import NotEnoughWorkers
from edl_horovod.job import outcome
from edl_horovod.job.outcome import Failure, Success


@pytest.mark.job(num_start=3)
async def test_the_first_ring_waits_for_all_that_were_asked_for(job):
    first = await job.worker(0)
    second = await job.worker(1)
    await job.until(lambda: len(job.events("worker")) == 2)
    assert first.place is None
    third = await job.worker(2)
    await job.ring(first, second, third)
    assert job.generations() == [(3, True)]


@pytest.mark.job(timings={"first_ring_seconds": 0.1}, num_start=3)
async def test_the_first_ring_does_not_wait_for_ever(job):
    await job.ring(await job.worker(0))


@pytest.mark.job(num_start=2, wait_seconds=2.0)
async def test_the_first_ring_starts_small_rather_than_fail(job):
    await job.ring(await job.worker(0))


async def test_a_newcomer_joins_when_it_is_warm_and_not_before(job):
    (first,) = await job.ring_of(0)
    cold = await job.worker(1, is_ready=False)
    await job.until(lambda: "change" in cold.kinds())
    first.send("progress", step=1)
    assert job.generations() == [(1, True)]
    cold.ready()
    await job.ring(first, cold)


@pytest.mark.job(num_start=3, wanted={"a": 2, "b": 1})
async def test_the_assignment_says_all_that_horovod_must_know(job):
    workers = [await job.worker(slot, host) for host, slot in [("a", 0), ("b", 0), ("a", 1)]]
    await job.ring(workers[0], workers[2], workers[1])
    place = workers[2].place
    numbers = [place[n] for n in ("rank", "size", "local_rank", "local_size")]
    assert numbers == [1, 3, 1, 2]
    assert (place["cross_rank"], place["cross_size"], place["host"]) == (0, 1, "a")
    assert place["rendezvous_address"] == "127.0.0.1"


async def test_survivors_go_on_without_a_dead_member(job):
    workers = await job.ring_of(0, 1, 2)
    workers[1].hang_up()
    await job.ring(workers[0], workers[2])
    assert workers[0].kinds() == ["assign", "change", "assign"]


async def test_a_removed_slot_leaves_the_ring_and_is_dismissed(job):
    first, second = await job.ring_of(0, 1)
    job.hosts(localhost=1)
    await job.until(lambda: not second.is_connected)
    assert second.kinds() == ["assign", "change", "stop"]
    await job.ring(first)
    assert first.kinds() == ["assign", "change", "assign"]


@pytest.mark.job(wanted={"a": 1, "b": 1})
async def test_a_host_added_and_one_removed_at_once(job):
    first, second = await job.ring_of("a", "b")
    job.hosts(b=1, c=1)
    await job.ring(second)
    third = await job.worker(0, "c")
    await job.ring(second, third)
    assert not first.is_connected


async def test_hosts_that_come_and_go_again_before_anybody_is_warm_there_reset_nothing(job):
    (first,) = await job.ring_of(0)
    for slots in (3, 1, 2, 1):
        await job.read_hosts(localhost=slots)
    await job.hold(lambda: first.kinds() == ["assign"], 0.1)
    assert job.generations() == [(1, True)]


async def test_a_worker_that_leaves_is_dismissed_and_its_successor_takes_the_slot(job):
    first, second = await job.ring_of(0, 1)
    second.send("leaving")
    await job.until(lambda: not second.is_connected)
    await job.ring(first)
    third = await job.worker(1)
    await job.ring(first, third)


async def test_a_worker_that_leaves_is_dismissed_also_when_no_host_is_wanted(job):
    (first,) = await job.ring_of(0)
    job.hosts()
    await job.until(lambda: first.is_ready)
    assert first.is_connected
    first.send("leaving")
    await job.until(lambda: not first.is_connected)


async def test_emptied_hosts_keep_the_workers_warm_until_there_are_hosts_again(job):
    workers = await job.ring_of(0, 1)
    job.hosts()
    await job.until(lambda: all(w.is_ready for w in workers))
    job.hosts(localhost=2)
    await job.ring(*workers, least_generation=2)
    assert "stop" not in workers[0].kinds()


@pytest.mark.parametrize("bad", [b"no colon\n", b"localhost:2\xff\n", b"localhost:\xc2\xb2\n"])
async def test_a_bad_hosts_file_changes_nothing_and_is_told_once(job, caplog, bad):
    (first,) = await job.ring_of(0)
    (job.dir / "hosts").write_bytes(bad)
    await job.until(lambda: "hosts file:" in caplog.text)
    second = await job.worker(1)
    await job.ring(first, second)
    assert caplog.text.count("hosts file:") == 1
    job.hosts(localhost=1)
    await job.until(lambda: not second.is_connected)


async def test_two_workers_of_one_slot_are_never_in_one_ring(job):
    (first,) = await job.ring_of(0)
    double = await job.worker(0)
    third = await job.worker(1)
    await job.ring(first, third)
    assert double.place is None
    first.hang_up()
    await job.ring(double, third)


@pytest.mark.job(min_np=2, wait_seconds=0.3)
async def test_below_min_np_the_ring_waits_and_then_the_coordinator_gives_up(job):
    first, second = await job.ring_of(0, 1)
    second.hang_up()
    await job.until(lambda: first.is_ready)
    with pytest.raises(NotEnoughWorkers, match=r"min_np=2.*Received: 1\."):
        await job.end()
    assert [e.state for e in job.events("job")] == ["waiting"]
    assert [m["is_short"] for m in first.heard if m["kind"] == "shortage"][-1]
    first.hang_up()
    await job.until(lambda: not first.is_connected)
    assert [e.worker for e in job.worker_states("lost")] == ["localhost:1"]


@pytest.mark.job(num_start=2, min_np=2, wait_seconds=0.3)
async def test_a_coordinator_that_gave_up_waiting_leaves_the_job_and_its_workers_to_the_next_one(
    job,
):
    first = await job.worker(0)
    with pytest.raises(NotEnoughWorkers):
        await job.end()
    assert not (job.dir / "result.json").exists()
    assert "stop" not in first.kinds()
    first.hang_up()
    await job.until(lambda: not first.is_connected)

    await job.start()
    await first.connect()
    await job.ring(first, await job.worker(1))


async def test_from_one_worker_to_none_and_back_to_one(job):
    (first,) = await job.ring_of(0)
    first.hang_up()
    await job.until(lambda: job.events("job"))
    (second,) = await job.ring_of(0)
    assert second.place["generation"] == 2


@pytest.mark.job(num_start=2)
async def test_a_member_that_never_answers_pings_is_not_invited(job):
    mute = await job.worker(0, ignores=["ping"])
    (second,) = await job.ring_of(1)
    assert mute.place is None
    mute.pong()
    mute.ignores = set()
    await job.until(lambda: mute.place is not None)
    await job.ring(mute, second)


async def test_a_member_that_hangs_is_left_out_and_comes_back(job):
    first, second = await job.ring_of(0, 1)
    second.ignores = {"ping", "change"}
    third = await job.worker(2)
    await job.ring(first, third)
    # Its collective fails as soon as it goes on; here it only hears that it is to leave.
    second.ignores = set()
    second.send("progress", step=3)
    second.ready()
    await job.ring(first, second, third)


@pytest.mark.job(timings={"silence_seconds": 0.3, "ping_seconds": 0.05})
async def test_a_member_that_was_silent_alone_is_called_back(job):
    (first,) = await job.ring_of(0)
    first.ignores = {"ping", "change"}
    await job.until(lambda: job.events("job"))
    assert not first.is_ready
    first.ignores = set()
    first.heard.clear()
    first.send("progress", step=100)
    await job.until(lambda: "change" in first.kinds() or first.is_ready)
    first.ready()
    await job.ring(first, least_generation=2)


async def test_newcomers_do_not_begin_anew_while_the_only_member_is_slow_to_answer(job):
    (first,) = await job.ring_of(0)
    first.ignores = {"ping"}
    second = await job.worker(1)
    await job.hold(lambda: second.place is None, 3 * job.settings.timings.sign_of_life_seconds)
    first.ignores = set()
    first.pong()
    await job.ring(first, second)
    assert job.generations() == [(1, True), (2, True)]


@pytest.mark.job(timings={"forming_margin_seconds": 0.1}, forming_seconds=0.1)
async def test_a_long_step_is_waited_for_and_announced_once(job):
    first, second = await job.ring_of(0, 1)
    for worker in (first, second):
        worker.ignores = {"change"}
    third = await job.worker(2)
    # Nothing is to happen, for longer than all patience.
    await job.until(lambda: first.kinds() == ["assign", "change"])
    await job.hold(lambda: first.kinds() == ["assign", "change"], 0.5)
    first.ready()
    second.ready()
    await job.ring(first, second, third)


@pytest.mark.job(timings={"forming_margin_seconds": 0.1}, forming_seconds=0.1)
async def test_a_member_that_does_not_leave_with_the_others_is_left_out(job):
    first, second = await job.ring_of(0, 1)
    second.ignores = {"change"}
    first.ready()
    await job.ring(first)
    second.ready()
    await job.ring(first, second)


async def test_a_ring_that_a_member_cannot_form_is_formed_again(job):
    first, second = await job.forming_ring_of(0, 1)
    first.ready()
    await job.ring(first, second)
    assert job.generations() == [(2, False), (2, True)]


async def test_a_member_that_dies_while_the_ring_forms(job):
    first, second = await job.forming_ring_of(0, 1)
    second.hang_up()
    await job.ring(first)


def unforming(worker):
    """Let a worker's rings fail, as where a firewall is in the way."""
    worker.formed = worker.ready
    return worker


@pytest.mark.job(num_start=2, min_np=2, wait_seconds=0.8)
async def test_a_ring_that_never_forms_is_tried_ever_more_slowly_and_then_the_job_fails(job):
    for slot in range(2):
        await unforming(job.fake(slot)).connect()
    with pytest.raises(NotEnoughWorkers):
        await job.end()
    assert 3 <= len(job.generations()) <= 7
    assert not any(is_formed for _, is_formed in job.generations())


async def test_a_newcomer_that_spoils_rings_does_not_stop_the_others(job):
    workers = await job.ring_of(0, 1)
    bad = unforming(job.fake(2))
    await bad.connect()
    for _ in range(2):
        await job.until(lambda: any(not f for _, f in job.generations()))
    await job.until(lambda: job.worker_states("waiting"))
    await job.ring(*workers)
    # It is tried again, and welcome once it works.
    del bad.formed
    await job.ring(*workers, bad)


@pytest.mark.job(timings={"forming_margin_seconds": 0.1}, forming_seconds=0.1)
async def test_a_slow_sync_is_no_failure(job):
    first, second = await job.forming_ring_of(0, 1)
    await job.until(lambda: job.generations())
    assert job.generations() == [(2, False)]
    first.formed()
    second.formed()
    assert first.kinds() == second.kinds() == ["assign"]


def reconnect_all(workers):
    return asyncio.gather(*(worker.connect() for worker in workers))


async def test_a_restarted_coordinator_adopts_the_ring(job):
    workers = await job.ring_of(0, 1, 2)
    port = job.port
    await job.restart()
    assert job.port == port
    for worker in reversed(workers):
        worker.heard.clear()
        await worker.connect()
    await job.hold(lambda: [worker.kinds() for worker in workers] == [[], [], []], 0.2)
    assert job.saved()["generation"] == 1
    # And it is in charge again, with the ages that it knew.
    workers[0].hang_up()
    await job.ring(workers[1], workers[2])
    assert workers[1].place["generation"] == 2


@pytest.mark.job(forming_seconds=0.3)
async def test_a_ring_that_broke_while_the_coordinator_was_away_is_formed_again(job):
    workers = await job.ring_of(0, 1, 2)
    await job.restart()
    for worker in workers[:2]:
        worker.is_ready = True
    await reconnect_all(workers[:2])
    await job.ring(*workers[:2])
    lost = [event.worker for event in job.events("worker") if event.state == "lost"]
    assert lost == [stop.worker for stop in job.state().stops.losses] == ["localhost:2"]


@pytest.mark.job(forming_seconds=0.3)
async def test_the_next_worker_of_a_slot_is_not_lost_with_the_one_that_did_not_call(job):
    first, _ = await job.ring_of(0, 1)
    await job.restart()
    first.is_ready = True
    await reconnect_all([first])
    await job.ring(first, await job.worker(1))
    states = [e.state for e in job.events("worker") if e.worker == "localhost:1"]
    assert states == ["warm", "lost", "warm"]


@pytest.mark.job(forming_seconds=0.1)
async def test_a_member_that_calls_the_next_coordinator_late_was_not_lost(job):
    (first,) = await job.ring_of(0)
    await job.restart()
    await job.until(lambda: job.worker_states("lost"))
    await first.connect(formed=1)
    await job.ring(first, least_generation=2)
    assert [e.state for e in job.events("worker")] == ["warm", "lost", "returned"]
    assert job.state().stops.losses == ()


async def test_a_coordinator_that_lost_its_file_takes_the_ring_over(job):
    (first,) = await job.ring_of(0)
    await job.crash()
    (job.dir / "coordinator.json").unlink()
    await job.start()
    first.port = job.port
    await first.connect()
    await job.ring(first, least_generation=2)


@pytest.mark.job(timings={"return_seconds": 5.0})
async def test_a_lone_member_that_calls_again_keeps_its_ring(job):
    (first,) = await job.ring_of(0)
    first.hang_up()
    await job.until(lambda: job.worker_states("lost"))
    await first.connect(formed=1)
    second = await job.worker(1)
    await job.ring(first, second)
    assert first.kinds() == ["assign", "change", "assign"]


@pytest.mark.job(timings={"return_seconds": 5.0})
async def test_members_that_call_again_were_not_lost_and_may_be_lost_later(job):
    workers = await job.ring_of(0, 1)
    for worker in workers:
        worker.hang_up()
    await job.until(lambda: [e.state for e in job.events("worker")].count("lost") == 2)
    for worker in workers:
        await worker.connect(formed=1)
    await job.until(lambda: [e.state for e in job.events("worker")].count("returned") == 2)
    state = job.state()
    assert (state.stops.losses, state.stops.num_losses) == ((), 0)
    assert job.generations() == [(2, True)]
    workers[1].hang_up()
    await job.ring(workers[0])
    assert [(stop.worker, stop.rank) for stop in job.state().stops.losses] == [("localhost:1", 1)]


async def test_a_lone_member_that_calls_again_too_late_is_called_back(job):
    (first,) = await job.ring_of(0)
    first.hang_up()
    await job.until(lambda: job.events("job"))
    await first.connect(formed=1)
    await job.ring(first, least_generation=2)


async def test_a_new_connection_of_a_worker_replaces_the_old_one(job):
    (first,) = await job.ring_of(0)
    old = first.task
    await first.connect(formed=1)
    await job.until(old.done)
    second = await job.worker(1)
    await job.ring(first, second)
    assert not job.worker_states("lost")


async def test_the_word_that_a_ring_formed_is_not_lost_with_a_connection(job):
    (first,) = await job.forming_ring_of(0)
    await first.connect(formed=1)
    await job.ring(first)
    assert job.generations() == [(1, True)]


async def test_a_result_ends_the_job_and_dismisses_everybody(job):
    first, second = await job.ring_of(0, 1)
    for worker in (first, second):
        worker.send("finished", result={"steps": 7, "metrics": {}, "output": "/out"})
    assert await job.end() == Success(steps=7, metrics={}, output="/out")
    assert first.kinds()[-1] == second.kinds()[-1] == "stop"


@pytest.mark.job(timings={"goodbye_seconds": 30.0})
async def test_the_result_is_on_disk_before_the_workers_go(job):
    first = await job.worker(0)
    first.ignores = {"stop"}
    await job.ring(first)
    first.send("finished", result={"steps": 7, "metrics": {}, "output": "/out"})
    await job.until(lambda: "stop" in first.kinds())
    assert isinstance(outcome.load(job.dir / "result.json"), Success)
    late = await job.worker(1)
    await job.until(lambda: late.kinds() == ["stop"])
    first.hang_up()


async def test_a_members_error_ends_the_job(job):
    (first,) = await job.ring_of(0)
    first.send("failed", error={"error": "TrainingError", "message": "loss=nan"})
    expected = Failure(worker="localhost:0", error="TrainingError", message="loss=nan")
    assert await job.end() == expected


async def test_an_error_before_the_first_ring_ends_the_job(job):
    first = await job.worker(0, is_ready=False)
    first.send("failed", error={"error": "UserCodeError", "message": "line 3"})
    assert (await job.end()).error == "UserCodeError"
    assert first.place is None


async def test_a_newcomers_error_does_not_end_a_ring_that_trains(job):
    (first,) = await job.ring_of(0)
    second = await job.worker(1, is_ready=False)
    second.send("failed", error={"error": "DataError", "message": "no files here"})
    await job.until(lambda: not second.is_connected)
    assert [e.message for e in job.worker_states("failed")]
    third = await job.worker(1)
    await job.ring(first, third)


@pytest.mark.parametrize("kind", ["ready only", "formed", "hello", "finished", "no code"])
async def test_a_message_that_lacks_its_fields_or_code_costs_only_its_sender(job, kind):
    first, second = await job.ring_of(0, 1)
    if kind == "no code":
        second.send_raw(b'{"kind": "finished", "result": {}}\n')
    else:
        second.send(kind)
    if kind == "ready only":
        second.hang_up()
    await job.ring(first)
    await job.until(lambda: not second.is_connected)


async def test_progress_of_many_members_does_not_keep_it_busy(job):
    (first,) = await job.ring_of(0)
    calls = 0
    advance = job.coordinator._advance

    async def counted(port):
        nonlocal calls
        calls += 1
        await advance(port)

    job.coordinator._advance = counted
    for step in range(200):
        first.send("progress", step=step)
    await job.ring(first, await job.worker(1))
    assert calls < 20


@pytest.mark.job(timings={"silence_seconds": 0.3, "ping_seconds": 0.05})
async def test_a_pause_of_the_coordinator_itself_silences_nobody(job):
    (first,) = await job.ring_of(0)
    time.sleep(0.5)  # The loop stands still, as after SIGSTOP.
    second = await job.worker(1)
    await job.ring(first, second)
    assert [size for size, _ in job.generations()] == [1, 2]


@pytest.mark.job(wanted={"localhost": 2}, spares=1)
async def test_a_spare_takes_a_lost_members_place_in_one_ring(job):
    first, second = await job.ring_of(0, 1)
    spare = await job.worker(2)
    second.hang_up()
    await job.ring(first, spare)
    again = await job.worker(1)  # Its slot comes back, and is the spare one now.
    spare.hang_up()
    await job.ring(first, again)
    assert job.generations() == [(2, True)] * 3


@pytest.mark.job(wanted={"localhost": 2}, spares=1)
async def test_a_leaver_and_the_spare_that_follows_it_change_in_one_ring(job):
    first, second = await job.ring_of(0, 1)
    spare = await job.worker(2)
    second.send("leaving")
    await job.ring(first, spare)
    await job.until(lambda: not second.is_connected)
    assert job.generations() == [(2, True)] * 2


@pytest.mark.job(wanted={"localhost": 2}, spares=1)
async def test_scaling_down_keeps_as_many_spares_as_asked_for(job):
    first, second = await job.ring_of(0, 1)
    spare = await job.worker(2)
    job.hosts(localhost=1)
    await job.ring(first)
    await job.until(lambda: not spare.is_connected)
    assert second.is_connected
    job.hosts(localhost=2)
    await job.ring(first, second)


async def test_a_ring_forms_while_the_disk_is_slow(job, monkeypatch):
    may_write, save = threading.Event(), saved.save

    def save_late(path, ring):
        if ring.generation:
            assert may_write.wait(8.0)
        save(path, ring)

    monkeypatch.setattr(saved, "save", save_late)

    first = await job.worker(0)
    await job.until(lambda: first.step == 0)
    assert job.saved()["generation"] == 0
    may_write.set()
    await job.until(lambda: job.saved()["generation"] == 1)
