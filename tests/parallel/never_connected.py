"""A rank whose one neighbour is lost after it has said where it listens: it never connects.

Run as a program; it prints after how many seconds `hvd.init()` failed once it was in vain.
"""

import asyncio
import ipaddress
import struct
import sys
import threading
import time

from edl_horovod.coordinator.rendezvous import Rendezvous
from edl_horovod.ring.collectives import CollectiveFailed
from edl_horovod.ring.world import form_assigned

GLOO_SECONDS = 15
SCOPE = "global"


def address(host, port):
    """As Gloo writes one: a `sockaddr_storage`, and no number."""
    ip = ipaddress.ip_address(host).packed
    return struct.pack("=H", 2) + struct.pack(">H", port) + ip + bytes(120) + struct.pack("=q", -1)


async def neighbour(server):
    """Say where it listens, as a member does that is killed in the next moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    # Of two addresses the one that is greater connects, and the other waits.
    body = address("127.255.255.254", 1)
    head = f"POST /{server.token}:0/{SCOPE}/1/2 HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer


async def run():
    is_in_vain = threading.Event()
    async with Rendezvous("127.0.0.1", wait_seconds=GLOO_SECONDS) as server:
        place = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 2, "generation": 1}
        place |= {"cross_rank": 0, "cross_size": 1, "host": "localhost"}
        place |= {"rendezvous_address": "127.0.0.1", "rendezvous_port": server.port}
        place |= {"rendezvous_token": server.token}
        forming = asyncio.create_task(
            asyncio.to_thread(
                form_assigned, place, timeout_seconds=GLOO_SECONDS, is_in_vain=is_in_vain.is_set
            )
        )
        await neighbour(server)  # Until both have the other's address.
        await asyncio.sleep(0.5)
        assert not forming.done()
        began = time.monotonic()
        is_in_vain.set()
        try:
            await forming
        except CollectiveFailed:
            sys.stdout.write(f"{time.monotonic() - began:.3f}\n")
            return 0
        return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
