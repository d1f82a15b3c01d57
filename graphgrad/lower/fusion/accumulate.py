"""Accumulated gradients: the addition goes into the kernel that computes the gradient.

The program says ``accumulator + gradient`` behind everything else. Here the sum follows its
gradient at once; a gradient that is scattered into zeros is scattered into the accumulator; and a
reduction, which stock fusion keeps apart from what follows it, shares a kernel with the addition.
Matrix products and convolutions need nothing here: stock fusion takes the addition into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from ...ir.calls import calls_op
from ...ir.kernel_calls import drop_unused_kernels, is_kernel_call, uses_in
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_functions, replace_bindings, replace_body
from ...ir.tensor import accumulator_dtype
from ...memory.donation import DONATED
from ...memory.effect_order import may_write
from ...ops.define import OPAQUE
from ...ops.index import scatter
from ...ops.indexing import Indexing
from .merge import Part, fuse_epilogue

_SCATTER_ADD = "graphgrad.scatter_add"


@compiler_pass(
    Phase.GRAPH, because="once they share a kernel, all that a gradient is computed from is kept"
)
def accumulate_early(mod: tvm.IRModule) -> tvm.IRModule:
    """Add to accumulators as soon as their gradients are there.

    Otherwise a gradient would be kept until the last one is computed.
    """
    builder = relax.BlockBuilder(mod)

    def changed(_: Any, func: relax.Function) -> relax.Function:
        return _EarlyAccumulation(builder, func).function() if _has_movable_sums(func) else func

    return map_functions(mod, changed, builder)


@compiler_pass(
    Phase.FUSED,
    after={
        "fuse_siblings": "a kernel with such a sum in it is no plain reduction any more",
        "fuse_rowwise": "one of several results of a kernel is added to an accumulator too",
    },
)
def fuse_accumulation(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute reductions and add them to accumulators in one kernel.

    Only where a schedule hands over the results one by one: nothing of the gradient's size is left.
    """
    for name, func in list(mod.functions.items()):
        if _has_movable_sums(func):
            mod = _AccumulationFusion(mod, name, func).module()
    return mod


class _EarlyAccumulation:
    """One function, its sums with accumulators moved behind their gradients."""

    def __init__(self, builder: relax.BlockBuilder, func: relax.Function):
        self._builder, self._func = builder, func
        self._accumulators = _donated_params(func)
        self._uses = uses_in(func)

    def function(self) -> relax.Function:
        return _replace_all_bindings(
            self._func, [self._reorder_bindings(block.bindings) for block in self._func.body.blocks]
        )

    def _reorder_bindings(self, bindings: Sequence[Any]) -> list[Any]:
        bound = {binding.var for binding in bindings}
        following: dict[Any, Any] = {}
        for binding in bindings:
            gradient = self._gradient(binding)
            if gradient in bound and gradient not in following:
                following[gradient] = binding
        moved = {binding.var for binding in following.values()}
        order: list[Any] = []
        for binding in bindings:
            if binding.var in moved:
                continue
            order.append(binding)
            while (total := following.get(order[-1].var)) is not None:  # a sum may be a gradient
                order[-1:] = self._sum(order[-1], total)
        return order

    def _gradient(self, binding: Any) -> Any:
        """The term that a binding adds to an accumulator; None if it does something else."""
        if not calls_op(binding.value, "relax.add"):
            return None
        left, right = binding.value.args
        if left.same_as(right) or not isinstance(right, tvm.ir.Var):
            return None
        return right if left in self._accumulators and left.ty == binding.var.ty else None

    def _sum(self, gradient: Any, total: Any) -> list[Any]:
        """The bindings of a gradient and of its sum with an accumulator."""
        call = gradient.value
        if not calls_op(call, _SCATTER_ADD) or self._uses[gradient.var] != 1:
            return [gradient, total]
        dtype = str(call.ty.dtype)
        if accumulator_dtype(dtype) != dtype:
            return [gradient, total]  # it is scattered in a wider buffer, and rounded once
        updates, index, _ = call.args
        indexing = Indexing.of(call.attrs)

        def into(data: te.Tensor, index: te.Tensor, updates: te.Tensor) -> te.Tensor:
            return scatter(indexing, data, index, updates, "add")

        value = self._builder.call_te(
            into,
            total.value.args[0],
            index,
            updates,
            primfunc_name_hint="scatter_add",
            primfunc_attrs=OPAQUE,
        )
        return [relax.VarBinding(total.var, value, total.span)]


