"""`python -m benchmarks`: run the benchmarks on one machine without events, and show a table."""

import sys

from benchmarks import throughput, training
from benchmarks.report import Page, main

PAGE = Page(
    module="benchmarks",
    description="Benchmarks beside the peers, on one machine and without events.",
    parts={
        "input": throughput.measure_input,
        "formats": throughput.measure_formats,
        "step": training.measure_keras,
        "torch_step": training.measure_torch,
        "predict": throughput.measure_predict,
        "elastic_cost": training.measure_elastic_cost,
        "prepare": throughput.measure_prepare,
        "sql": throughput.measure_sql,
        "start": throughput.measure_start,
        "checkpoint": training.measure_checkpoint,
    },
)


if __name__ == "__main__":
    sys.exit(main(PAGE))
