"""The preStop hook of a pod whose ranks horovodrun started: they leave before their `sshd` ends.

`python -m edl_horovod.cluster.pod.pre_stop --config FILE`. A pod that is being deleted is no longer
a host, so horovodrun assigns the ranks again without it, and its ranks end by themselves after a
step. The end of the `sshd` would end them within one, so this program waits until they are gone.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from edl_horovod.cluster.pod.environment import require_variables
from edl_horovod.config.schema import JobConfig
from edl_horovod.job.directory import JobDir
from edl_horovod.job.hosts import HostsFile
from edl_horovod.supervisor.programs import run_program

POLL_SECONDS = 0.1
GRACE_SHARE = 0.9
"""Share of the pod's grace period that ranks may take before the `sshd` gets SIGTERM."""
RANK = [b"-m", b"edl_horovod.worker"]


def main() -> int:
    """Wait until no rank is left in this pod, or none can leave; returns the exit code."""
    began_at = time.monotonic()

    def wait(config: JobConfig, _args: argparse.Namespace) -> None:
        deadline = began_at + GRACE_SHARE * config.kubernetes.grace_seconds
        require_variables(os.environ, ("EDL_POD_IP",))
        _wait(config, os.environ["EDL_POD_IP"], deadline)

    return run_program(__doc__, wait, source="pre-stop")


def _wait(config: JobConfig, address: str, deadline: float) -> None:
    file = HostsFile(JobDir.of(config).hosts)
    hosts: Mapping[str, int] | None = None
    while ranks(address) and time.monotonic() < deadline:
        changed = file.change()
        hosts = hosts if changed is None else changed
        if hosts is not None and not can_leave(hosts, address, min_np=config.elastic.min_np):
            return
        time.sleep(POLL_SECONDS)


def can_leave(hosts: Mapping[str, int], address: str, *, min_np: int) -> bool:
    """Whether a ring can form without this pod's ranks, or may when discovery sees its deletion.

    Where too few are left, horovodrun deals no places until another pod is there, its ranks wait
    for that, and mpi-operator makes none as long as this pod is there.
    `hosts` maps the addresses of the pods that discovery finds to their slots.
    """
    return address in hosts or sum(hosts.values()) >= min_np


def ranks(address: str, *, processes: Path = Path("/proc")) -> list[int]:
    """Pids of the ranks that horovodrun started on the host with this address."""
    pids = []
    variable = f"HOROVOD_HOSTNAME={address}".encode()
    for folder in processes.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended, or belongs to another user.
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[1:3] == RANK and variable in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return pids


if __name__ == "__main__":
    sys.exit(main())
