"""Kernels as ONNX, by the tensor expressions that they compute, stage by stage."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te

from ...fallback.externs.ordering import arguments_of
from ...fallback.externs.table import restated
from ...fallback.externs.writes import written_extreme
from ...fallback.graph import Operation, operations, outputs_of
from ...fallback.kernels.expressions import expressions_of
from ...fallback.scatter import scatters_of
from ...fallback.walk import depend, identity, tensor_key
from ...ir.calls import result_types
from ...ir.tensor import type_shape
from ...ops.sorting import ORDER
from .graph import Site, UnwritableError, elem_type, writes
from .loops import Environment, Loops
from .scan import map_stage, scan_stage

KERNEL = "relax.call_tir"


@writes(KERNEL)
def _kernel(site: Site) -> Any:
    if len(site.call.args) > 2 or not isinstance(site.call.args[1], relax.Tuple):
        raise UnwritableError("numbers or a tuple among the arguments")
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
        names = map_stage(environment, op.axis, op.body)
    elif isinstance(op, te.ScanOp):
        names = scan_stage(environment, op)
    elif scatters_of(op):
        names = [_scattered(environment, op)]
    else:
        names = _extern_stage(environment, op)
    for output, name in zip(outputs_of(op), names, strict=True):
        environment.tensors[tensor_key(output)] = name


def _extern_stage(environment: Environment, op: Any) -> list[str]:
    """A stage of loops, by other stages that compute the same."""
    if str(op.tag) == "argsort_cpu":
        *_, axis, is_ascend = arguments_of(op)
        return [_order(environment, op, axis % len(op.output(0).shape), not is_ascend)]
    if str(op.tag) == ORDER:
        order = _order(environment, op, int(op.attrs["axis"]), bool(op.attrs["descending"]))
        return [order, order]  # the second is left undefined
    extreme = written_extreme(op)
    if extreme is not None:
        environment.graph.require(18, f"the {extreme} of updates")
        names = [environment.tensors[tensor_key(tensor)] for tensor in op.inputs]
        return [environment.graph.node("ScatterElements", *names, axis=0, reduction=extreme)]
    outputs = restated(op)
    stages = operations(*outputs)
    if any(stage.same_as(op) or str(getattr(stage, "tag", "")) == str(op.tag) for stage in stages):
        raise UnwritableError(f"the {type(op).__name__} {op.name}")
    for stage in stages:
        _write_stage(environment, stage)
    return [environment.tensors[tensor_key(output)] for output in outputs]


def _order(environment: Environment, op: Any, axis: int, descending: bool) -> str:
    """The places of sorted elements, those of equal ones in their order."""
    graph, output = environment.graph, op.output(0)
    count = Loops(environment, [], 0).scalar(output.shape[axis])
    name, length = environment.tensors[tensor_key(op.inputs[0])], graph.ints([1])
    count = graph.node("Reshape", count, length)
    _, places = graph.node("TopK", name, count, outputs=2, axis=axis, largest=int(descending))
    return str(graph.node("Cast", places, to=elem_type(str(output.dtype))))


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
