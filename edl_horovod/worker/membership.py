"""The membership of a rank, by who deals the places."""

import logging

from edl_horovod.config.schema import ElasticConfig, JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.horovod import Horovod, patch_warning
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog
from edl_horovod.ring.membership.base import Membership
from edl_horovod.ring.membership.coordinated import (
    CoordinatedMembership,
    CoordinatedTimings,
    CoordinatorAddress,
)
from edl_horovod.ring.membership.horovodrun import HorovodDriverMembership
from edl_horovod.ring.membership.static import StaticMembership
from edl_horovod.worker.environment import WorkerEnvironment

__all__ = ["make_membership"]

log = logging.getLogger("edl_horovod.worker")


def make_membership(
    environment: WorkerEnvironment, config: JobConfig, events: EventLog, horovod: Horovod
) -> Membership:
    """The membership that the environment asks for.

    Raises:
        ConfigError: No launcher has started this process.
        MissingDependency: The ranks are mpirun's, and Horovod was built without MPI.
    """
    kind, result = environment.membership, JobDir.of(config).result
    if not kind:
        raise ConfigError(
            "A worker is started by a launcher, which tells it where its ring is.",
            received="no EDL_COORDINATOR and no HOROVOD_GLOO_RENDEZVOUS_ADDR in the environment",
            hint="Use `edl train`, or `horovodrun ... python -m edl_horovod.worker --config ...`.",
        )
    if kind == "static":
        return StaticMembership(horovod, result)
    if warning := patch_warning(horovod.patch_version()):
        log.warning("%s", warning)
    if kind == "coordinator":
        return _coordinated(environment, config.elastic, horovod)
    assert environment.driver_place is not None
    return HorovodDriverMembership(
        horovod,
        environment.driver_place,
        timeout_seconds=environment.driver_timeout_seconds,
        events=events,
        result=result,
    )


def _coordinated(
    environment: WorkerEnvironment, config: ElasticConfig, horovod: Horovod
) -> CoordinatedMembership:
    assert environment.secret_file is not None
    address = CoordinatorAddress(
        host=environment.identity.coordinator_host,
        port=environment.coordinator_port,
        secret=environment.secret_file.read_bytes(),
        worker_host=environment.identity.host,
        slot=environment.identity.slot,
    )
    timings = CoordinatedTimings(
        forming_seconds=config.forming_seconds,
        # In a cluster the coordinator's pod may still be waiting for a node.
        first_seconds=config.wait_seconds,
        away_seconds=config.coordinator_away_seconds,
    )
    return CoordinatedMembership(horovod, address, timings)
