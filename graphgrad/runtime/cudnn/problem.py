"""A contraction for a library to compute: what it is, and which tensors it reads and writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

CONVOLUTIONS = ("conv_forward", "conv_data_gradient", "conv_weight_gradient")
MATMUL = "matmul"

ATTENTION, ATTENTION_GRADIENT = "attention", "attention_gradient"

CONTRACTED = 2
"""Inputs that a contraction multiplies; further ones are its epilogue's."""


_PRODUCTS = {ATTENTION: (1, 1), ATTENTION_GRADIENT: (3, 2)}
"""Products of attention with features of queries and keys, and with those of values."""


@dataclass(frozen=True)
class TensorForm:
    """The form of a tensor in memory.

    Attributes
    ----------
    shape : tuple of int
        In the order of cuDNN, whatever that in memory is: N, C and the spatial axes of data; K, C
        and the spatial axes of weights; batch, rows, columns of matrices.
    strides : tuple of int
        In elements.
    dtype : str
    offset : int
        The place of its first element in the tensor that a program gives.
    elements : int
        Those of that tensor; 0 if these are as many as the form reaches.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int = 0
    elements: int = 0

    @property
    def reach(self) -> int:
        """Elements of memory from the first of a tensor to its own last."""
        span = zip(self.shape, self.strides, strict=True)
        return self.offset + 1 + sum((extent - 1) * stride for extent, stride in span)

    @property
    def size(self) -> int:
        """Elements of the tensor that a program gives."""
        return self.elements or self.reach

    @property
    def offset_bytes(self) -> int:
        """What is in front of its first element."""
        return self.offset * _BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """What a pass over the tensor moves; an axis of stride 0 is read once."""
        extents = zip(self.shape, self.strides, strict=True)
        return _BYTES[self.dtype] * prod(extent for extent, stride in extents if stride)


@dataclass(frozen=True)
class Step:
    """An operation of an epilogue, on each element, in float32.

    Attributes
    ----------
    op : str
        Of `nodes.POINTWISE`.
    operands : tuple of int or float
        A float is a number. An int counts values: 0 is what the contraction gives, then come the
        inputs that it does not multiply, then the results of the steps.
    """

    op: str
    operands: tuple[int | float, ...]


@dataclass(frozen=True)
class Problem:
    """A contraction, and what is computed of each element of its result before that is written.

    Attributes
    ----------
    op : str
        ``"conv_forward"`` reads data and weights, ``"conv_data_gradient"`` a cotangent and weights,
        ``"conv_weight_gradient"`` data and a cotangent, ``"matmul"`` two stacks of matrices.
        ``"attention"`` reads queries, keys and values, each as batch, heads, positions, features,
        and gives its result and the logarithms of the sums of its rows, as columns;
        ``"attention_gradient"`` reads the first three, both results and the cotangent of the first,
        and gives the gradients of the first three.
    inputs : tuple of TensorForm
        In that order. Those of the epilogue follow; their axes are the output's, or 1.
    outputs : tuple of TensorForm
        Those of a contraction differ in their dtypes alone.
    tf32 : bool
        Whether operands of float32 may be rounded to 10 bits of mantissa.
    strides, padding_before, padding_after, dilation : tuple of int
        Of a convolution's window, for each spatial axis.
    epilogue : tuple of Step
    results : tuple of int
        The values, counted as the operands of steps are, that the outputs are.
    scale : float
        Of the products of queries and keys.
    causal : bool
        Whether queries attend no keys behind their own position.
    joined : bool
        Whether the outputs are parts of one tensor that a program gives.
    """

    op: str
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]
    tf32: bool = False
    strides: tuple[int, ...] = ()
    padding_before: tuple[int, ...] = ()
    padding_after: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    epilogue: tuple[Step, ...] = ()
    results: tuple[int, ...] = (0,)
    scale: float = 1.0
    causal: bool = False
    joined: bool = False

    @property
    def output(self) -> TensorForm:
        """The form of the result."""
        return self.outputs[0]

    @property
    def tensors(self) -> tuple[TensorForm, ...]:
        """The inputs, then the outputs: a tensor's place here is its number for cuDNN."""
        return (*self.inputs, *self.outputs)

    @property
    def data(self) -> TensorForm:
        """The side of a convolution that has its input channels."""
        return self.output if self.op == "conv_data_gradient" else self.inputs[0]

    @property
    def weights(self) -> TensorForm:
        """The weights of a convolution."""
        return self.output if self.op == "conv_weight_gradient" else self.inputs[1]

    @property
    def result(self) -> TensorForm:
        """The side of a convolution that has its output channels."""
        if self.op == "conv_forward":
            return self.output
        return self.inputs[0 if self.op == "conv_data_gradient" else 1]

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        if self.op in _PRODUCTS:
            (*rows, features), keys = self.inputs[0].shape, self.inputs[1].shape[2]
            values = self.inputs[2].shape[3]
            of_query, of_value = _PRODUCTS[self.op]
            work = 2 * prod(rows) * keys * (of_query * features + of_value * values)
            return work // 2 if self.causal else work
        if self.op == MATMUL:
            return 2 * prod(self.output.shape) * self.inputs[0].shape[-1]
        return 2 * prod(self.result.shape) * prod(self.weights.shape[1:])

    @property
    def bytes(self) -> int:
        """What moves if every tensor is read or written once."""
        return sum(tensor.bytes for tensor in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads it."""
        return asdict(self)

    @property
    def key(self) -> str:
        """A text that two problems share only if they are equal."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(described: Mapping[str, Any]) -> Problem:
        """The problem that `to_json` describes."""
        windows = ("strides", "padding_before", "padding_after", "dilation", "results")
        return Problem(
            described["op"],
            tuple(map(_tensor, described["inputs"])),
            tuple(map(_tensor, described["outputs"])),
            described["tf32"],
            **{name: tuple(described[name]) for name in windows},
            scale=described["scale"],
            causal=described["causal"],
            joined=described["joined"],
            epilogue=tuple(
                Step(each["op"], tuple(each["operands"])) for each in described["epilogue"]
            ),
        )


def _tensor(described: Mapping[str, Any]) -> TensorForm:
    return TensorForm(
        **{**described, "shape": tuple(described["shape"]), "strides": tuple(described["strides"])}
    )


def strides_of(extents: Sequence[int]) -> tuple[int, ...]:
    """The strides of a compact tensor, in elements."""
    return tuple(prod(extents[axis + 1 :]) for axis in range(len(extents)))
