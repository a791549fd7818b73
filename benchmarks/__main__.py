"""`python -m benchmarks`: run the benchmarks on one machine without events, and show a table."""

import sys

from benchmarks import throughput, training
from benchmarks.report import Page, Section, main

IN_TURN = "5 repetitions, the sides in turn."
STEPS = "global batch 128, 1200 timed steps after 200; 122880 records of 784 floats and a label."
PAGE = Page(
    title="Benchmarks",
    module="benchmarks",
    introduction="A ratio is our records per second over the other side's in the same repetition. "
    "The median is what is held against the target; a line without a target is for information.",
    sections=[
        Section(
            title="Input",
            method=f"{IN_TURN} Passes over 122880 records of 784 floats and a label, which are "
            "read, parsed, shuffled and put into batches of 128.",
            parts={"input": throughput.measure_input},
        ),
        Section(
            title="Formats",
            method=f"{IN_TURN} Passes over the same pictures, read and not decoded, beside each "
            "format's own library, which reads in the order of the file where ours shuffles.",
            parts={"formats": throughput.measure_formats},
        ),
        Section(
            title="Training",
            method=f"{IN_TURN} The real job beside `model.fit` and plain Horovod; {STEPS}",
            parts={"step": training.measure_keras},
        ),
        Section(
            title="Training in PyTorch",
            method="10 repetitions, the sides in turn. The real job beside loops by hand on "
            "tensors in memory, with one thread a rank; global batch 128.",
            parts={"torch_step": training.measure_torch},
        ),
        Section(
            title="Prediction",
            method=f"{IN_TURN} From the job's ring to its output in place; `model.predict` writes "
            "nothing.",
            parts={"predict": throughput.measure_predict},
        ),
        Section(
            title="Elastic parts of a step",
            method=f"{IN_TURN} 2 ranks; {STEPS}",
            parts={"elastic_cost": training.measure_elastic_cost},
        ),
        Section(
            title="Prepare",
            method=f"{IN_TURN} 4000 PNG files of 224 x 224 pixels.",
            parts={"prepare": throughput.measure_prepare},
        ),
        Section(
            title="SQL",
            method=f"{IN_TURN} 983040 rows of texts, fractions and whole numbers.",
            parts={"sql": throughput.measure_sql},
        ),
        Section(
            title="Start",
            method="10 new interpreters of each kind, their own start included.",
            parts={"start": throughput.measure_start},
        ),
        Section(
            title="Checkpoints",
            method=f"{IN_TURN} 2 ranks; {STEPS}",
            parts={"checkpoint": training.measure_checkpoint},
        ),
    ],
)


if __name__ == "__main__":
    sys.exit(main(PAGE))
