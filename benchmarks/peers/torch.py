"""Trainings in PyTorch, as the documents of PyTorch, Horovod and torchft teach them.

Only PyTorch and NumPy are imported here: the peers' environments need not have our packages.
"""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.models.torch_network import MODELS
from benchmarks.side import Numbers, StepClock, Work
from benchmarks.stamps import Stamper, write_memory

CHECKPOINT_STEPS = 50
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def train(
    work: Work,
    place: Path,
    model: str,
    kind: str,
    stamps: str | None = None,
    threads: int | None = None,
) -> Numbers | None:
    """Train as a rank of a ring that does not change: a `loop` alone, `ddp`, or `horovod`.

    DDP is on Gloo under a static `torchrun`. Horovod's optimizer follows
    https://horovod.readthedocs.io/en/stable/pytorch.html; the learning rate is not scaled, because
    the global batch is that of the other sides. With a folder of stamps, ranks read by a
    `DataLoader` and stamp their steps; without it they read tensors in memory.
    """
    rank, size = 0, 1
    network, optimizer = _make(model, threads)
    if kind == "ddp":
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        network = DistributedDataParallel(network)
    elif kind == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        named = network.named_parameters()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
        hvd.broadcast_parameters(network.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    clock = StepClock(work.warmup_steps)
    if stamps is None:
        data, stamper = _batches_in_memory(work, rank, size), None
    else:
        data = _batches(work.data, work.batch_size // size, rank=rank, size=size)
        stamper = Stamper(Path(stamps) / f"{rank}.{os.getpid()}")
    for step in range(work.total_steps):
        _train_on(network, optimizer, *next(data))
        clock.tick()
        if stamper is not None:
            stamper.step(step + 1, size)
    if stamps is not None:
        write_memory(Path(stamps), str(rank))
    if kind == "ddp":
        dist.barrier()  # A rank that leaves while another one is in its last step lets it hang.
        # The group must not end with DDP, which would wait for its threads and hold Python's lock.
        del network
        dist.destroy_process_group()
    return {"step_seconds": clock.step_seconds} if rank == 0 else None


def train_elastic(work: Work, place: Path, agent: str, stamps: str, timeout: float) -> None:
    """Train by DDP on Gloo under elastic `torchrun` agents until a signal ends it.

    Follows https://docs.pytorch.org/docs/stable/elastic/train_script.html: load the checkpoint at
    the start, save one now and then. Collectives are given up after the time-out, in seconds.
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    network, optimizer = _make("small")
    checkpoint = Path(stamps).parent / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        network.load_state_dict(saved["model"])
        step = saved["step"]
    parallel = DistributedDataParallel(network)
    rank, size = dist.get_rank(), dist.get_world_size()
    data = _batches(work.data, work.batch_size // size, rank=rank, size=size)
    stamper = Stamper(Path(stamps) / f"{agent}.{os.getpid()}")
    while True:
        _train_on(parallel, optimizer, *next(data))
        step += 1
        stamper.step(step, size)
        if step % CHECKPOINT_STEPS == 0 and rank == 0:
            whole = checkpoint.with_suffix(".new")
            torch.save({"model": network.state_dict(), "step": step}, whole)
            whole.replace(checkpoint)


def replica(
    work: Work,
    place: Path,
    name: str,
    lighthouse: str,
    stamps: str,
    model: str = "small",
    total_steps: int = 0,
    num_replicas: int = 1,
    timeout: float = 60.0,
    is_pure: bool = False,
    local_steps: int = 0,
) -> None:
    """Train as a replica of torchft, whose name ends with the number of its share of the data.

    Follows https://docs.pytorch.org/torchft/: quorums by a lighthouse, gradients over Gloo, and the
    state of a newcomer from another replica. A pure one sums each parameter by itself: with
    buckets, torchft 0.2.0 ends with a replica that is killed. With local steps it trains in rounds
    of so many, by DiLoCo, and a step of the job is a round.
    """
    import torchft
    import torchft.ddp
    import torchft.local_sgd

    network, optimizer = _make(model)
    seconds = timedelta(seconds=timeout)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load_state(state: dict[str, Any]) -> None:
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=seconds),
        load_state_dict=load_state,
        state_dict=lambda: {"model": network.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=num_replicas,
        timeout=seconds,
        quorum_timeout=seconds,
        use_async_quorum=not local_steps,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        hostname="localhost",
        lighthouse_addr=lighthouse,
        replica_id=name,
    )
    trained: nn.Module = network
    managed: Any = optimizer
    if local_steps:
        outer = torch.optim.SGD(network.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        rounds = torchft.local_sgd.DiLoCo(manager, [network], optimizer, outer, local_steps)
        # Until the process ends.
        rounds.__enter__()
    else:
        pure, bucketed = torchft.ddp.PureDistributedDataParallel, torchft.DistributedDataParallel
        trained = (pure if is_pure else bucketed)(manager, network)
        managed = torchft.Optimizer(manager, optimizer)
    stamper = Stamper(Path(stamps) / f"{name}.{os.getpid()}")
    leaving: list[bool] = []
    # Between two steps, so that the others need not wait for a time-out.
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
    # Its sampler of a fixed number of replicas knows no ring that changes; it reads half.
    data = _batches(work.data, work.batch_size // 2, rank=int(name[-1]), size=2)
    while not leaving and (not total_steps or manager.current_step() < total_steps):
        before = manager.current_step()
        _train_on(trained, managed, *next(data))
        if manager.current_step() > before:
            stamper.step(manager.current_step(), manager.num_participants())
    write_memory(Path(stamps), name)
    manager.shutdown(wait=False)
    # Its threads would keep the process.
    os._exit(0)


def _make(name: str, threads: int | None = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer, the same on all ranks."""
    torch.set_num_threads(threads or int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    make_network, make_optimizer, learning_rate = MODELS[name]
    network = make_network().to(DEVICE)
    return network, make_optimizer(network.parameters(), learning_rate)


def _arrays(data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(data / "pictures.npz") as arrays:
        return torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["label"])


def _batches(data: Path, batch_size: int, *, rank: int, size: int) -> Batches:
    """A rank's pictures and labels, shuffled in each epoch, without an end."""
    dataset = TensorDataset(*_arrays(data))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        dataset, num_replicas=size, rank=rank
    )
    loader = DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for picture, label in loader:
            yield picture.float() / 255, label
        epoch += 1


def _batches_in_memory(work: Work, rank: int, size: int) -> Batches:
    """The same by indices alone."""
    pictures, labels = _arrays(work.data)
    random, batch_size = torch.Generator().manual_seed(0), work.batch_size
    while True:
        order = torch.randperm(len(labels), generator=random)
        for start in range(0, len(order) - batch_size + 1, batch_size):
            indices = order[start + rank : start + batch_size : size]
            yield pictures[indices].float() / 255, labels[indices]


def _train_on(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pictures: torch.Tensor,
    labels: torch.Tensor,
) -> None:
    """A step; returns when its loss is there."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures.to(DEVICE)), labels.to(DEVICE))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    loss.item()
