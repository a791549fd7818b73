"""The life of a rank: it gets warm, then works in one ring after another until the end."""

import faulthandler
import logging
import signal
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.coordinator import tokens
from edl_horovod.coordinator.tokens import PartyToken
from edl_horovod.errors import SEE_DOCTOR, ConfigError, EdlError, MissingDependency
from edl_horovod.frameworks.horovod import NEEDED_PATCH, Horovod, patch_warning
from edl_horovod.job import timeline
from edl_horovod.job.directory import JobDir
from edl_horovod.job.earlier import was_filled_by
from edl_horovod.job.events import EventLog
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.output_checks import check_can_be_written, check_is_free, check_paths
from edl_horovod.job.timeline import Timeline
from edl_horovod.ring import loop
from edl_horovod.ring.activity import Activity, accounted
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership import coordinated
from edl_horovod.ring.membership.base import Dismissed, Membership, StaticMembership
from edl_horovod.ring.membership.horovodrun import HorovodDriverMembership
from edl_horovod.ring.membership.links import PartyLinks, PartySettings
from edl_horovod.tasks.warm import framework_of, make_warm, zoo_copy_checker_of
from edl_horovod.worker.environment import WorkerEnvironment, shown_as_ready

log = logging.getLogger("edl_horovod.worker")

EXIT_FOR_ANOTHER = 75
"""Exit code of a dismissed worker whose pod should be restarted; not one of an `EdlError`."""
SAY_SECONDS = 2.0
"""After this time a worker says that it waits for its launcher."""
SLOW_END_SECONDS = 30.0
"""A dismissed worker that still runs after this time writes the stacks of its threads."""


def work(config: JobConfig, config_file: Path, environment: WorkerEnvironment) -> int:
    """Get warm and be a rank; returns the process' exit code."""
    identity, activity = environment.identity, activity_of(config)
    with (
        open_events(config, config_file, environment) as events,
        zoo_copy_checker_of(config, identity) as checker,
        recorded_timeline(config, activity, events, identity),
        accounted(activity, events),
    ):
        await_launcher(config, environment, activity)
        warm = make_warm(config, events, identity, checker)
        is_final = be_rank(config, events, environment, warm, activity)
    # A container that ends with 0 is not started again.
    return 0 if is_final or environment.ready_file is None else EXIT_FOR_ANOTHER


def await_launcher(config: JobConfig, environment: WorkerEnvironment, activity: Activity) -> None:
    """In a pod, wait until the job's launcher has removed what an earlier job left in `job_dir`.

    A worker that read an earlier job's checkpoint would begin with it. The launcher's pod may wait
    for a node for hours.
    """
    job_dir, secret_file = JobDir.of(config), environment.secret_file
    if environment.ready_file is None or secret_file is None:
        return
    began, has_said = time.monotonic(), False
    with activity.doing("unwatched", "waiting for the launcher", "coordinator_away"):
        while not was_filled_by(job_dir, secret_file):
            if not has_said and time.monotonic() - began > SAY_SECONDS:
                has_said = True
                log.info("waiting for the job's launcher, which has not begun")
            time.sleep(0.5)


def activity_of(config: JobConfig) -> Activity:
    """Begin to note what this process does, also for a timeline if the settings want one."""
    return Activity(timeline=Timeline() if config.debug.timeline else None)


def recorded_timeline(
    config: JobConfig, activity: Activity, events: EventLog, identity: WorkerIdentity
) -> AbstractContextManager[None]:
    """Write this process' timeline, if it has one."""
    return timeline.recorded(
        activity.timeline,
        JobDir.of(config).timeline_parts,
        identity.label,
        has_room=events.has_room,
        end_phase=lambda: activity.begin(*activity.current),
    )


def open_events(config: JobConfig, config_file: Path, environment: WorkerEnvironment) -> EventLog:
    """Open the job's directory, which this process may enter before its launcher, or without one.

    Raises:
        OutputError: A path of the job belongs to another job.
    """
    job_dir = JobDir.of(config)
    job_dir.enter(config_file)
    if not environment.has_launcher:
        check_paths(config)
    return EventLog(job_dir.events, environment.identity.label)


