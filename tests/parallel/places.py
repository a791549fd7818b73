"""Places in a ring on this machine, and what Horovod is told of them."""

import os

from edl_horovod.coordinator.messages import Place
from edl_horovod.frameworks.world import World

GLOO_SECONDS = 15
"""Far beyond what any survivor may need."""


def set_horovod(**variables):
    """Set variables HOROVOD_* of this process."""
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in variables.items()})


def set_place(rank, size, port, token):
    """Set what Horovod's launcher tells a rank of a ring on this machine."""
    set_horovod(RANK=rank, SIZE=size, LOCAL_RANK=rank, LOCAL_SIZE=size, CROSS_RANK=0, CROSS_SIZE=1)
    set_horovod(HOSTNAME="localhost", GLOO_IFACE="lo", GLOO_TIMEOUT_SECONDS=GLOO_SECONDS)
    set_horovod(CONTROLLER="gloo", CPU_OPERATIONS="gloo")
    set_horovod(GLOO_RENDEZVOUS_ADDR=f"127.0.0.1:{port}/{token}", GLOO_RENDEZVOUS_PORT=0)


class FormsAtOnce:
    """An adapter whose rings form at once; it keeps their places."""

    def __init__(self):
        self.places = []

    def leave(self):
        pass

    def form_assigned(self, place, **_):
        self.places.append(place)
        return World.of(place)

    def listen_to_driver(self, listener):
        pass


def place_of(rank, port, token, generation=1, size=2):
    """The place of a rank whose rendezvous listens at a port of 127.0.0.1."""
    return Place(
        worker=f"localhost:{rank}",
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        cross_rank=0,
        cross_size=1,
        generation=generation,
        step=0,
        host="localhost",
        rendezvous_address="127.0.0.1",
        rendezvous_port=port,
        rendezvous_token=token,
    )
