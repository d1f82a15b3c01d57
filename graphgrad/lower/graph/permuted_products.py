"""Matrix products that absorb the permutations of axes around them.

An ONNX file states ``x @ Wᵀ`` as a transposition and a product, and so do gradients; attention
permutes heads before its products. Each permutation is a pass over memory that a contraction does
not need: it can read its operands, and write its result, in any order of axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te

from ...ir.calls import axes_of_permutation, calls_op
from ...ir.kernel_calls import variables_of
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_functions, replace_bindings, replace_body
from ...ir.tensor import accumulator_dtype, type_shape
from ...memory.effect_order import may_write
from ...ops.linalg import matrix_product

_MATMUL = "relax.matmul"
PERMUTATION = "relax.permute_dims"


@compiler_pass(Phase.GRAPH, targets=("llvm",))
def fold_permutations(mod: tvm.IRModule) -> tvm.IRModule:
    """Have matrix products read unpermuted operands, and write permuted results, themselves.

    A function that may overwrite memory stays as it is: what is permuted there may change before it
    is multiplied.
    """
    builder = relax.BlockBuilder(mod)

    def changed(_: Any, func: relax.Function) -> relax.Function:
        return func if may_write(func.body) else _Permutations(builder, func).function()

    return map_functions(mod, changed, builder)


@dataclass(frozen=True)
class _View:
    """A tensor expression with its axes permuted, which can be indexed like a tensor.

    `axes` gives, for each axis of the view, the axis of the tensor.
    """

    tensor: te.Tensor
    axes: Sequence[int]

    @property
    def shape(self) -> list[Any]:
        return [self.tensor.shape[axis] for axis in self.axes]

    def __call__(self, *indices: Any) -> Any:
        order = dict(zip(self.axes, indices, strict=True))
        return self.tensor(*(order[axis] for axis in range(len(self.axes))))


class _Permutations:
    """The permutations around the matrix products of one function."""

    def __init__(self, builder: relax.BlockBuilder, func: relax.Function):
        self._builder, self._func = builder, func
        self._bound: dict[Any, Any] = {}
        self._permuted: dict[Any, Any] = {}
        self._readers = _readers(func)

    def function(self) -> relax.Function:
        """The function with the permutations inside the products, and without the others."""
        bindings = (binding for block in self._func.body.blocks for binding in block.bindings)
        if not any(calls_op(binding.value, PERMUTATION) for binding in bindings):
            return self._func
        blocks = [
            relax.DataflowBlock(list(self._changed(block.bindings)), block.span)
            if isinstance(block, relax.DataflowBlock)
            else block
            for block in self._func.body.blocks
        ]
        body = relax.SeqExpr(drop_unread(blocks, self._func), self._func.body.body)
        return replace_body(self._func, body)

    def _changed(self, bindings: Sequence[Any]) -> Iterator[Any]:
        """Yield the bindings of a block, with permutations put into the products next to them."""
        # A variable of another dataflow block is not visible here, so each block has its own.
        self._bound = {binding.var: binding.value for binding in bindings}
        # By what they permute, the first permutation of each.
        permutations = [each for each in bindings if calls_op(each.value, PERMUTATION)]
        self._permuted = {each.value.args[0]: each for each in reversed(permutations)}
        absorbed: set[Any] = set()
        for binding in bindings:
            if binding.var in absorbed:
                continue
            if not self._is_product(binding.value):
                yield binding
                continue
            permutation = self._permutation_behind(binding)
            if permutation is not None:
                absorbed.add(permutation.var)
                # This variable is no permutation any more: it is bound to the product itself, which
                # moves nothing else, because only the permutation reads the product.
                del self._bound[permutation.var]
            yield self._absorb_permutations(binding, permutation)

    def _is_product(self, value: Any) -> bool:
        """Whether a value is a product of non-empty matrices, of one dtype, in which it adds up."""
        if not calls_op(value, _MATMUL):
            return False
        dtype = str(value.ty.dtype)
        operands = [self._strip_permutation(operand)[0] for operand in value.args]
        return (
            accumulator_dtype(dtype) == dtype
            and all(str(operand.ty.dtype) == dtype for operand in operands)
            and all(extent != 0 for o in operands for extent in type_shape(o.ty))
        )

    def _permutation_behind(self, product: Any) -> Any | None:
        """The binding that permutes a product, if nothing else reads the product."""
        if self._readers[product.var] != 1 or not isinstance(product.var, relax.DataflowVar):
            return None
        return self._permuted.get(product.var)

    def _absorb_permutations(self, product: Any, permutation: Any | None) -> Any:
        """The binding of a product that reads, and writes, in the order of memory."""
        (left, left_axes), (right, right_axes) = map(self._strip_permutation, product.value.args)
        if (
            permutation is None
            and left_axes == sorted(left_axes)
            and right_axes == sorted(right_axes)
        ):
            return product
        dtype, shape = str(product.value.ty.dtype), list(product.value.ty.shape.values)
        order = None if permutation is None else axes_of_permutation(permutation.value)

        def multiplied(left: te.Tensor, right: te.Tensor) -> te.Tensor:
            views = _View(left, left_axes), _View(right, right_axes)
            return matrix_product(*views, shape, dtype, order)

        call = self._builder.call_te(multiplied, left, right, primfunc_name_hint="matmul")
        value = relax.Call(call.op, call.args, call.attrs, call.ty_args, product.value.span)
        result = product if permutation is None else permutation
        return relax.VarBinding(result.var, self._builder.normalize(value), result.span)

    def _strip_permutation(self, operand: Any) -> tuple[Any, list[int]]:
        return strip_permutations(operand, self._bound)


def strip_permutations(operand: Any, bound: Mapping[Any, Any]) -> tuple[Any, list[int]]:
    """The tensor that an operand is a permutation of, and its axes in the operand's order.

    Parameters
    ----------
    operand : relax expression
    bound : mapping
        The values of those variables that may be looked behind.
    """
    axes = list(range(len(type_shape(operand.ty))))
    value = bound.get(operand) if isinstance(operand, tvm.ir.Var) else None
    while value is not None and calls_op(value, PERMUTATION):
        inner = axes_of_permutation(value)
        axes = [inner[axis] for axis in axes]
        operand = value.args[0]
        value = bound.get(operand) if isinstance(operand, tvm.ir.Var) else None
    return operand, axes


def drop_unread(
    blocks: list[Any], func: relax.Function, ops: Collection[str] = (PERMUTATION,)
) -> list[Any]:
    """Blocks without calls of some ops, and elements of tuples, that nothing reads any more."""
    read: set[Any] = set(variables_of(func.body.body))
    remaining: list[Any] = []
    for block in reversed(blocks):
        bindings: list[Any] = []
        for binding in reversed(block.bindings):
            name = str(getattr(getattr(binding.value, "op", None), "name", ""))
            is_pure = name in ops or isinstance(binding.value, relax.TupleGetItem)
            if is_pure and binding.var not in read:
                continue
            read.update(variables_of(binding.value))
            bindings.append(binding)
        remaining.append(replace_bindings(block, bindings[::-1]))
    return remaining[::-1]


def _readers(func: relax.Function) -> Counter[Any]:
    """How often each variable is read."""
    values = [binding.value for block in func.body.blocks for binding in block.bindings]
    return Counter(var for value in [*values, func.body.body] for var in variables_of(value))
