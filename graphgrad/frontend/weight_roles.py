"""The decision which float tensors of a file train by default: those a person would call weights.

A file says only that a tensor is constant. What it is *for* shows in where it is read, in what its
numbers look like, and in its name: exporters name a parameter after its module
(``head.temperature``), and a number that the program wrote after the operation that reads it
(``onnx::Mul_12``, ``/Constant_output_0``). Where these leave a doubt, it trains.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from . import constant_values as values
from .onnx_graph import Reader, is_float
from .value_flow import ValueFlow, is_setting
from .weight_notes import weight_notes

# Inputs, by operator and index, that hold the weights of a layer. Its other inputs are data.
_WEIGHTS = frozenset(
    {
        ("BatchNormalization", 1),
        ("BatchNormalization", 2),
        ("Conv", 1),
        ("Conv", 2),
        ("ConvTranspose", 1),
        ("ConvTranspose", 2),
        ("DeformConv", 1),
        ("DeformConv", 3),
        ("GRU", 1),
        ("GRU", 2),
        ("GRU", 3),
        ("Gather", 0),
        ("Gemm", 0),
        ("Gemm", 1),
        ("Gemm", 2),
        ("GroupNormalization", 1),
        ("GroupNormalization", 2),
        ("InstanceNormalization", 1),
        ("InstanceNormalization", 2),
        ("LSTM", 1),
        ("LSTM", 2),
        ("LSTM", 3),
        ("LSTM", 7),
        ("LayerNormalization", 1),
        ("LayerNormalization", 2),
        ("MatMul", 0),
        ("MatMul", 1),
        ("PRelu", 1),
        ("RMSNormalization", 1),
        ("RNN", 1),
        ("RNN", 2),
        ("RNN", 3),
    }
)

_NORMS = frozenset(
    {
        "BatchNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "RMSNormalization",
    }
)

# A vector that scales or shifts the output of one of these is a weight as well.
_LAYERS = _NORMS | {"Conv", "ConvTranspose", "Gemm", "MatMul"}

# What frequencies may pass through on their way to a sine, besides views.
_ANGLES = frozenset({"Add", "Concat", "Div", "Einsum", "Gemm", "MatMul", "Mul", "Neg", "Tile"})

# Names that exporters and optimizers of graphs give to single numbers.
_LITERAL_NAME = re.compile(
    r"""^\d+$                                       # 12
    | ^/                                            # /block/Constant_output_0
    | ::                                            # onnx::Mul_12
    | (^|_|/)(constant|const)(_\w*)?_?\d+$          # const_fold_opt__7, _tensor_constant0
    | (^|_)(tmp|val)_\d+$                           # val_3
    | (lifted|scalar)_tensor                        # scalar_tensor_default
    | /([xy]|Const(_\d+)?):\d+$                     # model/mul/y:0
    """,
    re.VERBOSE | re.IGNORECASE,
)

# Names of tensors that the program of a model holds, which are none of its modules' parameters.
_WRITTEN_NAME = re.compile(
    r"""(^|/)Constant(_\d+)?_output_\d+$            # /block/Constant_output_0
    | lifted_tensor | tensor_constant\d*$           # _tensor_constant0
    | /([xy]|Const(_\d+)?):\d+$                     # model/mul/y:0
    """,
    re.VERBOSE,
)

# Names of tensors that a folded operation of the program has filled.
_FILLED_NAME = re.compile(
    r"^(arange|eye|full|full_like|linspace|new_(full|ones|zeros)|ones|ones_like|tril|triu|zeros"
    r"|zeros_like)(_\d+)?$"
)

# Names, given by optimizers of graphs and old exporters, that any weight of a layer may have got.
_ANY_NAME = re.compile(r"const_fold_opt|^\d+$")

_STATISTIC_NAME = re.compile(r"(^|[./_])(running|moving)_(mean|var|variance)\b")

_WEIGHT_NAME = re.compile(
    r"""(^|[./_])(weight|kernel|bias|gamma|beta|alpha|scale|[wb])s?\d*$
    | ReadVariableOp                                # of TensorFlow: a variable
    """,
    re.VERBOSE | re.IGNORECASE,
)

# Why a value does not train; where the name is not public, in the words of a note.
SETTING, LITERAL = "setting", "literal"
_UNREACHED = "floats that no gradient reaches"
_WRITTEN = "tensors named as values that a program wrote (not as parameters of modules)"
_MASK = "masks (0 and numbers that forbid)"
_ENCODING = "tables of sines and cosines"
_FREQUENCIES = "frequencies of sines and cosines"
_TABLE = "tables of short numbers (anchors, grids, masks)"
_PLAIN_NORM = "ones and zeros of norms that have no weights"
_STATISTIC = "tensors named as running statistics (that no batch norm reads)"
_POWER = "vectors of a power iteration (spectral norm; they stay as they are in the file)"
_INPUT = "mean and deviation by which an input is standardized"
_EXPECTATION = "numbers 0, 1, 2 … that a softmax weights"


@dataclass(frozen=True)
class Roles:
    """What the initializers of a graph are for.

    All others, integers and settings among them, are constants of the module.

    Attributes
    ----------
    params : list of str
        Weights and constants.
    state : list of str
        Running statistics.
    constants : list of str
        Those of `params` that train only if somebody says so.
    notes : list of str
    """

    params: list[str]
    state: list[str]
    constants: list[str]
    notes: list[str]


def roles(graph: onnx.GraphProto, arrays: Mapping[str, np.ndarray]) -> Roles:
    """The decision for each initializer of a graph, whose values are `arrays` by name."""
    judge = Judge(graph)
    params, state = [], []
    names_by_reason: dict[str, list[str]] = defaultdict(list)
    for tensor in graph.initializer:
        if judge.is_statistic(tensor.name):
            state.append(tensor.name)
        elif is_float(tensor):
            reason = judge.reason(
                tensor.name, tensor.dims, partial(arrays.__getitem__, tensor.name)
            )
            if reason is not None and reason != SETTING:
                names_by_reason[reason].append(tensor.name)
            if reason not in (SETTING, LITERAL):
                params.append(tensor.name)
    constants = [
        name for reason, names in names_by_reason.items() if reason != LITERAL for name in names
    ]
    notes = [_note(reason, names) for reason, names in names_by_reason.items()]
    weights = set(params).difference(constants)
    return Roles(params, state, constants, notes + weight_notes(graph, weights, arrays))


def _note(reason: str, names: Sequence[str]) -> str:
    """What a user is told of values that do not train."""
    if reason == LITERAL:
        return (
            f"single floats whose names are those of literals stay constant: {names}; "
            "rename one like a module's parameter if it should train"
        )
    return f"{reason} do not train: {names}; to train one, name it in wrt="


class Judge:
    """Decides on the float tensors that a graph has now, in initializers and in nodes."""

    def __init__(self, graph: onnx.GraphProto):
        self._flow = ValueFlow(graph)

    def is_statistic(self, name: str) -> bool:
        """Whether a batch norm reads a tensor as its running mean or variance."""
        return any(reader.is_statistic for reader in self._flow.readers.get(name, []))

    def is_layer_weight(self, name: str, array: np.ndarray) -> bool:
        """Whether a tensor is the weight of a layer, which it may reach through views.

        That is a weight of a product or norm, or a vector that scales or shifts its output.
        """
        is_vector = _is_vector(array.shape)
        return any(
            self._is_weight(reader) or (is_vector and self._is_affine(reader))
            for reader in self._flow.uses(name)
        ) and not self.reason(name, array.shape, lambda: array)

    def reason(self, name: str, shape: Sequence[int], load: Callable[[], np.ndarray]) -> str | None:
        """Why a float tensor does not train; None if it does.

        `load` gives the values, which are looked at only where the rest does not decide.
        """
        if name not in self._flow.differentiated:
            readers = self._flow.readers.get(name, [])
            is_set = all(is_setting(use) or not self._flow.meets_data(use) for use in readers)
            return SETTING if is_set else _UNREACHED
        uses = list(self._flow.uses(name))
        layers = {reader.node.op_type for reader in uses if self._is_weight(reader)}
        if math.prod(shape) > 1:
            reason = self._reason_for_any_reader(name, shape, layers, load)
            if reason is not None:
                return reason
        if layers:
            return self._reason_in_layer(name, uses, load)
        if math.prod(shape) <= 1:
            if _LITERAL_NAME.search(name):
                return LITERAL
            return _MASK if math.prod(shape) and values.is_mask(load()) else None
        is_written = _WRITTEN_NAME.search(name) is not None
        if not is_written and _is_vector(shape) and any(map(self._is_affine, uses)):
            return None
        return _WRITTEN if is_written else self._reason_of_operand(name, uses, load())

    def _reason_for_any_reader(
        self,
        name: str,
        shape: Sequence[int],
        layers: set[str],
        load: Callable[[], np.ndarray],
    ) -> str | None:
        """Why a tensor is computed, whether a layer reads it or an operation."""
        # Frequencies are multiplied with positions, which may be data.
        if _is_vector(shape) and self._reaches_sine(name) and values.is_frequencies(load()):
            return _FREQUENCIES
        if layers <= {"Gather"}:
            array = load()
            if values.is_mask(array):
                return _MASK
            if values.is_encoding(array):
                return _ENCODING
        return None

    def _reason_in_layer(
        self, name: str, uses: Sequence[Reader], load: Callable[[], np.ndarray]
    ) -> str | None:
        """Why a tensor in the place of a layer's weights is none: what exporters fill it with."""
        if _WRITTEN_NAME.search(name):
            return _WRITTEN
        is_plain = _LITERAL_NAME.search(name) and all(r.node.op_type in _NORMS for r in uses)
        if is_plain and (not _ANY_NAME.search(name) or all(map(self._is_scaled_again, uses))):
            array = load()
            if values.is_uniform(array) and array.flat[0] in (0, 1):
                return _PLAIN_NORM
        if any(map(self._is_expectation, uses)):
            array = load()
            if array.size > 3 and np.array_equal(array.ravel(), np.arange(array.size)):
                return _EXPECTATION
        return None

    def _reason_of_operand(
        self, name: str, uses: Sequence[Reader], array: np.ndarray
    ) -> str | None:
        """Why a tensor that an operation other than a layer reads does not train."""
        # A start of a recurrent layer is a weight only if a module named it.
        is_start = _LITERAL_NAME.search(name) and all(
            reader.node.op_type in ("GRU", "LSTM", "RNN") for reader in uses
        )
        # A vector may be set to short numbers by hand, and is a weight then if it is named as one.
        is_named = _is_vector(array.shape) and _WEIGHT_NAME.search(name)
        if not is_named and values.is_table(array):
            return _TABLE
        if is_start or _FILLED_NAME.search(name):
            return _WRITTEN
        if _STATISTIC_NAME.search(name):
            return _STATISTIC
        is_multiplied = all(reader.node.op_type == "MatMul" for reader in uses)
        if is_multiplied and not any(map(self._flow.meets_data, uses)):
            return _POWER if values.is_unit_vector(array) else None
        return _INPUT if any(map(self._standardizes_input, uses)) else None

    def _is_weight(self, reader: Reader) -> bool:
        """Whether a layer reads its weights here, and data beside them."""
        slot = (reader.node.op_type, reader.index)
        # A table of positions is read by indices that may be constant.
        return slot in _WEIGHTS and (slot[0] == "Gather" or self._flow.meets_data(reader))

    def _is_affine(self, reader: Reader) -> bool:
        """Whether an Add or Mul scales or shifts the output of a layer.

        A Mul may stand between the two: scale and shift are often written one after the other.
        """
        if reader.node.op_type not in ("Add", "Mul"):
            return False
        # Of the two inputs, 0 and 1, the one that is not the constant.
        other = reader.node.input[1 - reader.index]
        scaled = self._producer(other)
        if scaled is None or other not in self._flow.data:
            return False
        nodes = map(self._producer, scaled.input) if scaled.op_type == "Mul" else [scaled]
        return any(node is not None and node.op_type in _LAYERS for node in nodes)

    def _is_scaled_again(self, reader: Reader) -> bool:
        """Whether the output of a norm goes to a Mul by a constant, as a group norm is written."""
        uses = list(self._flow.uses(reader.node.output[0]))
        return bool(uses) and all(
            use.node.op_type == "Mul" and not self._flow.meets_data(use) for use in uses
        )

    def _is_expectation(self, reader: Reader) -> bool:
        """Whether a product is that of probabilities, which a softmax gives."""
        if (reader.node.op_type, reader.index) not in {("Conv", 1), ("MatMul", 1)}:
            return False
        producer = self._producer(reader.node.input[0])
        return producer is not None and producer.op_type == "Softmax"

    def _standardizes_input(self, reader: Reader) -> bool:
        """Whether a value is `a` or `b` of (x - a) / b, where x is an input of the model."""
        if reader.index != 1 or reader.node.op_type not in ("Div", "Sub"):
            return False
        if reader.node.op_type == "Sub":
            uses = list(self._flow.uses(reader.node.output[0]))
            is_divided = bool(uses) and all(
                use.node.op_type == "Div"
                and use.index == 0
                and use.node.input[1] not in self._flow.data
                for use in uses
            )
            return is_divided and self._flow.source(reader.node.input[0]) in self._flow.inputs
        difference = self._producer(reader.node.input[0])
        return (
            difference is not None
            and difference.op_type == "Sub"
            and self._standardizes_input(Reader(difference, 1))
        )

    def _reaches_sine(self, name: str) -> bool:
        """Whether a value is multiplied and added up to angles, of which a sine is taken."""
        worklist, seen = [name], {name}
        while worklist:
            for reader in self._flow.uses(worklist.pop()):
                if reader.node.op_type in ("Cos", "Sin"):
                    return True
                output = reader.node.output[0]
                if reader.node.op_type in _ANGLES and output not in seen:
                    seen.add(output)
                    worklist.append(output)
        return False

    def _producer(self, name: str) -> onnx.NodeProto | None:
        """The node that computes a value, apart from views; None for inputs and constants."""
        return self._flow.producers.get(self._flow.source(name))


def _is_vector(shape: Sequence[int]) -> bool:
    """Whether one axis alone is longer than 1: (1, C, 1, 1) scales channels just as (C,) does."""
    return 1 < math.prod(shape) == max(shape)
