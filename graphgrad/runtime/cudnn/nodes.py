"""The tensors and the operations that a graph of cuDNN is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .backend import DATA_TYPES, Attribute, Descriptor, Kind, Type
from .problem import TensorForm

ALIGNMENT = 16
"""Bytes at whose multiples tensors begin. TVM allocates at larger ones."""

SCRATCH_ALIGNMENT = 256
"""Bytes at whose multiples tensors in a workspace begin, and what cuDNN itself has of it."""

COMPARISONS = {
    "equal": 300,
    "not_equal": 301,
    "greater": 302,
    "greater_equal": 303,
    "less": 304,
    "less_equal": 305,
}
"""Modes of operations that give truth values."""

POINTWISE = {
    "add": 0,
    "multiply": 1,
    "sqrt": 4,
    "divide": 6,
    "subtract": 9,
    "abs": 10,
    "exp": 13,
    "log": 15,
    "negative": 16,
    "rsqrt": 17,
    "erf": 20,
    "identity": 21,
    "tanh": 101,
    "sigmoid": 102,
    "select": 601,
    **COMPARISONS,
}
"""Modes of operations on elements. None of them loses a NaN, as cuDNN's maximum and ReLU do."""

_INDEX = 501
"""The mode of an operation that gives each element's index along an axis."""


