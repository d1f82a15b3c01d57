"""Donation: a kernel writes an output over an input that the caller gives away.

A Relax function asks for it with the attribute ``graphgrad.donated``, pairs of (parameter, flat
output). A pair is honoured only where it is provably safe; else the output is a fresh buffer,
which is as right. What was honoured is recorded as ``graphgrad.donated_done``.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..errors import ArgumentError
from .overwrite import may_overwrite, overwriting

DONATED = "graphgrad.donated"
DONATED_DONE = "graphgrad.donated_done"

Result = tuple[int, int]
"""Where a value comes from: the position of a binding, and which of its results it is."""


def donate(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with the donations that are safe made in place.

    Runs after the PrimFuncs are scheduled and before memory is planned.

    Raises
    ------
    ArgumentError
        The attribute is malformed, or names a parameter or an output twice.
    """
    for name, func in list(mod.functions.items()):
        if isinstance(func, relax.Function) and func.attrs and DONATED in func.attrs:
            mod = _Donation(mod, name, func).apply()
    return mod


class _Donation:
    """The donations of one Relax function."""

    def __init__(self, mod: tvm.IRModule, name: tvm.ir.GlobalVar, func: relax.Function):
        self.mod, self.name, self.func = mod, name, func
        self.bindings = [b for block in func.body.blocks for b in block.bindings]
        self.position = {b.var: i for i, b in enumerate(self.bindings)}
        self.uses: dict[Any, list[int]] = {}
        for i, binding in enumerate(self.bindings):
            for var in relax.analysis.free_vars(binding.value):
                self.uses.setdefault(var, []).append(i)
        self.returned = func.body.body
        self.outputs = _flatten(self._tree(self.returned))
        self.pairs = _requested(name, func, len(self.outputs))

    def apply(self) -> tvm.IRModule:
        """Return the module with this function's safe donations made."""
        accepted: dict[int, dict[int, int]] = {}
        done = []
        for parameter, output in self.pairs:
            result = self.outputs[output]
            if result is None or self.outputs.count(result) > 1:
                continue
            argument = self._safe_argument(self.func.params[parameter], result)
            if argument is not None:
                accepted.setdefault(result[0], {})[result[1]] = argument
                done.append([parameter, output])
        return self._rewrite(accepted, done)

    def _tree(self, expr: Any) -> Any:
        """Return the results that an expression consists of: nested lists for tuples.

        None stands for what no kernel of this function computes.
        """
        if isinstance(expr, relax.Tuple):
            return [self._tree(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._tree(expr.tuple_value)[expr.index]
        position = self.position.get(expr) if isinstance(expr, tvm.ir.Var) else None
        if position is None:
            return _empty_tree(expr.ty)
        value = self.bindings[position].value
        if not isinstance(value, tvm.ir.Call):
            return self._tree(value)
        if isinstance(value.ty, relax.TupleType):
            return [(position, i) for i in range(len(value.ty.fields))]
        return (position, 0)

    def _safe_argument(self, var: Any, result: Result) -> int | None:
        """Return which argument of its kernel a result may overwrite, if that is `var`."""
        position, index = result
        call = self.bindings[position].value
        kernel = self._kernel(call)
        if kernel is None or any(v.same_as(var) for v in relax.analysis.free_vars(self.returned)):
            return None
        if not all(at <= position and self._only_reads(at) for at in self.uses.get(var, [])):
            return None
        arguments = list(call.args[1].fields)
        places = [i for i, argument in enumerate(arguments) if argument.same_as(var)]
        ty = call.ty.fields[index] if isinstance(call.ty, relax.TupleType) else call.ty
        if len(places) != 1 or not _same_tensor_type(var.ty, ty):
            return None
        donated, output = kernel.params[places[0]], kernel.params[len(arguments) + index]
        return places[0] if may_overwrite(kernel, donated, output) else None

    def _kernel(self, value: Any) -> tirx.PrimFunc | None:
        """Return the PrimFunc that a binding calls plainly, on a tuple of arguments."""
        if not isinstance(value, tvm.ir.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
            return None
        if len(value.args) != 2 or not isinstance(value.args[1], relax.Tuple):
            return None
        return self.mod[value.args[0]]

    def _only_reads(self, position: int) -> bool:
        """Return whether a binding reads its arguments and keeps no alias of them."""
        kernel = self._kernel(self.bindings[position].value)
        # a reshape becomes a view later on
        return kernel is not None and not relax.analysis.has_reshape_pattern(kernel)

    def _rewrite(self, accepted: dict[int, dict[int, int]], done: list[list[int]]) -> Any:
        builder = relax.BlockBuilder(self.mod)
        replaced = {
            self.bindings[position].var: self._in_place(builder, position, results)
            for position, results in accepted.items()
        }
        blocks = [_with_values(block, replaced) for block in self.func.body.blocks]
        body = relax.SeqExpr(blocks, self.returned)
        func = relax.Function(
            self.func.params, body, self.func.ret_ty, self.func.is_pure, self.func.attrs
        )
        builder.update_func(self.name, func.with_attr(DONATED_DONE, done))
        return _without(builder.get(), [self.bindings[p].value.args[0] for p in accepted])

    def _in_place(self, builder: Any, position: int, results: dict[int, int]) -> Any:
        """Return the call of a binding with some of its results written over arguments."""
        call = self.bindings[position].value
        kernel = self._kernel(call)
        assert kernel is not None
        arguments = len(call.args[1].fields)
        shared = {kernel.params[arguments + r]: kernel.params[a] for r, a in results.items()}
        name = builder.add_func(overwriting(kernel, shared), f"{call.args[0].name_hint}_in_place")
        types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        indices = [results.get(i, -1) for i in range(len(types))]
        types = types if len(types) > 1 else types[0]
        return builder.normalize(relax.op.call_tir_inplace(name, call.args[1], indices, types))


def _requested(name: Any, func: relax.Function, outputs: int) -> list[tuple[int, int]]:
    """Return the pairs that a function asks for."""
    where = f"the attribute {DONATED} of {name.name_hint}"
    try:
        pairs = [(int(p), int(o)) for p, o in func.attrs[DONATED]]
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{where} must be a list of [parameter index, flat output index], got "
            f"{func.attrs[DONATED]}"
        ) from error
    for kind, numbers, count in (
        ("parameter", [p for p, _ in pairs], len(func.params)),
        ("output", [o for _, o in pairs], outputs),
    ):
        for number in numbers:
            if not 0 <= number < count:
                raise ArgumentError(f"{where} names {kind} {number} of {count}")
            if numbers.count(number) > 1:
                raise ArgumentError(f"{where} names {kind} {number} twice; name each once")
    return pairs


def _empty_tree(ty: Any) -> Any:
    return [_empty_tree(f) for f in ty.fields] if isinstance(ty, relax.TupleType) else None


def _flatten(tree: Any) -> list[Result | None]:
    return (
        [leaf for branch in tree for leaf in _flatten(branch)] if isinstance(tree, list) else [tree]
    )


def _same_tensor_type(a: Any, b: Any) -> bool:
    return (
        isinstance(a, relax.TensorType)
        and isinstance(b, relax.TensorType)
        and a.shape is not None
        and tvm_ffi.structural_equal(a, b, map_free_vars=False)
    )


def _with_values(block: Any, replaced: dict[Any, Any]) -> Any:
    bindings = [
        relax.VarBinding(b.var, replaced[b.var], b.span) if b.var in replaced else b
        for b in block.bindings
    ]
    kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else relax.BindingBlock
    return kind(bindings, block.span)


def _without(mod: tvm.IRModule, candidates: list[Any]) -> tvm.IRModule:
    """Return the module without those kernels that nothing calls any more."""
    called: set[str] = set()
    for func in mod.functions.values():
        tvm_ffi.structural_walk(func, (tvm.ir.GlobalVar, lambda g: called.add(g.name_hint)))
    kept = dict(mod.functions.items())
    for candidate in candidates:
        if candidate.name_hint not in called:
            kept.pop(mod.get_global_var(candidate.name_hint), None)
    return tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)
