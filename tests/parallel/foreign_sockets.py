"""A rank that opens connections of its own while its ring forms.

Run as a program; it prints the TCP_USER_TIMEOUT of each of those connections, and of each of the
ring's, in milliseconds.
"""

import asyncio
import os
import socket
import sys
import threading

from edl_horovod.coordinator.forming import Rendezvous
from tests.parallel.forks import fork
from tests.parallel.places import place_of
from tests.parallel.ring_framework import plain_horovod, ring_framework
from tests.waiting import hold

TIMEOUT_SECONDS = 20
MANY_LOOKS_SECONDS = 1.0


def be_rank(rank, address, may_form):
    """Form a ring of two as soon as a line is read."""
    os.read(may_form, 1)
    port, token = address
    os.environ["HOROVOD_GLOO_IFACE"] = "lo"
    ring_framework().horovod.form_assigned(
        place_of(rank, port, token), timeout_seconds=TIMEOUT_SECONDS, is_abandoned=lambda: False
    )


def be_other_rank(address, may_form, may_leave, say):
    """The ring's other member."""
    be_rank(1, address, may_form)
    say("formed")
    os.read(may_leave, 1)
    plain_horovod().shutdown()


def sockets():
    """Descriptors of this process' TCP connections, of those that are connected."""
    timeouts = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            borrowed = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with borrowed:
            if borrowed.family == socket.AF_INET and borrowed.type == socket.SOCK_STREAM:
                try:
                    borrowed.getpeername()
                except OSError:
                    continue
                option = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                timeouts[int(name)] = option
    return timeouts


async def run():
    pipes = {name: os.pipe() for name in ("ours", "others", "leave")}
    address_read, address_write = os.pipe()

    def other(say):
        port, token = os.read(address_read, 100).decode().split()
        be_other_rank((int(port), token), pipes["others"][0], pipes["leave"][0], say)

    _, said = fork(other)  # Before there are threads.
    foreign_server = socket.create_server(("127.0.0.1", 0))
    async with Rendezvous("127.0.0.1", wait_seconds=TIMEOUT_SECONDS) as server:
        os.write(address_write, f"{server.port} {server.token}".encode())
        ours = threading.Thread(
            target=be_rank, args=(0, (server.port, server.token), pipes["ours"][0])
        )
        ours.start()
        os.write(pipes["ours"][1], b"x")
        await hold(ours.is_alive, MANY_LOOKS_SECONDS)  # This rank waits for the other one.
        client = socket.create_connection(foreign_server.getsockname())
        accepted = foreign_server.accept()[0]
        foreign = {client.fileno(), accepted.fileno()}
        await hold(ours.is_alive, MANY_LOOKS_SECONDS)
        os.write(pipes["others"][1], b"x")
        await asyncio.to_thread(ours.join)
        assert said.recv() == "formed"
    await asyncio.sleep(0.1)  # The server's own connections end.
    of_ring = sockets()
    of_foreign = [of_ring.pop(descriptor) for descriptor in foreign]
    for kind, times in (("foreign", of_foreign), ("ring", of_ring.values())):
        sys.stdout.write(" ".join([kind, *map(str, times)]) + "\n")
    client.sendall(b"x")
    assert accepted.recv(1) == b"x"
    os.write(pipes["leave"][1], b"x")
    plain_horovod().shutdown()


if __name__ == "__main__":
    asyncio.run(run())
    sys.stdout.flush()
    os._exit(0)
