"""A PyTorch training with torchft, as its documents teach it: each process a replica of its own.

Follows https://docs.pytorch.org/torchft/: quorums by a lighthouse, gradients over Gloo, and the
state of a newcomer from another replica.
"""

import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torchft
import torchft.ddp

from benchmarks.elastic.stamps import Stamper
from benchmarks.peers.torch_loop import batches, make, parser, train_on
from benchmarks.watched import write_memory


def main() -> int:
    """Train as one replica; returns the exit code."""
    arguments = parser(str(__doc__).partition("\n")[0])
    arguments.add_argument("--replica", required=True, help="its name")
    arguments.add_argument("--lighthouse", required=True, help="its URL")
    arguments.add_argument("--replicas", type=int, default=1, help="fewest that go on")
    arguments.add_argument("--timeout", type=float, default=60.0, help="of its operations, seconds")
    arguments.add_argument(
        "--pure",
        action="store_true",
        help="a sum a parameter: with buckets, torchft 0.2.0 ends with a replica that is killed",
    )
    args = arguments.parse_args()
    model, optimizer = make(args.model)
    timeout = timedelta(seconds=args.timeout)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load_state(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timeout),
        load_state_dict=load_state,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=args.replicas,
        timeout=timeout,
        quorum_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        hostname="localhost",
        lighthouse_addr=args.lighthouse,
        replica_id=args.replica,
    )
    kind = torchft.ddp.PureDistributedDataParallel if args.pure else torchft.DistributedDataParallel
    parallel = kind(manager, model)
    managed = torchft.Optimizer(manager, optimizer)
    stamper = Stamper(args.stamps / f"{args.replica}.{os.getpid()}")
    leaving: list[bool] = []
    # Between two steps, so that the others need not wait for a time-out.
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
    # Its sampler of a fixed number of replicas knows no ring that changes; it reads half.
    data = batches(args.data, args.batch_size // 2, rank=int(args.replica[-1]), size=2)
    while not leaving and (not args.total_steps or manager.current_step() < args.total_steps):
        before = manager.current_step()
        train_on(parallel, managed, *next(data))
        if manager.current_step() > before:
            stamper.step(manager.current_step(), manager.num_participants())
    write_memory(args.stamps, args.replica)
    manager.shutdown(wait=False)
    # Its threads would keep the process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
