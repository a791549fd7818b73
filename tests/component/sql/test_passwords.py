"""The password of a database is in no file, log, message or error, whatever a statement does."""

import logging
from pathlib import Path

import pytest

from edl_horovod.config import resolved
from edl_horovod.errors import EdlError
from tests.component.sql.sessions import CLASSIFIED, TRAINED, Ring, run, session_on
from tests.databases import IN_URL, PASSWORD

SECRETS = (PASSWORD, IN_URL, "geheim")
PROGRAM = (
    TRAINED,
    CLASSIFIED,
    "SELECT id, name, role FROM employee PREDICT employee.predicted USING m",
    "SELECT * FROM employee EVALUATE m",
    "SHOW MODELS",
    "DESCRIBE MODEL m",
    "SHOW TRAIN m",
    "SELECT nothing FROM employee",
    "SELECT 1 / 0 AS broken, 'a' AS b FROM employee TRAIN regressor.DNN INTO n",
    "SELECT name, role FROM employee PREDICT no_such.table.here.at.all USING m",
    "SELECT name FROM employee TRAIN",
)


class WatchedRing(Ring):
    """Writes the settings of a job as the supervisor does."""

    def __call__(self, config):
        result = super().__call__(config)
        resolved.dump(config, Path(config.job_dir) / "config.yaml")
        self.before_it_ends()
        return result


def texts_in(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path), path.read_bytes().decode("latin-1")


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_dry_run", [False, True])
def test_no_trace_of_the_password_is_left(postgresql, tmp_path, caplog, is_dry_run):
    caplog.set_level(logging.DEBUG, logger="edl_horovod")
    postgresql.run(
        "CREATE TABLE employee (id int PRIMARY KEY, name text, role text, salary float8)",
        "INSERT INTO employee VALUES (1, 'a', 'clerk', 1), (2, 'b', 'engineer', 2),"
        " (3, 'c', 'manager', 3)",
    )
    seen = []
    ring = WatchedRing()
    models = tmp_path / "models"
    ring.before_it_ends = lambda: seen.extend(texts_in(models))
    errors = []

    def tell(sentence):
        seen.append(("message", sentence))

    with session_on(postgresql, tmp_path, ring, tell) as session:
        session.context.is_dry_run = is_dry_run
        for text in PROGRAM:
            try:
                seen.append((text, repr(run(session, text))))
            except EdlError as error:
                errors.append(error)
                chain = error
                while chain is not None:
                    seen.append((f"error of {text}", f"{chain!s} {chain!r}"))
                    chain = chain.__cause__
        seen.append(("session", f"{session.context!r} {session.context.settings!r}"))
    seen += texts_in(tmp_path)
    seen += [("log", record.getMessage()) for record in caplog.records]
    assert len(errors) >= 2
    if not is_dry_run:
        assert any("config.yaml" in place for place, _ in seen)
        assert any("about.json" in place for place, _ in seen)
    leaks = [place for place, text in seen for secret in SECRETS if secret in text]
    assert leaks == []