class Nodes:
    """The tensors and the operations of a graph, while it is made.

    Tensors are numbered in order, those of the problem first, of whose forms it is made.

    Attributes
    ----------
    tensors : list of Descriptor
        Those of the problem.
    operations : list of Descriptor
    constants : dict of int to float
        Numbers that are given where the graph is executed.
    scratches : dict of int to int
        Where in the workspace other tensors in memory begin, in bytes.
    scratch_bytes : int
        What they take of it.
    """

    def __init__(self, forms: Iterable[TensorForm]):
        self.operations: list[Descriptor] = []
        self.constants: dict[int, float] = {}
        self.scratches: dict[int, int] = {}
        self.scratch_bytes = 0
        self._count = 0
        self.tensors = [self.tensor(form) for form in forms]

    def tensor(self, form: TensorForm, held: Attribute | None = None) -> Descriptor:
        """The next tensor: in memory, or held elsewhere, as an attribute of it says."""
        self._count += 1
        tensor = Descriptor(Kind.TENSOR)
        tensor.set(Attribute.TENSOR_DATA_TYPE, Type.DATA_TYPE, [DATA_TYPES[form.dtype]])
        tensor.set(Attribute.TENSOR_DIMENSIONS, Type.INT64, form.shape)
        tensor.set(Attribute.TENSOR_STRIDES, Type.INT64, form.strides)
        tensor.set(Attribute.TENSOR_ID, Type.INT64, [self._count])
        tensor.set(Attribute.TENSOR_ALIGNMENT, Type.INT64, [ALIGNMENT])
        if held is not None:
            tensor.set(held, Type.BOOLEAN, [True])
        return tensor.finish()

    def between(self, form: TensorForm, dtype: str = "float32") -> Descriptor:
        """A tensor between operations, which is not in memory."""
        return self.tensor(replace(form, dtype=dtype), Attribute.TENSOR_IS_VIRTUAL)

    def scratch(self, form: TensorForm) -> Descriptor:
        """A tensor between operations, in the workspace; its form has no gaps."""
        tensor = self.tensor(form)
        self.scratches[self._count] = self.scratch_bytes
        self.scratch_bytes += -(-form.bytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        return tensor

    def constant(self, value: float, rank: int) -> Descriptor:
        """A tensor of one number."""
        form = TensorForm((1,) * rank, (1,) * rank, "float32")
        tensor = self.tensor(form, Attribute.TENSOR_IS_BY_VALUE)
        self.constants[self._count] = value
        return tensor

    def pointwise(
        self, op: str, operands: Sequence[Descriptor], result: Descriptor, dtype: str = "float32"
    ) -> None:
        """An operation on each element of tensors, whose axes are the result's, or 1."""
        # A choice has its condition first, as `where` has; for cuDNN it is the last.
        order = (*operands[1:], operands[0]) if op == "select" else operands
        places = (Attribute.POINTWISE_X, Attribute.POINTWISE_B, Attribute.POINTWISE_T)
        self._add_pointwise(
            _mode(POINTWISE[op], dtype), dict(zip(places, order, strict=False)), result
        )

    def computed(self, op: str, operands: Sequence[Descriptor], form: TensorForm) -> Descriptor:
        """The result of an operation on elements, in float32, which is not in memory."""
        result = self.between(form)
        self.pointwise(op, operands, result)
        return result

    def indices(self, like: Descriptor, axis: int, form: TensorForm) -> Descriptor:
        """For each element of a tensor its index along an axis."""
        mode = _mode(_INDEX, "int32", finish=False)
        mode.set(Attribute.POINTWISE_AXIS, Type.INT64, [axis]).finish()
        result = self.between(form, "int32")
        self._add_pointwise(mode, {Attribute.POINTWISE_X: like}, result)
        return result

    def _add_pointwise(
        self, mode: Descriptor, operands: dict[Attribute, Descriptor], result: Descriptor
    ) -> None:
        operation = Descriptor(Kind.POINTWISE_OPERATION)
        operation.set(Attribute.POINTWISE_DESCRIPTOR, Type.DESCRIPTOR, [mode])
        for place, operand in operands.items():
            operation.set(place, Type.DESCRIPTOR, [operand])
        operation.set(Attribute.POINTWISE_Y, Type.DESCRIPTOR, [result])
        self.operations.append(operation.finish())

    def reduce(self, kind: int, x: Descriptor, result: Descriptor) -> None:
        """A reduction over the axes that are 1 in the result."""
        reduction = Descriptor(Kind.REDUCTION)
        reduction.set(Attribute.REDUCTION_OPERATOR, Type.REDUCTION_OPERATOR, [kind])
        reduction.set(Attribute.REDUCTION_COMPUTE_TYPE, Type.DATA_TYPE, [DATA_TYPES["float32"]])
        operation = Descriptor(Kind.REDUCTION_OPERATION)
        operation.set(Attribute.REDUCTION_X, Type.DESCRIPTOR, [x])
        operation.set(Attribute.REDUCTION_Y, Type.DESCRIPTOR, [result])
        operation.set(Attribute.REDUCTION_DESCRIPTOR, Type.DESCRIPTOR, [reduction.finish()])
        self.operations.append(operation.finish())

    def reduced(self, kind: int, x: Descriptor, form: TensorForm) -> Descriptor:
        """The result of a reduction, in float32, which is not in memory."""
        result = self.between(form)
        self.reduce(kind, x, result)
        return result

    def product(
        self, a: Descriptor, b: Descriptor, result: Descriptor, compute_type: str = "float32"
    ) -> None:
        """A product of stacks of matrices."""
        product = Descriptor(Kind.MATMUL)
        product.set(Attribute.MATMUL_COMPUTE_TYPE, Type.DATA_TYPE, [DATA_TYPES[compute_type]])
        operation = Descriptor(Kind.MATMUL_OPERATION)
        operands = (Attribute.MATMUL_A, Attribute.MATMUL_B, Attribute.MATMUL_C)
        for attribute, tensor in zip(operands, (a, b, result), strict=True):
            operation.set(attribute, Type.DESCRIPTOR, [tensor])
        operation.set(Attribute.MATMUL_DESCRIPTOR, Type.DESCRIPTOR, [product.finish()])
        self.operations.append(operation.finish())

    def reshaped(self, x: Descriptor, form: TensorForm) -> Descriptor:
        """A tensor in another form, in which its axes may be exchanged; not in memory."""
        result = self.between(form, form.dtype)
        operation = Descriptor(Kind.RESHAPE_OPERATION)
        operation.set(Attribute.RESHAPE_X, Type.DESCRIPTOR, [x])
        operation.set(Attribute.RESHAPE_Y, Type.DESCRIPTOR, [result])
        self.operations.append(operation.finish())
        return result


def _mode(number: int, dtype: str, finish: bool = True) -> Descriptor:
    mode = Descriptor(Kind.POINTWISE)
    mode.set(Attribute.POINTWISE_MODE, Type.POINTWISE_MODE, [number])
    mode.set(Attribute.POINTWISE_COMPUTE_TYPE, Type.DATA_TYPE, [DATA_TYPES[dtype]])
    return mode.finish() if finish else mode
