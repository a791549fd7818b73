"""Places in a ring on this machine, and what Horovod is told of them."""

import os

from edl_horovod.coordinator.messages import Place
from edl_horovod.frameworks.world import World


def set_horovod(**variables):
    """Set variables HOROVOD_* of this process."""
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in variables.items()})


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