class _AccumulationFusion:
    """One function, its reductions and their sums with accumulators on the way into one kernel."""

    def __init__(self, mod: tvm.IRModule, name: Any, func: relax.Function):
        self._name, self._func = name, func
        self._builder = relax.BlockBuilder(mod)
        self._mod = mod
        self._accumulators = _donated_params(func)
        self._uses = uses_in(func)
        self._made: list[tuple[tirx.PrimFunc, Any]] = []
        self._replaced: list[Any] = []

    def module(self) -> tvm.IRModule:
        changed = [self._fused(list(block.bindings)) for block in self._func.body.blocks]
        if not self._made:
            return self._mod
        self._builder.update_func(self._name, _replace_all_bindings(self._func, changed))
        return drop_unused_kernels(self._builder.get(), self._replaced)

    def _fused(self, bindings: list[Any]) -> list[Any]:
        at = _positions(bindings)
        for total in list(bindings):
            if is_kernel_call(total.value) and isinstance(total.value.ty, relax.TensorType):
                changed = self._fuse_sum(bindings, at, total)
                if changed is not bindings:
                    bindings, at = changed, _positions(changed)
        return bindings

    def _fuse_sum(self, bindings: list[Any], at: dict[Any, int], total: Any) -> list[Any]:
        """The bindings with a sum in the kernel of its gradient, if that is possible."""
        arguments = list(total.value.args[1].fields)
        if not any(argument in self._accumulators for argument in arguments):
            return bindings
        for position, gradient in enumerate(arguments):
            if gradient not in at or self._uses[gradient] != 1:
                continue
            defined = bindings[at[gradient]]
            producer, output = self._producer(bindings, at, defined)
            if producer is None:
                continue
            others = [a for a in arguments if not a.same_as(gradient)]
            # A kernel of one result moves down to the sum. One of several stays, as others read the
            # rest of its results: so all that the sum reads must be there by then.
            if output is not None and (
                gradient.ty != total.var.ty
                or any(at.get(other, -1) > at[producer.var] for other in others)
            ):
                continue
            call = self._call(producer.value, output, total.value, position)
            if call is None:
                continue
            if output is None:
                new = {producer.var: None, total.var: relax.VarBinding(total.var, call, total.span)}
            else:
                result = relax.VarBinding(total.var, defined.value, total.span)
                whole = relax.VarBinding(producer.var, call, producer.span)
                new = {producer.var: whole, gradient: result, total.var: None}
            changed = [new.get(binding.var, binding) for binding in bindings]
            return [binding for binding in changed if binding is not None]
        return bindings

    def _producer(
        self, bindings: list[Any], at: dict[Any, int], defined: Any
    ) -> tuple[Any | None, int | None]:
        """The call of a kernel that computes a value, and which of its results it is."""
        if not isinstance(defined.value, relax.TupleGetItem):
            return (defined, None) if is_kernel_call(defined.value) else (None, None)
        whole, output = defined.value.tuple_value, int(defined.value.index)
        parts = [
            int(b.value.index)
            for b in bindings
            if isinstance(b.value, relax.TupleGetItem) and b.value.tuple_value.same_as(whole)
        ]
        if whole not in at or len(parts) != self._uses[whole] or parts.count(output) != 1:
            return None, None
        producer = bindings[at[whole]]
        return (producer, output) if is_kernel_call(producer.value) else (None, None)

    def _call(self, producer: Any, output: int | None, consumer: Any, position: int) -> Any | None:
        """The call of one kernel in place of two; None if it would not be better."""
        merged = fuse_epilogue(self._part(producer), output or 0, self._part(consumer), position)
        if merged is None:
            return None
        kernel = merged.kernel
        name = next((v for k, v in self._made if tvm_ffi.structural_equal(k, kernel)), None)
        if name is None:
            hint = f"{producer.args[0].name_hint}_{consumer.args[0].name_hint}"
            name = self._builder.add_func(kernel, hint)
            self._made.append((kernel, name))
        self._replaced += [producer.args[0], consumer.args[0]]
        types = list(producer.ty.fields) if output is not None else consumer.ty
        call = relax.call_tir(name, relax.Tuple(merged.arguments), types)
        return self._builder.normalize(call)

    def _part(self, call: Any) -> Part:
        return Part(self._builder.get()[call.args[0]], list(call.args[1].fields))


def _has_movable_sums(func: Any) -> bool:
    """Whether a function may overwrite parameters, and nothing else in it writes to them."""
    return (
        isinstance(func, relax.Function)
        and func.attrs
        and DONATED in func.attrs
        and not may_write(func.body)
    )


def _donated_params(func: relax.Function) -> set[Any]:
    """The parameters that a function may overwrite, if its attribute makes sense."""
    try:
        return {func.params[int(parameter)] for parameter, _ in func.attrs[DONATED]}
    except (IndexError, TypeError, ValueError):
        return set()  # donation refuses it, and says why


def _positions(bindings: Sequence[Any]) -> dict[Any, int]:
    """Where each variable is bound."""
    return {binding.var: position for position, binding in enumerate(bindings)}


def _replace_all_bindings(func: relax.Function, changed: list[list[Any]]) -> relax.Function:
    """A function whose blocks have other bindings."""
    pairs = zip(func.body.blocks, changed, strict=True)
    blocks = [replace_bindings(block, bindings) for block, bindings in pairs]
    return replace_body(func, relax.SeqExpr(blocks, func.body.body, func.body.span))
