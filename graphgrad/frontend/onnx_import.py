"""Import of ONNX files: repair, input types, roles of the initializers, translation."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import ArgumentError
from .custom_ops import CustomOps, custom_converters
from .model import Model, hint
from .onnx_importer import import_graph
from .onnx_repair import repair
from .onnx_sequences import Shapes, spread_inputs
from .onnx_shapes import input_types
from .weight_roles import roles


def from_onnx(
    path_or_proto: str | os.PathLike[str] | onnx.ModelProto,
    *,
    shapes: Shapes | None = None,
    custom_ops: CustomOps | None = None,
    constants: str | Sequence[str] = (),
) -> Model:
    """Read an ONNX model.

    Float initializers become parameters, the running statistics of batch norms become state, and
    integer and boolean initializers, which never train, become constants of the module. Weights
    of layers that Constant nodes hold become parameters too; a single float that is named as
    exporters name literals (``onnx::Mul_12``, ``/Constant_output_0``, ``val_3``) is a constant.
    Parameters that are computed rather than learned, such as masks, anchors, tables of sines and
    the ones of a norm without weights, are in ``Model.constants``: they train only if ``wrt=``
    names them. ``Model.notes`` lists what was repaired on the way, and what does not train.

    Parameters
    ----------
    path_or_proto : path or onnx.ModelProto
    shapes : mapping of str to sequence of int or None, optional
        Shape of some inputs, e.g. ``{"x": (32, 3, 224, 224)}``, to make symbolic dimensions fixed;
        ``None`` in a shape leaves the dimension as it is. For an input that is a sequence, the list
        of the shapes of its tensors, which become inputs ``x[0]``, ``x[1]``, …; so do the tensors
        of outputs that are sequences.
    custom_ops : mapping of (str, str) to function, optional
        Operators of the user's own, by domain and name, e.g. ``{("my.domain", "Swish"): swish}``;
        they go before graphgrad's. The function is called as ``function(inputs, attributes)`` and
        returns the node's output, or a tuple of several: `inputs` is a list of graphgrad tensors
        as in gradient rules, which take Python operators and go into every function of
        ``relax.op``, with None for an input that is left out; `attributes` is a dict of numbers,
        strings, lists and numpy arrays. It returns such tensors, or Relax expressions.

    constants : name or names, optional
        Weights that never train, or patterns such as ``"backbone.*"``; ``Model.freeze`` does the
        same by name.

    Raises
    ------
    ModelError
        If the file is missing or damaged, breaks the ONNX standard, or has operators that are not
        supported: all of these are listed.
    InputError
        If `shapes` does not fit the model's inputs.
    ArgumentError
        If `custom_ops` is not such a mapping, or the model has nothing of a name in `constants`,
        or a running statistic, which batch norms update.

    Examples
    --------
    >>> def swish(inputs, attributes):
    ...     (x,) = inputs
    ...     return x * relax.op.sigmoid(attributes.get("beta", 1.0) * x)
    >>> model = gg.from_onnx("model.onnx", custom_ops={("my.domain", "Swish"): swish})
    """
    custom = custom_converters(custom_ops)
    proto, notes = repair(path_or_proto, custom)
    # Afterwards all inputs are tensors, and `shapes` says nothing of sequences any more.
    shapes, sequence_notes = spread_inputs(proto.graph, shapes)
    notes += sequence_notes
    types = input_types(proto.graph, shapes)
    # Once: a message copies the data whenever it is asked for them.
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    decided = roles(proto.graph, arrays)
    variables = [*decided.params, *decided.state]
    module, outputs = import_graph(proto, types, variables, custom)
    model = Model(
        module,
        _Handed(arrays, decided.params),
        _Handed(arrays, decided.state),
        outputs=outputs,
        constants=decided.constants,
        notes=notes + decided.notes,
        proto=proto,
    )
    return model.freeze(*_constant_names(model, constants))


@dataclass(frozen=True)
class _Handed(Mapping[str, np.ndarray]):
    """Arrays by name, each of which can be read once.

    A model copies what it is given, because that may be a user's; these are nobody's any more, and
    go one by one, so that weights are not there once more than the file holds them.
    """

    arrays: dict[str, np.ndarray]
    names: Sequence[str]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays.pop(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _constant_names(model: Model, constants: str | Sequence[str]) -> list[str]:
    """The names of the parameters that a user calls constants."""
    patterns = [constants] if isinstance(constants, str) else constants
    if not isinstance(patterns, Sequence) or not all(isinstance(text, str) for text in patterns):
        raise ArgumentError(f"constants={constants!r} must be a name or a list of names")
    assert model.skeleton is not None  # it comes from ONNX
    graph = model.skeleton.graph
    fixed = {tensor.name for tensor in graph.initializer} - model.params.keys()
    fixed.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    names = []
    for pattern in patterns:
        matched = model.matching(pattern)
        others = fnmatch.filter(sorted(fixed), pattern)
        if not matched and (not others or not model.state.keys().isdisjoint(others)):
            raise ArgumentError(
                f"constants: {pattern!r} is a running statistic, which batch norms update"
                if others
                else f"constants: the model has no weight {pattern!r}{hint(pattern, model.params)}"
            )
        names += matched
    return names
