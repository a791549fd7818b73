"""Starts of Horovod by itself: one without MPI's Gloo, one without a rendezvous, and an idle ring.

Run as a program with the name of one; it prints how that ended.
"""

import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from tests.parallel.places import set_horovod
from tests.parallel.ring_framework import plain_horovod

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with which a close resets the connection."""


def end_of(init):
    """How `hvd.init()` ends."""
    try:
        init()
    except ValueError:
        return "failed"
    return "started"


def with_mpi():
    """With MPI whose Gloo cannot start; what MPI says of itself afterwards."""
    hvd = plain_horovod()
    if not hvd.mpi_built():
        return "no MPI"
    set_horovod(CONTROLLER="mpi", CPU_OPERATIONS="gloo", GLOO_IFACE="none-such")
    end = end_of(hvd.init)
    hvd.shutdown()
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    is_final = MPI.Is_initialized() and MPI.Is_finalized()
    return f"{end} {'finalised' if is_final else 'not finalised'}"


def without_rendezvous():
    """With a rendezvous that breaks off the connection of each request; their methods first."""
    hvd = plain_horovod()
    server, methods = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        while True:
            connection, _ = server.accept()
            methods.append(connection.recv(4096).split()[0].decode())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    port = server.getsockname()[1]
    set_horovod(RANK=0, SIZE=2, LOCAL_RANK=0, LOCAL_SIZE=2, CROSS_RANK=0, CROSS_SIZE=1)
    set_horovod(HOSTNAME="localhost", GLOO_IFACE="lo", ELASTIC=0, CONTROLLER="gloo")
    set_horovod(CPU_OPERATIONS="gloo", GLOO_RENDEZVOUS_ADDR="127.0.0.1", GLOO_RENDEZVOUS_PORT=port)
    end = end_of(hvd.init)
    return f"{' '.join(sorted(set(methods)))} {end}"


def idle(timeline):
    """A ring of one with nothing to reduce; the cycles a second, which the timeline marks."""
    hvd = plain_horovod()
    set_horovod(CONTROLLER="gloo", CPU_OPERATIONS="gloo", GLOO_IFACE="lo")
    set_horovod(TIMELINE=timeline, TIMELINE_MARK_CYCLES=1)
    hvd.init()
    began = time.monotonic()
    time.sleep(1)
    hvd.shutdown()
    seconds = time.monotonic() - began
    return f"{Path(timeline).read_text().count('CYCLE_START') / seconds:.1f}"


if __name__ == "__main__":
    kinds = {"mpi": with_mpi, "rendezvous": without_rendezvous, "idle": idle}
    sys.stdout.write(f"{kinds[sys.argv[1]](*sys.argv[2:])}\n")
    sys.stdout.flush()
    os._exit(0)
