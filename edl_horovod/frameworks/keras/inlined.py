"""Puts a traced function's ops into the graph that calls it, so that each output comes by itself.

A call is one node of a graph: all its outputs appear when its last op is done.
"""

from typing import Any

import tensorflow as tf

__all__ = ["inlined"]


def inlined(function: Any, *arguments: Any) -> Any:
    """Do what `function(*arguments)` does, op by op, in the graph that is being traced.

    A trace takes seconds of Python for a large model, and a copy of its ops far less. So what
    several graphs need is traced once, called where it runs alone, and copied where other ops are
    to run beside it.

    Args:
        function: A `tf.types.experimental.ConcreteFunction`.
        *arguments: Structures of tensors, as it was traced for.

    Returns:
        What it returns, as a structure of this graph's tensors.
    """
    inner = function.graph
    outer = tf.compat.v1.get_default_graph()
    captures = [outer.capture(value) for value in function.captured_inputs]
    given = [*tf.nest.flatten(arguments, expand_composites=True), *captures]
    feeds = {one.name: other for one, other in zip(inner.inputs, given, strict=True)}
    made = tf.graph_util.import_graph_def(
        inner.as_graph_def(),
        input_map=feeds,
        return_elements=[each.name for each in inner.outputs],
        name="",
    )
    outputs = inner.structured_outputs
    return tf.nest.pack_sequence_as(outputs, made, expand_composites=True)
