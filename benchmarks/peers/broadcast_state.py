"""What `hvd.broadcast_variables` takes for the state of a model and its optimizer."""

import importlib
import sys
import time

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.common import side_parser, write_numbers

NUM_BROADCASTS = 4


def main() -> int:
    """Broadcast as one rank; rank 0 reports. Returns the exit code."""
    parser = side_parser(__doc__)
    parser.add_argument("--spec", required=True, help="of benchmarks/models")
    args = parser.parse_args()
    hvd.init()
    module, _, symbol = args.spec.partition(".")
    spec = getattr(importlib.import_module(f"benchmarks.models.{module}"), symbol)()
    model, optimizer = spec.create_model(), spec.create_optimizer()
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in (*model.variables, *optimizer.variables)]
    seconds = []
    for _ in range(NUM_BROADCASTS):
        hvd.allreduce(tf.zeros(()), name="begin")
        began = time.perf_counter()
        hvd.broadcast_variables(variables, root_rank=0)
        seconds.append(time.perf_counter() - began)
    if hvd.rank() == 0:
        num_bytes = sum(v.shape.num_elements() * v.dtype.size for v in variables)
        # The first one meets memory that was never used.
        write_numbers(args.place, {"seconds": seconds[1:], "bytes": num_bytes})
    return 0


if __name__ == "__main__":
    sys.exit(main())
