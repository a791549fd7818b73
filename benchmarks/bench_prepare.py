"""Files per second of `prepare` with two processes against one."""

from collections.abc import Callable

from benchmarks.common import Comparison, Numbers, Workspace, compare_rates, interleave

__all__ = ["measure"]

LEAST_RATIO = 1.7


def measure(space: Workspace) -> list[Comparison]:
    """Prepare the same pictures with a model of the zoo, anew each time.

    Args:
        space: Takes the pictures.

    Raises:
        SideFailed: One of the runs failed.
    """
    pictures = space.folder / "pictures"
    num_pictures = space.settings.num_pictures
    space.run_side("benchmarks.pictures", f"--pictures={pictures}", f"--number={num_pictures}")

    def side(processes: int) -> Callable[[], Numbers]:
        return lambda: space.run_side(
            "benchmarks.ours.prepare_run", f"--pictures={pictures}", f"--processes={processes}"
        )

    found = interleave({"one": side(1), "two": side(2)}, space.settings.repetitions)

    def rates(name: str, key: str) -> list[float]:
        return [numbers[key] for numbers in found[name]]

    return [
        compare_rates(name, rates("two", key), rates("one", key), target=target)
        for name, key, target in (
            ("Prepare, 2 processes / 1, once they are up", "pace", LEAST_RATIO),
            ("Prepare, 2 processes / 1, the whole command", "whole_pace", None),
        )
    ]
