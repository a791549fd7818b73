"""Records per second of prediction: the real job, its output written, against `model.predict`."""

from collections.abc import Callable

from benchmarks.common import Comparison, Workspace, compare_rates, interleave

__all__ = ["measure"]

JOB = "benchmarks.ours.predict_job"
PREDICT = "benchmarks.peers.keras_predict"
SPECS = {"one by one": "CnnSpec", "in batches": "CnnBatchSpec"}


def measure(space: Workspace) -> list[Comparison]:
    """Compare predictions of one model over the same records, in the same batches.

    Args:
        space: Holds the records.

    Raises:
        SideFailed: A prediction failed.
    """
    models = {name: f"--model={space.folder / spec}" for name, spec in SPECS.items()}
    for name, spec in SPECS.items():
        space.run_side(JOB, models[name], f"--train={spec}")

    def side(module: str, model: str) -> Callable[[], float]:
        return lambda: float(space.run_side(module, model)["records_per_second"])

    sides = {name: side(JOB, model) for name, model in models.items()}
    sides["model.predict"] = side(PREDICT, models["one by one"])
    rates = interleave(sides, space.settings.repetitions)
    return [
        compare_rates(
            f"Prediction, 1 rank, {name}, written / model.predict",
            rates[name],
            rates["model.predict"],
            target=0.95,
        )
        for name in SPECS
    ]
