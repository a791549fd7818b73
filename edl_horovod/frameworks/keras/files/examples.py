"""Build examples from records with columns, for a model whose files do not describe its data."""

from typing import Any

import tensorflow as tf

from edl_horovod.models.file_model import column_roles, records_without_columns
from edl_horovod.spec import Mode

__all__ = ["examples_of"]


def examples_of(dataset: tf.data.Dataset, mode: Mode, *, label: str) -> tf.data.Dataset:
    """Split records into features and labels; tuples are already examples and stay unchanged.

    Args:
        dataset: Records of a step, each a dict of columns.
        mode: In `Mode.PREDICTION`, examples have no labels.
        label: Name of the model in messages.

    Raises:
        UserCodeError: The records have no numeric columns, or none of them is the label.
    """
    columns = dataset.element_spec
    if isinstance(columns, tuple):
        return dataset
    if not isinstance(columns, dict) or any(spec.dtype == tf.string for spec in columns.values()):
        specs = columns if isinstance(columns, dict) else {"record": columns}
        received = ", ".join(f"{name}: {spec.dtype.name}" for name, spec in specs.items())
        raise records_without_columns(label, received)
    roles = column_roles(list(columns), label=label, needs_label=mode is not Mode.PREDICTION)

    def example(row: dict[str, tf.Tensor]) -> Any:
        features: Any = {name: row[name] for name in roles.features}
        if len(roles.features) == 1:
            features = row[roles.features[0]]
        return features if mode is Mode.PREDICTION else (features, row[roles.label])

    return dataset.map(example)
