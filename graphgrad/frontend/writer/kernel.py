"""Kernels as ONNX, by the tensor expressions that they compute, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, te

from ...errors import MissingGradientError
from ...fallback.graph import Operation, operations, outputs_of
from ...fallback.kernels.expressions import expressions_of
from ...fallback.scatter import scatters_of
from ...fallback.walk import depend, identity, tensor_key
from ...ir.calls import result_types
from ...ir.tensor import type_shape
from ...ir.visits import nodes_in
from .graph import NEWEST_OPSET, GraphWriter, Site, UnwritableError, writes
from .loops import Environment, Loops
from .scan import map_stage, scan_stage

KERNEL = "relax.call_tir"


def kernel_obstacle(call: relax.Call, kernels: Mapping[Any, Any]) -> str | None:
    """Why a call of a kernel cannot be written; None if it can."""
    if len(call.args) > 2 or not isinstance(call.args[1], relax.Tuple):
        return "numbers or a tuple among the arguments"
    graph, ty = GraphWriter(NEWEST_OPSET, [], kernels), call.ty_args[0]
    typed = [call.args[1], *(field.ty for field in call.args[1].fields), ty]
    for var in nodes_in(typed, tvm.ir.Var):
        if tvm.ir.is_prim_var(var):
            graph.read_extents("x", [var])
    names = ["x"] * len(call.args[1].fields)
    try:
        _kernel(Site(graph, call, [call.args[0], names], ty))
    except (MissingGradientError, UnwritableError) as error:
        return str(error)
    except RecursionError:  # of a step that is a long chain of stages
        return "a step of too many stages"
    return None


@writes(KERNEL)
def _kernel(site: Site) -> Any:
    types = result_types(site.ty)
    program = expressions_of(site.graph.kernels[site.call.args[0]], len(types))
    environment = Environment(site.graph, {}, {})
    typed: list[tuple[Any, Any]] = [*zip(program.outputs, types, strict=True)]
    # Behind those of the arguments are the parameters of results.
    for parameter, name, argument in zip(
        program.parameters, site.names[1], site.call.args[1].fields, strict=False
    ):
        if parameter is None:
            continue
        if tvm.ir.is_prim_var(parameter):
            environment.scalars[identity(parameter)] = site.graph.scalar(argument)
        else:
            environment.tensors[tensor_key(parameter)] = name
            typed.append((parameter, argument.ty))
    for tensor, ty in typed:
        for extent, known in zip(tensor.shape, type_shape(ty), strict=True):
            if isinstance(extent, tvm.ir.Var):
                environment.scalars.setdefault(identity(extent), site.graph.scalar(known))
    for op in operations(*program.outputs):
        _write_stage(environment, op)
    results = [environment.tensors[tensor_key(output)] for output in program.outputs]
    return results if isinstance(site.ty, relax.TupleType) else results[0]


def _write_stage(environment: Environment, op: Operation) -> None:
    """Write the tensors of a stage; add their names to the environment."""
    if isinstance(op, te.PlaceholderOp):
        return
    if isinstance(op, te.ComputeOp):
        names = [map_stage(environment, op.axis, body) for body in op.body]
    elif isinstance(op, te.ScanOp):
        names = scan_stage(environment, op)
    elif scatters_of(op):
        names = [_scattered(environment, op)]
    else:
        raise UnwritableError(f"the {type(op).__name__} {op.name}")
    for output, name in zip(outputs_of(op), names, strict=True):
        environment.tensors[tensor_key(output)] = name


def _scattered(environment: Environment, op: Any) -> str:
    """A stage that adds values up where indices point."""
    output = op.output(0)
    total = Loops(environment, [], 0).zeros(output.shape, str(output.dtype))
    for scatter in scatters_of(op):
        variables = {identity(axis.var) for axis in scatter.axes}
        if depend([end for axis in scatter.axes for end in (axis.low, axis.extent)], variables):
            raise UnwritableError(f"a loop of {op.name} whose range depends on another")
        loops = Loops(environment, scatter.axes, len(scatter.axes))
        total = loops.added(total, output.shape, scatter)
    return total
