"""Lowering of ops to kernels, in which equal calls are lowered only once.

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
from ...ir.visits import nodes_in
from ...ops.legalize import LEGALIZATIONS, Legalization, lower_call, lowering_of
from ..codegen.cache.lowerings import is_lowered_by_tvm_or_graphgrad

_KERNEL_CALL = tvm.ir.Op.get("relax.call_tir")


@compiler_pass(Phase.GRAPH, to=Phase.KERNELS)
def legalize_ops(mod: tvm.IRModule) -> tvm.IRModule:
    """Call kernels in the place of ops, as ``LegalizeOps`` does."""
    lowered_calls = _Known()
    lowerings = {
        name: lowered_calls.remembering(function) for name, function in LEGALIZATIONS.items()
    }
    for op in _called_ops(mod):
        # A lowering that somebody else has registered may depend on more than the call.
        if op.name not in lowerings and is_lowered_by_tvm_or_graphgrad(op):
            lowerings[op.name] = lowered_calls.remembering(lowering_of(op))
    return relax.transform.LegalizeOps(lowerings)(mod)


def _called_ops(mod: tvm.IRModule) -> list[tvm.ir.Op]:
    """The ops that a module's functions call, each once."""
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    callees = [call.op for function in functions for call in nodes_in(function, tvm.ir.Call)]
    return list({str(op.name): op for op in callees if isinstance(op, tvm.ir.Op)}.values())


@dataclass(frozen=True)
class _LoweredCall:
    """The kernel call that the calls of an op with equal attributes and types are lowered to.

    Attributes
    ----------
    described : Array
        All that the lowering may depend on, but for which tensors are the same.
    call : Call
        The call of the kernel.
    positions : list of int
        Which arguments of the op the kernel gets, in order.
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
    """The calls that have been lowered in a module, by what their lowerings may depend on."""

    def __init__(self) -> None:
        self._lowered: dict[tuple[Any, ...], list[_LoweredCall]] = {}

    def remembering(self, lowering: Legalization | None) -> Legalization:
        """A lowering that makes one kernel for all calls that differ in their tensors only."""
        assert lowering is not None

        def lower(builder: Any, call: Any) -> Any:
            arguments = call.args[:]
            described = _description(call, arguments)
            if described is None:
                return lower_call(lowering, builder, call)
            key = (str(call.op.name), _repetitions(arguments), tvm_ffi.structural_hash(described))
            same_key = self._lowered.setdefault(key, [])
            for lowered in same_key:
                if tvm_ffi.structural_equal(lowered.described, described):
                    return lowered.again(arguments)
            result = lower_call(lowering, builder, call)
            positions = _argument_positions(result, arguments)
            if positions is not None:
                same_key.append(_LoweredCall(described, result, positions))
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
        else:  # such as a constant, whose value the lowering may read
            return None
    return tvm_ffi.convert(parts)


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, tvm.ir.Var) and isinstance(argument.ty, relax.TensorType)


def _repetitions(arguments: list[Any]) -> tuple[int, ...]:
    """For each argument the position of the first that is the same object.

    So calls to which one tensor is passed twice are lowered apart from those with two tensors.
    """
    return tuple(
        next(i for i, other in enumerate(arguments) if other.same_as(argument))
        for argument in arguments
    )


def _argument_positions(result: Any, arguments: list[Any]) -> list[int] | None:
    """Which of an op's arguments its kernel gets, in order.

    None if the op was not lowered to a call of a kernel, or to more than one call: then the kernel
    gets something that is no argument of the op.
    """
    if not isinstance(result, tvm.ir.Call) or result.op != _KERNEL_CALL or len(result.args) != 2:
        return None
    positions = []
    for handed in result.args[1].fields:
        position = next(
            (i for i, argument in enumerate(arguments) if argument.same_as(handed)), None
        )
        if position is None:
            return None
        positions.append(position)
    return positions
