"""What is known of a model that a statement has trained."""

from edl_horovod.sql.models import About, ModelColumn

COLUMNS = (("name", "text"), ("role", "text"), ("salary", "number"))
ABOUT = About(
    statement="SELECT ...",
    select="SELECT name, role, salary FROM t",
    model_def="regressor.DNN",
    framework="keras",
    label="salary",
    columns=tuple(ModelColumn(name=name, kind=kind, declared_type="") for name, kind in COLUMNS),
    nulls={"role": "none", "salary": 0},
    split="none",
    num_rows=10,
    metrics={"loss": 0.5},
    database="sqlite:///hr.db",
    trained="2026-11-24T00:00:00+00:00",
    seconds=1.5,
)
