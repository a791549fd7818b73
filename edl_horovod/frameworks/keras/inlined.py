"""Copy a traced function's ops into the calling graph, so that each output is ready on its own.

A call is one node of a graph: its outputs are only ready when its last op is done.
"""

from typing import Any

import tensorflow as tf

__all__ = ["inlined"]


def inlined(function: Any, *arguments: Any) -> Any:
    """Add the ops of `function(*arguments)` to the graph that is being traced.

    Tracing a large model takes seconds of Python, and copying its ops far less. So a function that
    several graphs need is traced once, called where it runs alone, and copied where other ops
    should run concurrently with it.

    Args:
        function: A `tf.types.experimental.ConcreteFunction`.
        *arguments: Structures of tensors that match the function's signature.

    Returns:
        The function's result, in tensors of the current graph.
    """
    inner = function.graph
    outer = tf.compat.v1.get_default_graph()
    captures = [outer.capture(value) for value in function.captured_inputs]
    inputs = [*tf.nest.flatten(arguments, expand_composites=True), *captures]
    feeds = {
        placeholder.name: tensor for placeholder, tensor in zip(inner.inputs, inputs, strict=True)
    }
    copied = tf.graph_util.import_graph_def(
        inner.as_graph_def(),
        input_map=feeds,
        return_elements=[output.name for output in inner.outputs],
        name="",
    )
    outputs = inner.structured_outputs
    return tf.nest.pack_sequence_as(outputs, copied, expand_composites=True)
