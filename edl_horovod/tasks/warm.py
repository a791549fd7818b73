"""Getting warm: from a job's settings to its work. Everything slow is here, outside rings (D9)."""

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import Framework
from edl_horovod.job.events import EventLog
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.log import warnings_as_events
from edl_horovod.models.framework_name import framework_name, other_framework
from edl_horovod.ring.loop import Work
from edl_horovod.tasks.zoo_copy import ZooCopyChecker, forked_zoo_copy_checker

log = logging.getLogger(__name__)


def framework_of(config: JobConfig) -> Framework:
    """Import the framework of a job's model, and the module of the job's task."""
    importlib.import_module(TASKS[config.task].module)
    entry = FRAMEWORKS[framework_name(config)]
    framework: Framework = importlib.import_module(entry.module).FRAMEWORK
    return framework


@contextlib.contextmanager
def zoo_copy_checker_of(
    config: JobConfig, identity: WorkerIdentity
) -> Iterator[ZooCopyChecker | None]:
    """Start a process that test-loads the zoo's copy, in the first worker of a host; else None.

    It is forked, so this must be entered before `make_warm`, and before threads that take locks.
    """
    if not TASKS[config.task].takes_zoo or identity.slot != 0:
        yield None
        return
    with forked_zoo_copy_checker(config, framework_of(config)) as checker:
        yield checker


@contextlib.contextmanager
def make_warm(
    config: JobConfig,
    events: EventLog,
    identity: WorkerIdentity,
    checker: ZooCopyChecker | None = None,
) -> Iterator[Work]:
    """Open the data, load and build the model, trace its steps.

    Args:
        config: The job.
        events: This worker's writer of the job's event log.
        identity: This worker.
        checker: Test-loads the copy of the model zoo, for tasks that take a zoo; None to skip that.

    Raises:
        EdlError: The settings, the user's code or the data are at fault.
    """
    framework = framework_of(config)
    num_gpus = framework.begin(slot=identity.slot, seed=config.data_plan.seed)
    task = importlib.import_module(TASKS[config.task].module)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings_as_events(events))
        if not num_gpus and (gpu_request := _gpu_request(config)):
            log.warning(
                "worker %s: a GPU is requested (%s), and %s sees none here, so this rank computes"
                " on the processor; look for its driver, and for a build of the framework that has"
                " GPUs",
                identity.label,
                gpu_request,
                framework.name,
            )
        more = (checker,) if TASKS[config.task].takes_zoo else ()
        try:
            work: Work = task.make_warm(config, framework, events, identity, stack, *more)
        except UserCodeError as e:
            if not (other := other_framework(config)):
                raise
            hint = (
                f" The model's file imports {other}, but framework={framework.name} was set. Set"
                f" framework={other}, or leave it out."
            )
            raise e.with_more_hint(hint) from e
        log.info("warm")
        yield work


def _gpu_request(config: JobConfig) -> str:
    """The setting or variable that requests a GPU, as `key=value`; empty if none does."""
    if request := config.gpu_request:
        return request
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return f"CUDA_VISIBLE_DEVICES={devices}" if devices not in ("", "-1") else ""
