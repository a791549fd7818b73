"""Hosts on one machine: network namespaces with own addresses, joined by a switch.

The switch is a bridge in a namespace of its own, so nothing here touches the machine's network, nor
the hosts of another process that have the same addresses. All names begin with `edl-` and this
process' number; what a killed run left behind is removed by the next one.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_until
from tests.warm import start_program

PREFIX = "edl-"
NAMESPACES = Path("/run/netns")
"""Where `ip` keeps them by name."""
INTERFACE = "eth0"
"""Name of the one interface inside each host."""


def what_is_missing():
    """Why there can be no hosts here, as one sentence; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip` (Debian's iproute2)"
    tried = try_ip("netns", "add", f"{PREFIX}{os.getpid()}-try")
    if tried.returncode != 0:
        return f"no network namespace can be made here: {tried.stderr.strip()}"
    ip("netns", "del", f"{PREFIX}{os.getpid()}-try")
    return ""


def ip(*arguments):
    """Run `ip`; returns what it printed."""
    done = try_ip(*arguments)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def try_ip(*arguments):
    """Run `ip`, which may fail."""
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


class Host:
    """One namespace: an address, and processes that run in it."""

    def __init__(self, lab, number):
        self.address = f"10.77.0.{number}"
        self.name = f"{lab.prefix}h{number}"
        self.children = []
        self._lab, self._port = lab, f"port{number}"
        ip("netns", "add", self.name)
        peer = ("peer", "name", INTERFACE, "netns", self.name)
        ip("-n", lab.switch, "link", "add", self._port, "type", "veth", *peer)
        ip("-n", lab.switch, "link", "set", self._port, "master", "lan", "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", INTERFACE)
        ip("-n", self.name, "link", "set", INTERFACE, "up")

    def start(self, *command, log, **variables):
        """Start a process on this host; it ends with this test run, whatever happens."""
        with Path(log).open("ab") as stream:
            child = start_program(
                list(map(str, command)),
                environment={**os.environ, **variables},
                output=stream,
                namespace=self.name,
                has_input=True,
            )
        self.children.append(child)
        return child

    def python(self, program, *, log):
        """Start a program that is given as text."""
        return self.start(sys.executable, "-c", program, log=log)

    def cut(self):
        """Cut the link: from now on nothing arrives and nothing is answered."""
        ip("-n", self._lab.switch, "link", "set", self._port, "down")

    def mend(self):
        """Plug the link in again."""
        ip("-n", self._lab.switch, "link", "set", self._port, "up")

    def move_to(self, address):
        """Give it another address in place of its own, as a router does that starts again."""
        # In this order: with the first address of a network its others go, too.
        ip("-n", self.name, "address", "del", f"{self.address}/24", "dev", INTERFACE)
        ip("-n", self.name, "address", "add", f"{address}/24", "dev", INTERFACE)
        self.address = address

    def part_from(self, other, *, silently):
        """Let neither of two hosts reach the other any more; both still reach all the rest.

        Silently, as a filter drops packets, or with an error at once.
        """
        for host, peer in ((self, other), (other, self)):
            if silently:
                port = ("-n", host._lab.switch, "link", "set", "dev", host._port)
                ip(*port, "type", "bridge_slave", "isolated", "on")
            else:
                ip("-n", host.name, "route", "add", "unreachable", peer.address)

    def pids(self):
        """All processes that run on this host."""
        return [int(word) for word in ip("netns", "pids", self.name).split()]


class Lab:
    """A switch, and the hosts on it; use it in a `with`."""

    def __init__(self):
        self.prefix = f"{PREFIX}{os.getpid()}-"
        self.switch = f"{self.prefix}switch"
        self.hosts = []

    def __enter__(self):
        remove_what_dead_runs_left()
        ip("netns", "add", self.switch)
        try:
            ip("-n", self.switch, "link", "add", "name", "lan", "type", "bridge")
            ip("-n", self.switch, "link", "set", "dev", "lan", "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def host(self):
        """Add a host."""
        self.hosts.append(Host(self, len(self.hosts) + 1))
        return self.hosts[-1]

    def close(self):
        """End all processes on all hosts, then remove the hosts and the switch."""
        remove(self.prefix)
        for host in self.hosts:
            for child in host.children:
                child.stdin.close()
                child.wait(10)


def remove(prefix):
    """Remove all namespaces with a prefix, and what runs in them; others may do so meanwhile."""
    for path in NAMESPACES.glob(f"{prefix}*"):
        # A namespace lives as long as a process in it, and what runs here was started here.
        wait_until(lambda name=path.name: _is_left_alone(name), path.name)
        removed = try_ip("netns", "del", path.name)
        assert removed.returncode == 0 or not path.exists(), removed.stderr


def _is_left_alone(namespace):
    """Kill what runs in a namespace; returns whether nothing does."""
    pids = try_ip("netns", "pids", namespace).stdout.split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return not pids


def remove_what_dead_runs_left():
    """Remove namespaces of runs whose process is no more."""
    numbers = {path.name.split("-")[1] for path in NAMESPACES.glob(f"{PREFIX}*-*")}
    for number in numbers:
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            remove(f"{PREFIX}{number}-")
