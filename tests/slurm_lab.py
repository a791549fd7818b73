"""A real Slurm on loopback: a controller and two nodes of this machine, in a temporary folder."""

import contextlib
import os
import secrets
import shutil
import subprocess

import pytest

from tests.ports import free_ports
from tests.waiting import end, wait_until

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
START_SECONDS = 30
SETTINGS = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
KillWait=5
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""
NODE = "NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4\n"


def skip_without_slurm():
    """Skip a test where Slurm is not installed."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"Debian's packages slurm-wlm and munge are not installed: no {missing[0]}")


@contextlib.contextmanager
def running_slurm(folder):
    """Run Slurm in a folder; gives the path of its settings, for the variable SLURM_CONF."""
    key, settings = folder / "munge.key", folder / "slurm.conf"
    (folder / "state").mkdir()
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    controller_port, *node_ports = free_ports(1 + len(NODES))
    text = SETTINGS.format(folder=folder, controller_port=controller_port)
    for node, port in zip(NODES, node_ports, strict=True):
        text += NODE.format(node=node, port=port)
    settings.write_text(text)
    environment = os.environ | {"SLURM_CONF": str(settings)}
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    with contextlib.ExitStack() as stack:

        def start(*command):
            log = stack.enter_context((folder / f"{command[0]}.printed").open("a"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(end, process)

        start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge)
        wait_until((folder / "munge.socket").exists, "munged runs", seconds=START_SECONDS)
        start("slurmctld", "-D", "-c")
        for node in NODES:
            start("slurmd", "-D", "-N", node)

        def is_ready():
            sinfo = ["sinfo", "--noheader", "--format=%D %T"]
            answer = subprocess.run(sinfo, env=environment, capture_output=True, text=True)
            return answer.stdout.split() == [f"{len(NODES)}", "idle"]

        wait_until(is_ready, "the nodes are idle", seconds=START_SECONDS, pause=0.2)
        yield settings
        subprocess.run(["scancel", "--user=root", "--full", "--signal=KILL"], env=environment)
