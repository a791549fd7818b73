"""Membership by Horovod's own elastic driver, for jobs that `horovodrun` launched (D12).

Its limits are Horovod's (docs/how-to/horovodrun.md): survivors wait for a newcomer's cold start,
and a host that failed is not used again.
"""

from contextlib import closing
from dataclasses import replace
from http.client import OK, HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from edl_horovod.coordinator.messages import RANK_FIELDS, Place
from edl_horovod.coordinator.wire import notice_vanished_host
from edl_horovod.errors import EdlError, JobFailed
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.world import World
from edl_horovod.job import outcome
from edl_horovod.job.events import EventLog, JobEvent
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.ring.membership.base import Dismissed, Membership

NO_RANK = -1
CONNECT_SECONDS = 10.0


class HorovodDriverMembership(Membership):
    """Membership of a rank in a ring whose members Horovod's elastic driver chooses.

    The driver notifies only rank 0 of new hosts, and only once. So `wants_change` stays true until
    rank 0 asks the driver for its next place; a collective in each step tells the other ranks.
    """

    def __init__(
        self,
        horovod: Horovod,
        place: Place,
        *,
        timeout_seconds: float,
        events: EventLog,
        result_file: Path,
    ) -> None:
        """Take the first place; `join` asks the driver for later ones.

        Args:
            horovod: Forms the rings.
            place: The first one of this rank; its rendezvous is the driver.
            timeout_seconds: Gloo's time-out, for the forming of a ring and for transfers.
            events: Receives the job's end from the leader; horovodrun writes none.
            result_file: File for the job's outcome.
        """
        super().__init__(horovod)
        self._place = place
        self._key = f"{place.host}:{place.local_rank}"
        self._timeout_seconds = timeout_seconds
        self._events = events
        self._result_file = result_file
        self._has_joined = False
        # Hosts may have come before anybody could be notified: the first ring forms twice.
        self._has_new_hosts = place.rank == 0

    def join(self, step: int) -> World:
        """Form the ring; after the first time, the driver assigns new ranks."""
        self._horovod.leave()
        if not self._has_joined:
            self._has_joined = True
            self._horovod.listen_to_driver(self)
        else:
            # Before asking: a notice from here on may be newer than the answer.
            self._has_new_hosts = False
            self._place = self._next_place()
            self._generation += 1
        self._place = replace(self._place, generation=self._generation, step=max(0, step))
        if step > 0:
            self.expect(World.of(self._place), step)
        return self._horovod.form_assigned(self._place, timeout_seconds=self._timeout_seconds)

    @property
    def own_name(self) -> str:
        """Host and slot: the driver keeps to itself who is in the ring."""
        return self._key

    def on_hosts_updated(self, timestamp: int, update_res: Any) -> None:
        """Called by Horovod's notification service, in its thread."""
        self._has_new_hosts = True

    def wants_change(self) -> bool:
        """Whether the driver has notified this rank of new hosts."""
        return self._has_new_hosts

    def finished(self, result: Success) -> None:
        """Write the result and the event, on the leader."""
        if self._place.rank == 0:
            outcome.save(self._result_file, result)
            steps, metrics, output = result.steps, result.metrics, result.output
            self._events.write(
                JobEvent(state="finished", steps=steps, metrics=metrics, output=output)
            )

    def report_error(self, error: EdlError) -> None:
        """Write the failure, on the leader; the error of another rank does not end the job."""
        if self._place.rank == 0:
            outcome.save(self._result_file, Failure.of(error))
            self._events.write(JobEvent(state="failed", message=str(error)))

    def _next_place(self) -> Place:
        """Ask the driver for this rank's next place; it answers when all ranks have asked or ended.

        `hvd.init()` would ask, too, but it does not report that the driver has no place for this
        rank. Asking again to find out would count as a member that is ready, and break the next
        reset of the other ranks.
        """
        try:
            driver = HTTPConnection(
                self._place.rendezvous_address, self._place.rendezvous_port, timeout=CONNECT_SECONDS
            )
            with closing(driver):
                driver.connect()
                # The driver waits for the other ranks without a limit, so this waits for the driver
                # without one, unless the driver's host vanishes.
                driver.sock.settimeout(None)
                notice_vanished_host(driver.sock)
                driver.request("GET", f"/rank_and_size/{self._key}")
                response = driver.getresponse()
                if response.status != OK:
                    raise HTTPException(f"{response.status} {response.reason}")
                fields = response.read().decode().split(",")
            numbers: dict[str, Any] = dict(zip(RANK_FIELDS, map(int, fields), strict=True))
            place = replace(self._place, **numbers)
        except (OSError, HTTPException, ValueError) as error:
            raise JobFailed(
                "horovodrun did not tell this worker its new rank.",
                received=str(error),
                hint="It has ended, or is ending the job; see its own messages.",
            ) from error
        if place.rank == NO_RANK:
            raise Dismissed("horovodrun has no slot for it any more")
        return place
