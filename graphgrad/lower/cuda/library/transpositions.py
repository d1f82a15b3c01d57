"""Transpositions around matrix products moved to where a library makes nothing of them.

A linear layer states x Wᵀ, in mixed precision with Wᵀ cast to half precision, and its gradient is
transposed back, after casts: each a pass over memory in an order across that of its result. A
library reads operands in any order. So W is cast and then transposed, and the gradient (A B)ᵀ is
computed as Bᵀ Aᵀ. What is left are casts in the order of memory, which are computed with others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax

from ....ir.calls import axes_of_permutation, calls_op
from ....ir.kernel_calls import uses_in
from ....ir.passes import Phase, compiler_pass
from ....ir.rewrite import map_functions, replace_bindings, replace_body
from ....ir.tensor import bits, type_shape
from ....memory.effect_order import may_write
from ...graph.permuted_products import PERMUTATION, drop_unread
from .pointwise import CAST
from .problems import PRODUCT
from .select import absence

_SWAPPED = [1, 0]


@compiler_pass(
    Phase.GRAPH,
    targets=("cuda",),
    before={"call_libraries": "a library reads transposed operands as they are in memory"},
)
def move_transpositions(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Cast parameters before they are permuted, and compute transposed products as such."""
    if absence(target) is not None:
        return mod

    def changed(_: Any, func: relax.Function) -> relax.Function:
        if may_write(func.body):  # what is permuted may change before it is read
            return func
        uses = uses_in(func)
        blocks = [
            replace_bindings(block, list(_Block(block.bindings, uses, func.params).changed()))
            if isinstance(block, relax.DataflowBlock)
            else block
            for block in func.body.blocks
        ]
        blocks = drop_unread(blocks, func, {PERMUTATION, CAST, PRODUCT})
        return replace_body(func, relax.SeqExpr(blocks, func.body.body, func.body.span))

    return map_functions(mod, changed)


class _Block:
    """The bindings of a block, and who reads them."""

    def __init__(self, bindings: Sequence[Any], uses: Counter[Any], params: Sequence[Any]):
        self._bindings, self._uses, self._params = bindings, uses, set(params)
        self._bound = {each.var: each.value for each in bindings}
        self._builder = relax.BlockBuilder()

    def changed(self) -> Iterator[Any]:
        """Yield the bindings, with transpositions moved; nothing may read what is left behind."""
        for binding in self._bindings:
            if self._is_permuted_parameter(binding.value):
                yield from self._cast_first(binding)
            elif calls_op(binding.value, PERMUTATION) and (steps := self._product_behind(binding)):
                yield from self._transposed(binding, steps)
            else:
                yield binding

    def _is_permuted_parameter(self, value: Any) -> bool:
        """Whether a value is a narrowing cast of a parameter that is permuted before."""
        if not calls_op(value, CAST):
            return False
        inner: Any = self._bound.get(value.args[0])
        return (
            calls_op(inner, PERMUTATION)
            and inner.args[0] in self._params
            and bits(str(value.ty.dtype)) < bits(str(inner.ty.dtype))
        )

    def _cast_first(self, binding: Any) -> Iterator[Any]:
        """Yield a cast and a permutation, in this order, in place of a cast behind one."""
        permutation, dtype = self._bound[binding.value.args[0]], str(binding.value.ty.dtype)
        cast = self._binding(None, relax.op.astype(permutation.args[0], dtype), binding)
        yield cast
        yield self._binding(
            binding.var, relax.op.permute_dims(cast.var, axes_of_permutation(permutation)), binding
        )

    def _product_behind(self, permutation: Any) -> list[Any]:
        """The product of matrices, and the casts of it, that a binding alone transposes; or none.

        The product is the first one.
        """
        steps: list[Any] = []
        if axes_of_permutation(permutation.value) != _SWAPPED:
            return []
        value = permutation.value
        while calls_op(value, PERMUTATION if not steps else CAST):
            variable = value.args[0]
            if not isinstance(variable, relax.DataflowVar) or self._uses[variable] != 1:
                return []
            value = self._bound.get(variable)
            steps.insert(0, value)
        is_product = calls_op(value, PRODUCT)
        return steps if is_product and all(len(type_shape(a.ty)) == 2 for a in value.args) else []

    def _transposed(self, permutation: Any, steps: Sequence[Any]) -> Iterator[Any]:
        """Yield the transposed product and its casts, the last of them in place of a binding."""
        product, *casts = steps
        operands = []
        for each in reversed(product.args):
            before: Any = self._bound.get(each)
            if calls_op(before, PERMUTATION) and axes_of_permutation(before) == _SWAPPED:
                operands.append(before.args[0])
            else:
                turned = self._binding(None, relax.op.permute_dims(each, _SWAPPED), permutation)
                yield turned
                operands.append(turned.var)
        value = relax.op.matmul(*operands, out_dtype=str(product.ty.dtype))
        for cast in casts:
            step = self._binding(None, value, permutation)
            yield step
            value = relax.op.astype(step.var, str(cast.ty.dtype))
        yield self._binding(permutation.var, value, permutation)

    def _binding(self, variable: Any | None, value: Any, at: Any) -> Any:
        """The binding of a value in the place of another, by default of a variable of its own."""
        call = relax.Call(value.op, value.args, value.attrs, value.ty_args, at.value.span)
        call = self._builder.normalize(call)
        if variable is None:
            variable = relax.DataflowVar(f"{at.var.name}_step", call.ty)
        return relax.VarBinding(variable, call, at.span)
