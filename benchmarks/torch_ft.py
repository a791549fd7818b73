"""The commands of a training with torchft: a lighthouse, and a process for each replica."""

import socket
from pathlib import Path

__all__ = ["REPLICA", "VARIABLES", "lighthouse", "replica"]

REPLICA = "benchmarks.peers.torch_ft"
VARIABLES = {"GLOO_SOCKET_IFNAME": "lo"}
JOIN_MILLISECONDS = 1000
"""How long a quorum waits for a replica that is there and has not asked; its default is 60 s."""


def lighthouse(python: Path, *, num_replicas: int) -> tuple[tuple[str, ...], str]:
    """The command of what agrees on who takes part, and its URL.

    Args:
        python: An interpreter that has torchft.
        num_replicas: Fewest that go on.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    limits = ("--min_replicas", str(num_replicas), "--join_timeout_ms", str(JOIN_MILLISECONDS))
    program = python.parent / "torchft_lighthouse"
    return (str(program), *limits, "--bind", address), f"http://{address}"


def replica(python: Path, url: str, name: str, *flags: str) -> tuple[str, ...]:
    """The command of one replica.

    Args:
        python: An interpreter that has torchft.
        url: Of the lighthouse.
        name: It ends with a digit, its share of the data.
        *flags: Further ones of the peer.
    """
    return (str(python), "-m", REPLICA, f"--replica={name}", f"--lighthouse={url}", *flags)
