"""A network namespace whose loopback is held to a rate, and which ends with its processes.

The benchmark runs itself once more under `unshare --net`: nothing here touches the machine's
network, and the kernel removes the namespace with the last process in it, however that one ends.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Line
from benchmarks.run import SideFailed

OUTER_VARIABLE = "BENCHMARK_OUTER_NAMESPACE"
"""The namespace in which the benchmark was started."""
THIS_NAMESPACE = "/proc/self/ns/net"
BURST_BYTES = 256 * 1024
"""Loopback's packets have up to 64 KiB and their headers (its MTU). A filter with a smaller burst
drops each of them, so that nothing passes at all; one with a much larger burst lets a whole small
message through without a limit."""
LATENCY_MILLISECONDS = 50
"""Longest wait in the filter's queue; TCP keeps less than that in it."""
CHUNK_BYTES = 1 << 20
STUCK_SECONDS = 10.0
LEAST_SHARE, MOST_SHARE = 0.9, 1.05


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What the loopback is held to. All ranks and both directions share it."""

    name: str
    bits_per_second: float
    """0 for no limit."""


NO_LIMIT = Rate(name="no limit", bits_per_second=0.0)


def what_is_missing() -> str:
    """Why there can be no namespace here, as one sentence; empty where there can."""
    if os.geteuid() != 0:
        return "make bench-network needs root: it makes a network namespace and limits its rate."
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("tc", "iproute2")):
        if shutil.which(program) is None:
            return f"make bench-network needs `{program}` (Debian's {package})."
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"make bench-network needs a network namespace: {tried.stderr.strip()}."
    return ""


def enter(module: str, arguments: Sequence[str]) -> None:
    """Run a module, which calls this first, in a new namespace in its place; returns inside it."""
    here = os.readlink(THIS_NAMESPACE)
    if os.environ.get(OUTER_VARIABLE, here) != here:
        _run("ip", "link", "set", "lo", "up")
        return
    os.environ[OUTER_VARIABLE] = here
    os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", module, *arguments])


def set_rate(rate: Rate) -> None:
    """Hold this namespace's loopback to a rate from now on."""
    inside = os.environ.get(OUTER_VARIABLE) not in (None, os.readlink(THIS_NAMESPACE))
    assert inside, "the machine's own loopback must stay as it is"
    qdisc = ("tc", "qdisc")
    if not rate.bits_per_second:
        subprocess.run([*qdisc, "del", "dev", "lo", "root"], capture_output=True)
        return
    limits = ("rate", f"{rate.bits_per_second:.0f}bit", "burst", str(BURST_BYTES))
    latency = ("latency", f"{LATENCY_MILLISECONDS}ms")
    _run(*qdisc, "replace", "dev", "lo", "root", "tbf", *limits, *latency)


def rate_in(text: str) -> float:
    """The rate in bit/s, of what `tc -j qdisc show dev lo` printed; 0 where there is no filter."""
    filters = [qdisc for qdisc in json.loads(text or "[]") if qdisc.get("kind") == "tbf"]
    # tc counts bytes.
    return 8.0 * float(filters[0]["options"]["rate"]) if filters else 0.0


def measure_rate(seconds: float = 1.0) -> float:
    """Rate of a TCP transfer over this loopback, in bit/s of payload.

    Raises:
        TimeoutError: Nothing arrives.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname(), seconds))
        sender.start()
        server.settimeout(STUCK_SECONDS)
        connection, _ = server.accept()
        connection.settimeout(STUCK_SECONDS)
        buffer, num_bytes, began = bytearray(CHUNK_BYTES), 0, 0.0
        with connection:
            while received := connection.recv_into(buffer):
                # The first bytes pass as a burst.
                began, num_bytes = (began, num_bytes + received) if began else (time.monotonic(), 0)
        ended = time.monotonic()
        sender.join()
    return 8.0 * num_bytes / (ended - began)


def _send(address: tuple[str, int], seconds: float) -> None:
    chunk, until = bytes(CHUNK_BYTES), time.monotonic() + seconds
    with socket.create_connection(address, STUCK_SECONDS) as connection:
        while time.monotonic() < until:
            connection.sendall(chunk)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


def measure(run: Any) -> list[Line]:
    """Transfer bytes at each rate of a run."""
    lines = []
    try:
        for rate in run.rates:
            set_rate(rate)
            limit = rate.bits_per_second / 1e9
            transfers = [measure_rate() / 1e9 for _ in range(3)]
            targets = {"least_median": LEAST_SHARE * limit, "most": MOST_SHARE * limit}
            options = {"unit": "G", **(targets if limit else {})}
            lines.append(Line(f"a TCP transfer, {rate.name}", "loopback", transfers, **options))
    except (TimeoutError, ConnectionError) as error:
        raise SideFailed(f"no transfer over the limited loopback: {error}") from error
    finally:
        set_rate(NO_LIMIT)
    return lines
