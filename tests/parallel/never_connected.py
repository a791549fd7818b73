"""A rank whose one neighbour is lost after it has said where it listens: it never connects.

Run as a program; it prints after how many seconds `hvd.init()` failed once it was told that it is
in vain, and beyond its time-out where nobody tells it, as under plain horovodrun; and whether a
server of the same process, which began to listen meanwhile, serves on.
"""

import asyncio
import ipaddress
import socket
import struct
import sys
import threading
import time

from edl_horovod.coordinator.forming import Rendezvous
from edl_horovod.frameworks.base import CollectiveFailed
from tests.parallel.places import place_of
from tests.parallel.ring_framework import ring_framework
from tests.waiting import hold

TOLD_SECONDS = 15
UNTOLD_SECONDS = 3
SCOPE = "global"


def address(host, port):
    """As Gloo writes one: a `sockaddr_storage`, and no number."""
    ip = ipaddress.ip_address(host).packed
    return struct.pack("=H", 2) + struct.pack(">H", port) + ip + bytes(120) + struct.pack("=q", -1)


async def neighbour(server, host="127.255.255.254"):
    """Say where it listens, as a member does that is killed in the next moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    # Of two addresses the one that is greater connects, and the other waits.
    body = address(host, 1)
    head = f"POST /{server.token}:0/{SCOPE}/1/2 HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer


def what_serves(servers):
    """Whether each of them still takes a connection."""
    for server in servers:
        try:
            with socket.create_connection(server.getsockname()), server:
                server.accept()[0].close()
        except OSError as error:
            return str(error).replace(" ", "_")
    return "serves"


async def form(generation, timeout_seconds, servers, *, is_told):
    """Seconds until it fails, since it was told or since its time-out."""
    is_abandoned = threading.Event()
    async with Rendezvous("127.0.0.1", wait_seconds=timeout_seconds) as server:
        forming = asyncio.create_task(
            asyncio.to_thread(
                ring_framework().horovod.form_assigned,
                place_of(0, server.port, server.token, generation),
                timeout_seconds=timeout_seconds,
                is_abandoned=is_abandoned.is_set,
            )
        )
        await neighbour(server)  # Until both have the other's address.
        began = time.monotonic()
        servers.append(socket.create_server(("127.0.0.1", 0)))
        await hold(lambda: not forming.done(), 0.5)
        if is_told:
            is_abandoned.set()
        try:
            await forming
        except CollectiveFailed:
            return time.monotonic() - began - (0.5 if is_told else timeout_seconds)
    raise AssertionError("a ring of which one member never connected")


async def run():
    servers = []
    seconds = await form(1, TOLD_SECONDS, servers, is_told=True)
    seconds_untold = await form(2, UNTOLD_SECONDS, servers, is_told=False)
    sys.stdout.write(f"{seconds:.3f} {seconds_untold:.3f} {what_serves(servers)}\n")


if __name__ == "__main__":
    asyncio.run(run())
