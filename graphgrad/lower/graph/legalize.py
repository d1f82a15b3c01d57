"""Ops that are called again and again, each lowered once.

A training step calls the same few ops on the same few shapes for every layer and every parameter.
TVM makes a tensor expression and a kernel for each call, and drops all but the first of equal
kernels, which takes longer than all of the fusion that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ...ir.passes import Phase, compiler_pass
from ...ir.visits import visit_nodes
from ...ops.legalize.table import LEGALIZATIONS, Legalization, lowering_of
from ..codegen.cache.lowerings import is_lowered_by_tvm_or_graphgrad

_KERNEL_CALL = tvm.ir.Op.get("relax.call_tir")


@compiler_pass(Phase.GRAPH, to=Phase.KERNELS)
def legalize_ops(mod: tvm.IRModule) -> tvm.IRModule:
    """Call kernels in the place of ops, as ``LegalizeOps`` does."""
    known = _Known()
    lowerings = {name: known.remembering(function) for name, function in LEGALIZATIONS.items()}
    for op in _called_ops(mod):
        # What others have registered may depend on more than the call.
        if op.name not in lowerings and is_lowered_by_tvm_or_graphgrad(op):
            lowerings[op.name] = known.remembering(lowering_of(op))
    return relax.transform.LegalizeOps(lowerings)(mod)


def _called_ops(mod: tvm.IRModule) -> list[tvm.ir.Op]:
    """The ops that a module's functions call, each once."""
    found: dict[str, tvm.ir.Op] = {}

    def visit(call: Any) -> None:
        if isinstance(call.op, tvm.ir.Op):
            found.setdefault(str(call.op.name), call.op)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            visit_nodes(function, tvm.ir.Call, visit)
    return list(found.values())


@dataclass(frozen=True)
class _LoweredCall:
    """What calls like one have become: a call of a kernel.

    Attributes
    ----------
    described : Array
        All that the lowering may depend on, but for which tensors are the same.
    call : Call
        Of the kernel.
    positions : list of int
        Which arguments of the op the kernel is handed.
    """

    described: Any
    call: Any
    positions: list[int]

    def again(self, arguments: Sequence[Any]) -> Any:
        """The call of the kernel for other arguments of the op."""
        handed = relax.Tuple([arguments[position] for position in self.positions])
        call = self.call
        return relax.Call(call.op, [call.args[0], handed], call.attrs, call.ty_args)


class _Known:
    """What has been lowered in a module."""

    def __init__(self) -> None:
        self._lowered: dict[tuple[Any, ...], list[_LoweredCall]] = {}

    def remembering(self, lowering: Legalization | None) -> Legalization:
        """A lowering that makes one kernel for all calls that differ in tensors alone."""
        assert lowering is not None

        def lower(builder: Any, call: Any) -> Any:
            arguments = call.args[:]
            described = _description(call, arguments)
            if described is None:
                return lowering(builder, call)
            key = (str(call.op.name), _repetitions(arguments), tvm_ffi.structural_hash(described))
            alike = self._lowered.setdefault(key, [])
            for one in alike:
                if tvm_ffi.structural_equal(one.described, described):
                    return one.again(arguments)
            result = lowering(builder, call)
            positions = _argument_positions(result, arguments)
            if positions is not None:
                alike.append(_LoweredCall(described, result, positions))
            return result

        return lower


def _description(call: Any, arguments: list[Any]) -> Any | None:
    """Attributes and types of a call; None if its lowering may read values of arguments."""
    parts = [call.attrs, call.ty]
    for argument in arguments:
        if _is_tensor(argument):
            parts.append(argument.ty)
        elif isinstance(argument, relax.ShapeExpr):
            parts.append(argument)
        else:
            return None
    return tvm_ffi.convert(parts)


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, tvm.ir.Var) and isinstance(argument.ty, relax.TensorType)


def _repetitions(arguments: list[Any]) -> tuple[int, ...]:
    """For each argument the first that is the same object."""
    return tuple(
        next(i for i, other in enumerate(arguments) if other.same_as(argument))
        for argument in arguments
    )


def _argument_positions(result: Any, arguments: list[Any]) -> list[int] | None:
    """Which of an op's arguments its kernel is handed.

    None if the op was not lowered to the call of a kernel, or to more than that: a kernel is handed
    then what the op was not.
    """
    if not isinstance(result, tvm.ir.Call) or result.op != _KERNEL_CALL or len(result.args) != 2:
        return None
    positions = []
    for handed in result.args[1].fields:
        position = next((i for i, one in enumerate(arguments) if one.same_as(handed)), None)
        if position is None:
            return None
        positions.append(position)
    return positions
