"""One side of the comparison: a checkout that is used through its `edl` alone."""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.run import MODELS, ROOT

OUR_MODELS, ZOO = f"model_zoo={MODELS}", f"model_zoo={ROOT}/model_zoo"
"""The same for both sides."""
MOST_SECONDS = 180.0
"""Longest wait for a job, or for a change of its ring; hours on no machine."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Checkout:
    """A checkout of the project, and a folder for its data and jobs."""

    root: Path
    folder: Path

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start `edl` in the side's folder; it ends with the block, and with it its job.

        What it prints goes into a file there.
        """
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_LOG_LEVEL": "error"}
        environment.pop("PYTHONPATH", None)
        argv = [self.root / ".venv" / "bin" / "edl", *arguments]
        with (self.folder / "printed").open("wb") as printed:
            process = subprocess.Popen(
                argv, cwd=self.folder, env=environment, stdout=printed, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(MOST_SECONDS)

    def edl(self, *arguments: str) -> None:
        """Run `edl` to its end; where it fails, the comparison ends with what it printed."""
        with self.started(*arguments) as process:
            code = process.wait(MOST_SECONDS)
        if code != 0:
            printed = (self.folder / "printed").read_text(errors="replace")
            command = f"edl {' '.join(arguments)}"
            raise SystemExit(f"{self.root}: {command} ended with {code}:\n{printed}")

    def train(self, output: str, num_ranks: int, *settings: str) -> list[Event]:
        """Train on a ring that never has another size; the job's events."""
        ring = (f"{key}={num_ranks}" for key in ("launch.np", "elastic.min_np", "elastic.max_np"))
        self.edl("train", f"output={output}", "launch.threads_per_rank=1", *ring, *settings)
        events = self.events(output)
        sizes = {event["size"] for event in events if event["kind"] == "step"}
        assert sizes == {num_ranks}, f"{self.root}: the ring had other sizes: {sizes}"
        return events

    def events(self, output: str) -> list[Event]:
        """The whole lines of a job's event log; none where there is no log yet."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / f"{output}.job" / "events.jsonl").read_text()
            return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return []

    def make_data(self) -> None:
        """Prepare handwritten digits, and a table that is also there as CSV."""
        self.folder.mkdir()
        script = ROOT / "model_zoo" / "sample_images.py"
        argv = [sys.executable, script, "digits", self.folder / "images"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        for part in ("train", "test"):
            paths = (f"data=images/{part}", f"output=digits/{part}")
            self.edl("prepare", ZOO, "model_def=mnist_functional_api", *paths)
        dice, rows = random.Random(7), ["age,role,salary"]
        for _ in range(1000):
            age, role = dice.randint(18, 75), dice.choice(("cook", "driver", "smith"))
            rows.append(f"{age},{role},{age / 10 + len(role)}")
        (self.folder / "employees.csv").write_text("".join(f"{row}\r\n" for row in rows))
        paths = ("data=employees.csv", "output=employees")
        self.edl("prepare", ZOO, "model_def=regressor.DNN", *paths)
