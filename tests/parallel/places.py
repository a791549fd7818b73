"""Places in a ring on this machine."""

from edl_horovod.coordinator.messages import Place


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
