"""Writes scikit-learn's 442 diabetes patients as two tables of `data/patients.db`."""

import contextlib
import sqlite3
from pathlib import Path

from sklearn.datasets import load_diabetes

diabetes = load_diabetes(scaled=False)
columns = ", ".join([*diabetes.feature_names, "progression"])
rows = [
    [*map(float, measures), float(progression)]
    for measures, progression in zip(diabetes.data, diabetes.target, strict=True)
]
path = Path("data", "patients.db")
path.parent.mkdir(exist_ok=True)
with contextlib.closing(sqlite3.connect(path)) as connection, connection:
    for table, chosen in (("patients", [0, 1, 2, 3]), ("new_patients", [4])):
        part = [row for number, row in enumerate(rows) if number % 5 in chosen]
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"CREATE TABLE {table} ({columns})")
        marks = ", ".join("?" for _ in rows[0])
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", part)
        print(f"{len(part)} rows in the table {table} of {path}")
