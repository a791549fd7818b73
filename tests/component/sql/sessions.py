"""Sessions of statements: what opens one on a database of a test, and stands in for its jobs."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from edl_horovod.columns import Column
from edl_horovod.records.examples import example
from edl_horovod.records.sources.recordio import Writer
from edl_horovod.sql.session import open_session
from edl_horovod.sql.settings import read_settings
from edl_horovod.supervisor.run import JobResult

TRAINED = "SELECT name, role, salary FROM employee TRAIN regressor.DNN INTO m;"
CLASSIFIED = "SELECT name, salary, role FROM employee TRAIN classifier.DNN INTO c;"
ROLES = ("clerk", "engineer", "manager")


def settings_of(url, folder, *words):
    """The settings of a session whose models are in a folder."""
    return read_settings([f"db={url}", f"models={folder}/models", *words], {})


def session_on(database, folder, run_job, tell=lambda sentence: None):
    """A session on a database, whose models are in a folder."""
    return open_session(settings_of(database.url, folder), run_job, tell=tell)


def run(session, text):
    """The results of all statements of a text."""
    return [session.run(statement) for statement in session.parse(text)]


def rows_of(database, table):
    """The rows of a table of sqlite, in their order."""
    return database.run(f"SELECT * FROM {table} ORDER BY rowid")


class Ring:
    """Does in no time what a job does, for rows whose role says it all."""

    def __init__(self):
        self.configs = []
        self.read = ["name", "role", "salary"]
        self.rows = []
        """Those of each job."""
        self.before_it_ends = lambda: None

    def __call__(self, config):
        self.configs.append(config)
        Path(config.job_dir).mkdir(parents=True)
        files = sorted(Path(config.data).glob("*.parquet"))
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        self.rows.append(rows)
        output = Path(config.output)
        output.mkdir(parents=True)
        if config.task == "train":
            is_classifier = config.model_def.startswith("classifier")
            role = Column(name="role", kind="text", num_rows=12, num_empty=0, vocabulary=ROLES)
            adapted = {
                "classes": {"values": list(ROLES)} if is_classifier else None,
                "columns": [role.to_json()],
                "read": sorted({*self.read} - {config.params["label"]}),
            }
            (output / "adapted.json").write_text(json.dumps(adapted))
        else:
            is_classifier = "/c/" in config.trained_model
            self._predict(rows, output, is_classifier=is_classifier)
        self.before_it_ends()
        metrics = {"loss": 0.5} if config.validation_data else {}
        return JobResult(output=str(output), job_dir=config.job_dir, steps=1, metrics=metrics)

    def _predict(self, rows, output, *, is_classifier):
        shapes = {"prediction": []}
        if is_classifier:
            shapes = {"class": [], "probabilities": [3]}
        with Writer(output / "part-0.recordio") as writer:
            for number in range(len(rows)):
                values = {"prediction": np.float32([number])}
                if is_classifier:
                    chosen = number % 3
                    values = {
                        "class": np.int64([chosen]),
                        "probabilities": np.eye(3, dtype=np.float32)[chosen],
                    }
                writer.write(example({"id": np.int64([number]), **values}))
        features = {name: {"shape": shape} for name, shape in shapes.items()}
        schema = {"num_records": len(rows), "features": features}
        (output / "schema.json").write_text(json.dumps(schema))


@dataclass
class Place:
    """A session on a database, and what stands in for its jobs."""

    session: object
    database: object
    ring: Ring

    def run(self, text):
        """What the last statement gives."""
        return run(self.session, text)[-1]
