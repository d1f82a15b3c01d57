"""Accumulated gradients: the addition goes into the kernel that computes the gradient.

The program states ``accumulator + gradient`` after everything else. Here the sum is moved directly
behind its gradient; what is scattered into zeros is scattered into what it is added to; and
a reduction, which stock fusion keeps apart from what follows it, shares a kernel with the addition.
Matrix products and convolutions need nothing here: stock fusion takes the addition into them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import tvm
from tvm import relax, te

from ...ir.calls import calls_op
from ...ir.kernel_calls import is_kernel_call, uses_in
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_functions, replace_bindings, replace_body
from ...ir.tensor import accumulator_dtype
from ...memory.donation import DONATED, donated_params
from ...memory.effect_order import may_write
from ...ops.define import OPAQUE
from ...ops.index import scatter
from ...ops.indexing import Indexing
from .merge import MergedKernels, Part, fuse_epilogue

_SCATTER_ADD = "graphgrad.scatter_add"


@compiler_pass(
    Phase.GRAPH, because="once they share a kernel, all that a gradient is computed from is kept"
)
def accumulate_early(mod: tvm.IRModule) -> tvm.IRModule:
    """Add to accumulators as soon as their gradients are computed.

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

    Only where a schedule hands each result, or a tile of them, to the addition as soon as it is
    complete: then no buffer of the gradient's size is left.
    """
    for name, func in list(mod.functions.items()):
        if _has_movable_sums(func):
            mod = _AccumulationFusion(mod, name, func).module()
    return mod


class _EarlyAccumulation:
    """One function, its sums with accumulators moved behind their gradients."""

    def __init__(self, builder: relax.BlockBuilder, func: relax.Function):
        self._builder, self._func = builder, func
        self._accumulators = donated_params(func)
        self._uses = uses_in(func)

    def function(self) -> relax.Function:
        return _replace_all_bindings(
            self._func, [self._reorder_bindings(block.bindings) for block in self._func.body.blocks]
        )

    def _reorder_bindings(self, bindings: Sequence[Any]) -> list[Any]:
        """The bindings of a block, each gradient followed by its sum with an accumulator."""
        bound = {binding.var for binding in bindings}
        # Only the first sum of a gradient moves behind it, and only inside one block.
        sum_of_gradient: dict[Any, Any] = {}
        for binding in bindings:
            gradient = self._gradient(binding)
            if gradient in bound and gradient not in sum_of_gradient:
                sum_of_gradient[gradient] = binding
        bindings = self._scatter_into_sums(bindings, sum_of_gradient)
        moved = {binding.var for binding in sum_of_gradient.values()}
        order: list[Any] = []
        for binding in bindings:
            if binding.var in moved:
                continue
            order.append(binding)
            # A loop, because a sum may be the gradient of a further sum.
            while (total := sum_of_gradient.get(order[-1].var)) is not None:
                order[-1:] = self._sum(order[-1], total)
        return order

    def _scatter_into_sums(self, bindings: Sequence[Any], gradients: Container[Any]) -> list[Any]:
        """The bindings, with what is scattered into zeros scattered into what it is added to.

        So is the gradient of an embedding into that of the head, where they share their weights.
        What is added to an accumulator itself, one of `gradients`, needs no memory of its own.
        """
        bound = {binding.var: binding for binding in bindings}
        scattered: set[Any] = set()
        changed = []
        for binding in bindings:
            if calls_op(binding.value, "relax.add") and binding.var not in gradients:
                total, last = binding.value.args
                is_whole = total.ty == binding.var.ty and last.ty == binding.var.ty
                if is_whole and total in bound and last in bound:
                    joined = self._sum(bound[last], binding)
                    if len(joined) == 1:
                        scattered.add(last)
                        changed += joined
                        continue
            changed.append(binding)
        return [binding for binding in changed if binding.var not in scattered]

    def _gradient(self, binding: Any) -> Any:
        """The term that a binding adds to an accumulator; None if it does something else."""
        if not calls_op(binding.value, "relax.add"):
            return None
        left, right = binding.value.args
        # The accumulator is always the first operand, and as large as the sum: one that is
        # broadcast cannot be overwritten with it.
        if left.same_as(right) or not isinstance(right, tvm.ir.Var):
            return None
        return right if left in self._accumulators and left.ty == binding.var.ty else None

    def _sum(self, gradient: Any, total: Any) -> list[Any]:
        """The bindings of a gradient and of its sum with an accumulator.

        It is one binding if the gradient can be scattered into the accumulator itself.
        """
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
            primfunc_attrs=OPAQUE,  # loops of a scatter are fused with nothing
        )
        return [relax.VarBinding(total.var, value, total.span)]


class _AccumulationFusion:
    """One function, in which reductions and their sums with accumulators become one kernel."""

    def __init__(self, mod: tvm.IRModule, name: Any, func: relax.Function):
        self._name, self._func = name, func
        self._kernels = MergedKernels(mod)
        self._accumulators = donated_params(func)
        self._uses = uses_in(func)

    def module(self) -> tvm.IRModule:
        changed = [self._fused(list(block.bindings)) for block in self._func.body.blocks]
        builder = self._kernels.builder
        if self._kernels.are_used:
            builder.update_func(self._name, _replace_all_bindings(self._func, changed))
        return self._kernels.finished(builder.get())

    def _fused(self, bindings: list[Any]) -> list[Any]:
        positions = _positions(bindings)
        for total in list(bindings):
            if is_kernel_call(total.value) and isinstance(total.value.ty, relax.TensorType):
                changed = self._fuse_sum(bindings, positions, total)
                if changed is not bindings:
                    bindings, positions = changed, _positions(changed)
        return bindings

    def _fuse_sum(self, bindings: list[Any], positions: dict[Any, int], total: Any) -> list[Any]:
        """The bindings with a sum in the kernel of its gradient, if that is possible."""
        arguments = list(total.value.args[1].fields)
        if not any(argument in self._accumulators for argument in arguments):
            return bindings
        for position, gradient in enumerate(arguments):
            if gradient not in positions or self._uses[gradient] != 1:
                continue
            gradient_binding = bindings[positions[gradient]]
            producer, output = self._producer(bindings, positions, gradient_binding)
            if producer is None:
                continue
            other_arguments = [a for a in arguments if not a.same_as(gradient)]
            # A kernel of one result moves down to the sum. One of several stays, as others read the
            # rest of its results: so all that the sum reads must be there by then.
            if output is not None and (
                gradient.ty != total.var.ty
                or any(
                    positions.get(needed, -1) > positions[producer.var]
                    for needed in other_arguments
                )
            ):
                continue
            call = self._call(producer.value, output, total.value, position)
            if call is None:
                continue
            if output is None:
                replacements = {
                    producer.var: None,
                    total.var: relax.VarBinding(total.var, call, total.span),
                }
            else:
                sum_binding = relax.VarBinding(total.var, gradient_binding.value, total.span)
                fused_binding = relax.VarBinding(producer.var, call, producer.span)
                replacements = {producer.var: fused_binding, gradient: sum_binding, total.var: None}
            changed = [replacements.get(binding.var, binding) for binding in bindings]
            return [binding for binding in changed if binding is not None]
        return bindings

    def _producer(
        self, bindings: list[Any], positions: dict[Any, int], binding: Any
    ) -> tuple[Any | None, int | None]:
        """The binding of the kernel call that computes a value, and which of its results it is.

        The index is None if the kernel has one result; both are None if there is no such call, or
        if anything but items is read of its results.
        """
        if not isinstance(binding.value, relax.TupleGetItem):
            return (binding, None) if is_kernel_call(binding.value) else (None, None)
        results, output = binding.value.tuple_value, int(binding.value.index)
        read_indices = [
            int(item.value.index)
            for item in bindings
            if isinstance(item.value, relax.TupleGetItem)
            and item.value.tuple_value.same_as(results)
        ]
        if (
            results not in positions
            or len(read_indices) != self._uses[results]
            or read_indices.count(output) != 1
        ):
            return None, None
        producer = bindings[positions[results]]
        return (producer, output) if is_kernel_call(producer.value) else (None, None)

    def _call(self, producer: Any, output: int | None, consumer: Any, position: int) -> Any | None:
        """The call of one kernel in place of two; None if they cannot share one."""
        merged = fuse_epilogue(self._part(producer), output or 0, self._part(consumer), position)
        if merged is None:
            return None
        name = self._kernels.add(merged.kernel, producer.args[0], consumer.args[0])
        types = list(producer.ty.fields) if output is not None else consumer.ty
        call = relax.call_tir(name, relax.Tuple(merged.arguments), types)
        return self._kernels.builder.normalize(call)

    def _part(self, call: Any) -> Part:
        return Part(self._kernels[call.args[0]], list(call.args[1].fields))


def _has_movable_sums(func: Any) -> bool:
    """Whether a function may overwrite parameters, and nothing else in it writes to them."""
    return (
        isinstance(func, relax.Function)
        and func.attrs
        and DONATED in func.attrs
        and not may_write(func.body)
    )


def _positions(bindings: Sequence[Any]) -> dict[Any, int]:
    """The position of each variable's binding."""
    return {binding.var: position for position, binding in enumerate(bindings)}


def _replace_all_bindings(func: relax.Function, changed: list[list[Any]]) -> relax.Function:
    """A function whose blocks have other bindings."""
    pairs = zip(func.body.blocks, changed, strict=True)
    blocks = [replace_bindings(block, bindings) for block, bindings in pairs]
    return replace_body(func, relax.SeqExpr(blocks, func.body.body, func.body.span))
