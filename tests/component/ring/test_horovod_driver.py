"""What a worker under horovodrun makes of its driver's answers.

The ring and Horovod's listener are stand-ins.
"""

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from edl_horovod.errors import JobFailed
from edl_horovod.frameworks.world import World
from edl_horovod.job import events, outcome
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.ring.membership.base import Dismissed
from edl_horovod.ring.membership.horovodrun import HorovodDriverMembership
from tests.parallel.places import FormsAtOnce, place_of


class Driver:
    """Answers each question with the next of `answers`; no answer is a 404."""

    def __init__(self):
        self.answers, self.asked, self.before_answer = [], [], lambda: None
        driver = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                driver.asked.append(self.path)
                driver.before_answer()
                if not driver.answers:
                    self.send_error(404)
                    return
                body = driver.answers.pop(0).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def driver():
    driver = Driver()
    yield driver
    driver.close()


@pytest.fixture
def log(tmp_path):
    with events.EventLog(tmp_path / "events.jsonl", "b:0") as log:
        yield log


RESULT = Success(steps=7, metrics={}, output="/out")
HOST = {"worker": "b:0", "host": "b", "local_rank": 0, "local_size": 1}
PLACE = replace(place_of(1, 0, "", generation=0), **HOST, cross_rank=1, cross_size=2)


@pytest.fixture
def make(driver, log, tmp_path):
    """A membership of a rank; it says which places its rings were formed of."""

    def make_it(rank):
        horovod = FormsAtOnce()
        port = driver.server.server_port
        membership = HorovodDriverMembership(
            horovod,
            replace(PLACE, rank=rank, rendezvous_port=port),
            timeout_seconds=30.0,
            events=log,
            result_file=tmp_path / "result.json",
        )
        return membership, horovod.places

    return make_it


@pytest.fixture
def membership(make):
    """Of rank 1, in its first ring."""
    membership, _ = make(1)
    membership.join(-1)
    return membership


def test_the_first_place_is_in_the_environment_and_later_ones_are_the_drivers(make, driver):
    membership, places = make(1)
    membership.join(-1)
    assert places == [replace(PLACE, rendezvous_port=driver.server.server_port)]
    assert not driver.asked
    driver.answers = ["0,3,0,1,0,3"]
    assert membership.join(7) == World(rank=0, size=3, generation=1)
    assert (places[1].cross_size, places[1].step, places[1].host) == (3, 7, "b")
    assert driver.asked == ["/rank_and_size/b:0"]


def test_a_rank_counts_on_from_what_the_ranks_agree_on(membership, driver):
    membership.agree(4)
    driver.answers = ["0,3,0,1,0,3"]
    assert membership.join(7).generation == 5


def test_a_worker_without_a_place_goes_and_asks_no_second_time(membership, driver):
    driver.answers = ["-1,-1,-1,-1,-1,-1"]
    with pytest.raises(Dismissed, match="no slot"):
        membership.join(7)
    assert len(driver.asked) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_leader_has_the_ring_formed_anew(make, rank):
    first, _ = make(rank)
    first.join(-1)
    assert first.wants_change() is (rank == 0)


@pytest.mark.parametrize("is_told_while_it_answers", [False, True])
def test_an_answer_settles_what_was_told_before_it_alone(
    membership, driver, is_told_while_it_answers
):
    driver.answers = ["0,1,0,1,0,1"]
    if is_told_while_it_answers:
        driver.before_answer = lambda: membership.on_hosts_updated(1, None)
    else:
        membership.on_hosts_updated(1, None)
    membership.join(7)
    assert membership.wants_change() is is_told_while_it_answers


@pytest.mark.parametrize("answer", [None, "", "0,1", "a,b,c,d,e,f"])
def test_a_driver_that_says_nothing_sensible_is_an_error_of_ours(membership, driver, answer):
    driver.answers = [] if answer is None else [answer]
    with pytest.raises(JobFailed, match="horovodrun"):
        membership.join(7)


def test_the_leader_alone_tells_of_the_end(membership, driver, tmp_path):
    membership.finished(RESULT)
    assert not events.read(tmp_path / "events.jsonl")
    assert not (tmp_path / "result.json").exists()
    driver.answers = ["0,1,0,1,0,1"]
    membership.join(7)
    membership.finished(RESULT)
    result = tmp_path / "result.json"
    assert outcome.load(result) == RESULT
    membership.report_error(JobFailed("no"))
    assert outcome.load(result) == Failure(error="JobFailed", message="no")
    reported = [e.event for e in events.read(tmp_path / "events.jsonl")]
    assert [(e.state, e.message) for e in reported] == [("finished", ""), ("failed", "no")]