def be_rank(
    config: JobConfig,
    events: EventLog,
    environment: WorkerEnvironment,
    warm: AbstractContextManager[Work],
    activity: Activity,
) -> bool:
    """Work as a rank until dismissed or done; returns whether no other must take its place."""
    with ExitStack() as stack:
        if not environment.has_launcher:
            if (config.displays or config.debug.timeline) and not JobDir.of(config).is_running():
                log.warning("displays and debug.timeline need a launcher of edl, and there is none")
            check_is_free(config)  # Later, ranks only check for results of other jobs.
            check_can_be_written(config)
            stack.enter_context(JobDir.of(config).in_use())
        membership = make_membership(environment, config, events, framework_of(config).horovod)
        membership.activity = activity
        stack.callback(membership.close)
        _leave_on_sigterm(membership)
        try:
            job = stack.enter_context(warm)
            stack.enter_context(shown_as_ready(environment.ready_file))
            result = loop.run(job, membership, events)
            activity.begin("unwatched", "the end of the job", "ending")
            membership.finished(result)
        except Dismissed as dismissal:
            activity.begin("unwatched", "the end of this rank", "ending")
            log.info("dismissed: %s", dismissal)
            faulthandler.dump_traceback_later(SLOW_END_SECONDS)
            return dismissal.is_final
        except EdlError as error:
            membership.report_error(error)
            raise
    return True


def _leave_on_sigterm(membership: Membership) -> None:
    """At SIGTERM, leave the ring after the current step, and then end with exit code 0."""

    def leave(_signal: int, _frame: object) -> None:
        # In a thread: the interrupted code may hold the lock for sending messages.
        threading.Thread(target=membership.leave_soon, daemon=True).start()

    signal.signal(signal.SIGTERM, leave)


def make_membership(
    environment: WorkerEnvironment, config: JobConfig, events: EventLog, horovod: Horovod
) -> Membership:
    """Create the membership that the environment variables of the launcher select.

    Raises:
        ConfigError: This process was not started by a launcher.
        MissingDependency: mpirun started it, and Horovod was built without MPI; or it is a party,
            and Horovod lacks our patch.
    """
    kind, result_file = environment.membership, JobDir.of(config).result
    if not kind:
        raise ConfigError(
            "A worker must be started by a launcher, whose variables say how to join the ring.",
            received="no EDL_COORDINATOR and no HOROVOD_GLOO_RENDEZVOUS_ADDR in the environment",
            hint="Use `edl train`, or `horovodrun ... python -m edl_horovod.worker --config ...`.",
        )
    if kind == "static":
        return StaticMembership(horovod, environment.identity.label, result_file)
    if warning := patch_warning(horovod.patch_version()):
        log.warning("%s %s", warning, SEE_DOCTOR)
    if kind == "coordinator":
        return _coordinated(environment, config, horovod)
    assert environment.driver_place is not None
    return HorovodDriverMembership(
        horovod,
        environment.driver_place,
        timeout_seconds=environment.driver_timeout_seconds,
        events=events,
        result_file=result_file,
    )


def _coordinated(environment: WorkerEnvironment, config: JobConfig, horovod: Horovod) -> Membership:
    elastic, result_file, party_links = config.elastic, None, None
    if environment.token_file is not None:
        token = tokens.read(environment.token_file)
        secret = bytes.fromhex(token.secret)
        result_file = JobDir.of(config).result
        party_links = _links_of(token, environment, config, horovod)
    else:
        assert environment.secret_file is not None
        secret = environment.secret_file.read_bytes()
    address = coordinated.CoordinatorAddress(
        host=environment.identity.coordinator_host,
        port=environment.coordinator_port,
        secret=secret,
        worker_host=environment.identity.host,
        slot=environment.identity.slot,
    )
    timings = coordinated.CoordinatedTimings(
        forming_seconds=elastic.forming_seconds,
        # In a cluster the coordinator's pod may still be waiting for a node.
        first_seconds=elastic.wait_seconds,
        away_seconds=elastic.coordinator_away_seconds,
    )
    return coordinated.CoordinatedMembership(horovod, address, timings, result_file, party_links)


def _links_of(
    token: PartyToken, environment: WorkerEnvironment, config: JobConfig, horovod: Horovod
) -> PartyLinks | None:
    if token.identity is None:
        return None
    if (patch := horovod.patch_version()) < NEEDED_PATCH:
        raise MissingDependency(
            f"Encryption between parties needs patch {NEEDED_PATCH} of Horovod, and this one has"
            f" {patch or 'none'}.",
            hint="Rebuild Horovod: edl setup-horovod.",
        )
    assert environment.token_file is not None
    return PartyLinks(
        PartySettings(
            party=token.party,
            identity=token.identity,
            token_file=environment.token_file,
            host=environment.identity.coordinator_host,
            port=environment.coordinator_port,
            address=config.federated.address,
            forming_seconds=config.elastic.forming_seconds,
        )
    )
