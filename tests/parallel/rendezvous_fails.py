"""A rank whose rendezvous breaks off the connection of each request.

Run as a program; it prints the methods of the requests that came, and how `hvd.init()` ended.
"""

import os
import socket
import struct
import sys
import threading

from tests.parallel.ring_framework import plain_horovod

LINGER_NOT = struct.pack("ii", 1, 0)
"""A close resets the connection."""


def serve(server, methods):
    """Read a request's first line, and reset its connection."""
    while True:
        connection, _ = server.accept()
        methods.append(connection.recv(4096).split()[0].decode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        connection.close()


def main():
    hvd = plain_horovod()
    server, methods = socket.create_server(("127.0.0.1", 0)), []
    threading.Thread(target=serve, args=(server, methods), daemon=True).start()
    names = {"RANK": 0, "SIZE": 2, "LOCAL_RANK": 0, "LOCAL_SIZE": 2, "CROSS_RANK": 0}
    names |= {"CROSS_SIZE": 1, "HOSTNAME": "localhost", "GLOO_IFACE": "lo", "ELASTIC": 0}
    names |= {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
    names |= {"GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}
    names |= {"GLOO_RENDEZVOUS_PORT": server.getsockname()[1]}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in names.items()})
    try:
        hvd.init()
        end = "formed"
    except ValueError:
        end = "failed"
    sys.stdout.write(f"{' '.join(sorted(set(methods)))} {end}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
