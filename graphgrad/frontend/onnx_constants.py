"""Conversion of Constant nodes and sparse initializers to dense tensors, which importers read."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import ModelError
from .onnx_graph import all_nodes, attribute

_MOST_NAMES = 3
"""How many nodes a note names: exporters write dozens of such constants."""

# The dtypes that ONNX gives to the attributes of a Constant that are no tensors.
_SCALARS_AND_LISTS = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}

_TYPES = {
    "value": onnx.AttributeProto.TENSOR,
    "sparse_value": onnx.AttributeProto.SPARSE_TENSOR,
    "value_int": onnx.AttributeProto.INT,
    "value_ints": onnx.AttributeProto.INTS,
    "value_float": onnx.AttributeProto.FLOAT,
    "value_floats": onnx.AttributeProto.FLOATS,
}


def densify(graph: onnx.GraphProto) -> list[str]:
    """Give each Constant node the attribute ``value`` and make sparse initializers dense.

    Returns
    -------
    list of str
        Notes on what was changed.

    Raises
    ------
    ModelError
        Names every Constant that holds strings: no Relax tensor can.
    """
    constants = [node for node in all_nodes(graph) if node.op_type == "Constant"]
    strings = [node.name for node in constants if _holds_strings(node)]
    if strings:
        raise ModelError(
            f"Constant nodes {strings} hold strings, which Relax has no tensors of: "
            "remove them and what reads them from the model"
        )
    malformed = [node.name for node in constants if not _has_one_value(node)]
    if malformed:
        raise ModelError(
            f"Constant nodes {malformed} have not one value that the standard knows; give each "
            "the attribute value, a tensor"
        )
    changed = [node for node in constants if _set_dense_value(node)]
    sparse = [_add_dense(graph, tensor) for tensor in graph.sparse_initializer]
    del graph.sparse_initializer[:]
    notes = []
    if changed:
        notes.append(f"Constant nodes given as numbers or sparse, made tensors: {_names(changed)}")
    if sparse:
        notes.append(f"sparse initializers made dense: {', '.join(sparse)}")
    return notes


def dense_tensor(sparse: onnx.SparseTensorProto) -> np.ndarray:
    """A sparse tensor as a dense array of shape ``sparse.dims``.

    The indices are either flat, of shape ``(n,)``, or one row each, of shape ``(n, rank)``.
    """
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def _holds_strings(node: onnx.NodeProto) -> bool:
    value = attribute(node, "value", None)
    is_string_tensor = value is not None and value.data_type == onnx.TensorProto.STRING
    return is_string_tensor or any(
        node_attribute.name in ("value_string", "value_strings")
        for node_attribute in node.attribute
    )


def _has_one_value(node: onnx.NodeProto) -> bool:
    """Whether a Constant has one attribute, its value, of the type that its name says."""
    names = [node_attribute.name for node_attribute in node.attribute]
    if len(names) != 1 or names[0] not in _TYPES:
        return False
    return node.attribute[0].type == _TYPES[names[0]]


def _set_dense_value(node: onnx.NodeProto) -> bool:
    """Give a Constant node a dense tensor; return whether it had something else."""
    value_attribute = node.attribute[0]  # a Constant has one attribute, which is its value
    if value_attribute.name == "value":
        return False
    value = onnx.helper.get_attribute_value(value_attribute)
    if value_attribute.name == "sparse_value":
        array = dense_tensor(value)
    else:
        array = np.array(value, dtype=_SCALARS_AND_LISTS[value_attribute.name])
    dense = onnx.helper.make_attribute("value", numpy_helper.from_array(array))
    value_attribute.CopyFrom(dense)
    return True


def _add_dense(graph: onnx.GraphProto, sparse: onnx.SparseTensorProto) -> str:
    """Add a dense copy of a sparse initializer, and return its name."""
    name = sparse.values.name  # where ONNX keeps the name of a sparse tensor
    graph.initializer.append(numpy_helper.from_array(dense_tensor(sparse), name))
    return name


def _names(nodes: list[onnx.NodeProto]) -> str:
    """The names of a few nodes, and how many more there are."""
    first = ", ".join(node.name for node in nodes[:_MOST_NAMES])
    return first if len(nodes) <= _MOST_NAMES else f"{first} and {len(nodes) - _MOST_NAMES} more"
