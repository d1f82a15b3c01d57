"""Notes on weights that train, but not as the program that was exported would train them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx

from .constant_values import is_uniform
from .onnx_graph import all_nodes

_KEEP = "torch.onnx.export(…, dynamo=True, optimize=False) keeps them"

# Names of tensors that an exporter has computed from weights.
_COMPUTED_NAME = re.compile(
    r"::|(^|_)val_\d+$|const_fold_opt"
    # In torch: those of the operations that were folded.
    r"|^(add|clone|div|exp|expand|mul|permute|reshape|select|slice|squeeze|sub|transpose"
    r"|unsqueeze|view)(_\d+)?$"
)

# Names of what a batch norm gave before it was folded into the layer before it. In torch it gave
# a tuple, of which an item was taken.
_NORM_OUTPUT = re.compile(r"batch_?norm|^getitem(_\d+)?$", re.IGNORECASE)

_SMALLEST = 16  # elements of matrices that are compared; smaller ones may be equal by chance


def weight_notes(
    graph: onnx.GraphProto, weights: Collection[str], arrays: Mapping[str, np.ndarray]
) -> list[str]:
    """Notes on weights that an exporter has computed, merged, or written more than once."""
    notes = []
    tensors = {
        tensor.name: arrays[tensor.name] for tensor in graph.initializer if tensor.name in weights
    }
    computed = [name for name in tensors if _COMPUTED_NAME.search(name)]
    if computed:
        notes.append(
            f"weights that the exporter computed from others, or renamed, train as they are: "
            f"{computed}; {_KEEP}, and constants= excludes one that is none"
        )
    folded = [node.input[1] for node in graph.node if _holds_norm(node)]
    if folded:
        notes.append(
            f"batch norms are folded into the weights {folded}, which train without them; {_KEEP}"
        )
    merged = [name for name in _read_often(graph, tensors) if _is_filled(tensors[name])]
    if merged:
        notes.append(
            f"tensors of one number are the weights of several layers each, and train as one: "
            f"{merged}; where an exporter has merged equal weights, {_KEEP}"
        )
    for names in _equal_matrices(tensors):
        notes.append(
            f"the weights {names} are equal and train apart; if the model ties them, {_KEEP}, or "
            "read one initializer in all places"
        )
    return notes


def _holds_norm(node: onnx.NodeProto) -> bool:
    """Whether a batch norm is folded into the weights of a layer, judged by their names.

    The legacy exporter of torch renames the weights of convolutions for no other reason.
    """
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm"):
        return False
    return "::Conv" in node.input[1] or _NORM_OUTPUT.search(node.output[0]) is not None


def _read_often(graph: onnx.GraphProto, names: Collection[str]) -> Iterator[str]:
    """Yield the names that several nodes read as weights: not as their first input."""
    counts: dict[str, int] = defaultdict(int)
    for node in all_nodes(graph):
        for name in set(node.input[1:]).intersection(names):
            counts[name] += 1
            if counts[name] == 2:
                yield name


def _is_filled(array: np.ndarray) -> bool:
    """Whether a tensor is one number, repeated."""
    return sum(array.shape) > 1 and is_uniform(array)


def _equal_matrices(tensors: Mapping[str, np.ndarray]) -> Iterator[list[str]]:
    """Yield the names of matrices that are equal, or each other's transpose."""
    groups: dict[tuple[np.dtype, int, int], list[tuple[str, np.ndarray]]] = defaultdict(list)
    for name, array in tensors.items():
        if array.ndim == 2 and array.size >= _SMALLEST and not is_uniform(array):
            # The sum of the bits is the same in any order of the elements.
            bits = array.reshape(-1).view(f"uint{8 * array.itemsize}")
            groups[array.dtype, array.size, int(bits.sum(dtype="uint64"))].append((name, array))
    for group in groups.values():
        (_, first), *_ = group
        names = [
            name
            for name, array in group
            if array is first or np.array_equal(array, first) or np.array_equal(array.T, first)
        ]
        if len(names) > 1:
            yield names
