"""Mutate real statements and read them: only our error may come, and soon.

python -m tests.fuzz_statements --seconds 3600
"""

import argparse
import random
import time

from edl_horovod.sql.parser import parse
from edl_horovod.sql.statements import StatementError

STATEMENTS = (
    "SELECT name, role, salary FROM employee\nTRAIN regressor.DNN\n"
    "WITH hidden_units=[10, 100, 20, 5], learning_rate=0.01\nINTO my_trained_model;",
    "SELECT name, role FROM testdata\nPREDICT testdata.predicted_salary\nUSING my_trained_model;",
    'SELECT * FROM t TO TRAIN Model WITH model.optimizer="adam", engine.num_workers=2, '
    "a={'k': [1, -2.5e-3, None], 2: 'it''s'}, b=HPARAM_RANGE(1e-3, .1, 'log'), "
    "c=HPARAM_CANDIDATES([[10], 'x']) COLUMN c1, NUMERIC(c2, 10), BUCKET(c3,[0,10,100]) "
    'FOR deep COLUMN CROSS([c1, "c 2"], 100) FOR wide LABEL c5 USING old@3 '
    "INTO OR REPLACE db.m;",
    "WITH x AS (SELECT 'TO TRAIN', train FROM predict /* TRAIN a INTO b */) SELECT * FROM x "
    "JOIN y train ON x.a = train.a WHERE label IN (1, 2) -- PREDICT\nTO PREDICT s.t.c USING m;",
    "SELECT a, y FROM t TO EVALUATE m WITH validation.metrics='AUC' LABEL y INTO r; "
    "SHOW TRAIN m; SHOW MODELS; DESCRIBE MODEL m@2; DROP MODEL IF EXISTS m; KILL 7; SHOW JOBS",
    "ALTER MODEL m@1 SET LIVE; SHOW LOG m; SHOW TRIALS m",
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT CASE WHEN 1 THEN 2 END; END; SELECT 1;",
)
PIECES = (
    *"'\"`;()[]{},.=@-+:\\#$%\n\t\0 ",
    *("--", "/*", "*/", "''", "$$", "{{", "{%", "{#", "é", "\U0001f600", "\u202e", "1e999", "0x"),
    *("TRAIN", "TO TRAIN", "PREDICT", "USING", "INTO", "WITH", "COLUMN", "LABEL", "FOR", "SELECT"),
    *("FROM", "OR REPLACE", "IF NOT EXISTS", "1" * 5000, "[" * 300, "NULL", "BEGIN", "END"),
)
DIALECTS = ("sqlite", "postgres", "mysql", "duckdb")
MOST_SECONDS = 5.0
"""What one text may take; they are a few thousand characters."""


def mutated(chance: random.Random) -> str:
    """A text that has something of real statements."""
    text = chance.choice(STATEMENTS)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + int(chance.expovariate(0.2)))
        match chance.randrange(4):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:start] + chance.choice(PIECES) + text[start:]
            case 2:
                text = text[:start] + chance.choice(PIECES) + text[end:]
            case _:
                other = chance.choice(STATEMENTS)
                cut = chance.randrange(len(other))
                text = text[:start] + other[cut : cut + 60] + text[start:]
    return text


def fuzz(seconds: float, seed: int) -> tuple[int, int]:
    """Read mutated statements for a time; how many, and how many were understood.

    Raises:
        AssertionError: Reading one took too long.
        Exception: Reading one ended with another error than `StatementError`.
    """
    chance, end, num_read, num_understood = random.Random(seed), time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        text, dialect = mutated(chance), chance.choice(DIALECTS)
        begun = time.monotonic()
        try:
            parse(text, dialect)
            num_understood += 1
        except StatementError:
            pass
        except BaseException as e:
            e.add_note(f"{dialect}: {text!r}")
            raise
        assert time.monotonic() - begun < MOST_SECONDS, f"{dialect} is slow at {text!r}"
        num_read += 1
    return num_read, num_understood


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    read, understood = fuzz(flags.seconds, flags.seed)
    print(f"{read} texts read, {understood} understood, no other error")  # noqa: T201
