"""A straight-line program as an ONNX model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax

from ...errors import ArgumentError, MissingGradientError, ModelError
from ...ir.branches import bindings_of
from ...ir.program import Program, variables_in
from ...ir.tensor import type_shape
from ...ir.visits import nodes_in
from ..onnx_graph import output_names, readers
from ..onnx_prune import remove_unneeded_nodes
from .graph import (
    ANYTHING,
    NEWEST_OPSET,
    OPSET,
    WRITERS,
    GraphWriter,
    OpsetError,
    Site,
    UnwritableError,
    value_info,
)


def unwritable(var: Any, value: Any, kernels: Mapping[Any, Any]) -> tuple[str, str] | None:
    """The op of a binding that cannot be written as it is, and why; None if it can.

    Parameters
    ----------
    var : relax.Var
    value : expression
        What it is bound to.
    kernels : mapping
        The PrimFuncs that may be called, by GlobalVar.
    """
    if not isinstance(value, relax.Call):
        return None
    name = _op_name(value)
    reason = _obstacle(var, value, kernels) if name in WRITERS else "ONNX has no operator for it"
    return None if reason is None else (name, reason)


def _obstacle(var: Any, call: relax.Call, kernels: Mapping[Any, Any]) -> str | None:
    """Why a call of an op that has a writer cannot be written; None if it can."""
    graph = GraphWriter(NEWEST_OPSET, [], kernels)
    read = list(variables_in(call))
    names = {argument: _stand_in(argument.ty) for argument in read}
    typed = [call, var.ty, *(argument.ty for argument in read)]
    for extent in nodes_in(typed, tvm.ir.Var):
        if tvm.ir.is_prim_var(extent):
            graph.read_extents(ANYTHING, [extent])
    arguments = [_named(graph, names, argument) for argument in call.args]
    try:
        WRITERS[_op_name(call)](Site(graph, call, arguments, var.ty))
    except (MissingGradientError, UnwritableError) as error:
        return str(error)
    except RecursionError:
        return "a step of too many stages"
    return None


def model_of_program(
    program: Program,
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray],
    opset: int | None = None,
) -> onnx.ModelProto:
    """Write a program as an ONNX model.

    Parameters
    ----------
    program : Program
        Of ops that are written, see `unwritable`. Its result is a flat tuple.
    inputs, outputs : sequence of str
        Names of its parameters and of its results.
    weights : mapping
        Values of those parameters that have one. They are inputs all the same, which whoever runs
        the model may give.
    opset : int, optional
        The version of the default domain; by default the lowest that serves.

    Raises
    ------
    ArgumentError
        The version does not serve.
    ModelError
        A call cannot be written; names all of them.
    """
    _check_opset(opset)
    version = OPSET if opset is None else opset
    while True:
        try:
            return _model(_graph(program, inputs, outputs, weights, version), version)
        except OpsetError as error:
            if opset is not None:
                raise ArgumentError(
                    f"opset={opset} cannot say {error.what}, which needs version {error.least} of "
                    "the default domain; leave opset out for the lowest that serves"
                ) from error
            version = error.least


def _graph(
    program: Program,
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray],
    opset: int,
) -> onnx.GraphProto:
    """The graph of a program in a version; see `model_of_program`."""
    named = [*inputs, *outputs]
    if len(set(named)) != len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise ArgumentError(f"the name {twice!r} would be that of two inputs or outputs; rename it")
    graph = GraphWriter(opset, named, program.kernels)
    names: dict[Any, Any] = dict(zip(program.params, inputs, strict=True))
    for param, name in names.items():
        graph.read_extents(name, type_shape(param.ty))
    problems: list[str] = []
    _write_bindings(graph, program.bindings, names, problems)
    if problems:
        raise ModelError(
            f"{len(problems)} call(s) of {program.name!r} cannot be written as ONNX:\n  "
            + "\n  ".join(problems)
        )
    results = [_named(graph, names, field) for field in program.result.fields]
    for result, output in zip(results, outputs, strict=True):
        graph.nodes.append(helper.make_node("Identity", [result], [output], f"{output}/Identity"))
    types = [value_info(name, param.ty) for name, param in zip(inputs, program.params, strict=True)]
    result_types = [
        value_info(name, field.ty)
        for name, field in zip(outputs, program.result.fields, strict=True)
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    body = helper.make_graph(graph.nodes, program.name, types, result_types, initializers)
    remove_unneeded_nodes(body)
    read = readers(body).keys() | output_names(body)
    body.initializer.extend(tensor for tensor in graph.initializers if tensor.name in read)
    return body


def model_of_values(name: str, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """An ONNX model without inputs, whose outputs are arrays by name."""
    nodes, types = [], []
    for output, array in values.items():
        tensor = numpy_helper.from_array(array, output)
        nodes.append(helper.make_node("Constant", [], [output], f"{output}/Constant", value=tensor))
        types.append(helper.make_tensor_value_info(output, tensor.data_type, array.shape))
    return _model(helper.make_graph(nodes, name, [], types), OPSET)


def _stand_in(ty: Any) -> Any:
    """What may be the name of a value of a type."""
    if isinstance(ty, relax.TupleType):
        return [_stand_in(field) for field in ty.fields]
    return relax.ShapeExpr(list(ty.values)) if isinstance(ty, relax.ShapeType) else ANYTHING


def _model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    version = helper.make_opsetid("", opset)
    proto = helper.make_model(graph, opset_imports=[version], producer_name="graphgrad")
    proto.ir_version = helper.find_min_ir_version_for([version])
    return proto


def _check_opset(opset: Any) -> None:
    """Raise `ArgumentError` unless a version is one that is written, or None."""
    if opset is None:
        return
    if isinstance(opset, bool) or not isinstance(opset, int) or not OPSET <= opset <= NEWEST_OPSET:
        raise ArgumentError(
            f"opset={opset!r}: gradients are written for versions {OPSET} to {NEWEST_OPSET} of the "
            "default domain"
        )


def _op_name(call: relax.Call) -> str:
    """The name of what a call calls."""
    return str(getattr(call.op, "name", call.op))


def _write_bindings(
    graph: GraphWriter,
    bindings: Sequence[tuple[Any, Any]],
    names: dict[Any, Any],
    problems: list[str],
) -> None:
    """Write all bindings.

    Parameters
    ----------
    graph : GraphWriter
    bindings : sequence of (Var, expression)
    names : dict
        The names of variables; extended.
    problems : list of str
        Extended by the calls that cannot be written.
    """
    for var, value in bindings:
        graph.hint(str(var.name))
        if isinstance(value, relax.MatchCast):
            names[var] = _named(graph, names, value.value)
            if isinstance(names[var], str):
                graph.read_extents(names[var], type_shape(value.ty))
        elif isinstance(value, relax.Call):
            arguments = [_named(graph, names, argument) for argument in value.args]
            name = _op_name(value)
            try:
                names[var] = WRITERS[name](Site(graph, value, arguments, var.ty))
            except UnwritableError as error:
                problems.append(f"{name} ({var.name}): {error}")
                names[var] = "unwritten"
        elif isinstance(value, relax.If):
            names[var] = _write_branches(graph, value, var.ty, names, problems)
        else:
            names[var] = _named(graph, names, value)


def _write_branches(
    graph: GraphWriter, value: relax.If, ty: Any, names: Mapping[Any, Any], problems: list[str]
) -> Any:
    """An If; what it gives, in nested lists as its type is in tuples."""
    types = list(_flat_types(ty))
    branches = []
    for label, branch in (("then", value.true_branch), ("else", value.false_branch)):
        inner = dict(names)
        with graph.inside() as nodes:
            _write_bindings(graph, bindings_of(branch), inner, problems)
            given = _flat(_named(graph, inner, branch.body))
            results = [graph.node("Identity", name) for name in given]
        infos = [value_info(name, each) for name, each in zip(results, types, strict=True)]
        branches.append(helper.make_graph(nodes, label, [], infos))
    condition = _named(graph, names, value.cond)
    chosen = graph.node(
        "If",
        condition,
        outputs=len(types),
        then_branch=branches[0],
        else_branch=branches[1],
    )
    return _nested(ty, iter(_flat(chosen)))


def _flat(names: Any) -> list[str]:
    """The names in nested lists."""
    return [n for part in names for n in _flat(part)] if isinstance(names, list) else [names]


def _flat_types(ty: Any) -> list[Any]:
    """The types of the tensors in nested tuples."""
    if isinstance(ty, relax.TupleType):
        return [field for part in ty.fields for field in _flat_types(part)]
    return [ty]


def _nested(ty: Any, names: Iterator[str]) -> Any:
    """Names in lists, as a type is in tuples."""
    if isinstance(ty, relax.TupleType):
        return [_nested(field, names) for field in ty.fields]
    return next(names)


def _named(graph: GraphWriter, names: Mapping[Any, Any], expr: Any) -> Any:
    """The name of what holds an expression, a list for a tuple; itself if it is no tensor."""
    if isinstance(expr, relax.Var) and not tvm.ir.is_prim_var(expr):
        return names[expr]
    if isinstance(expr, relax.Tuple):
        return [_named(graph, names, item) for item in expr.fields]
    if isinstance(expr, relax.TupleGetItem):
        whole = _named(graph, names, expr.tuple_value)
        return whole[expr.index] if isinstance(whole, list) else whole
    if isinstance(expr, tvm.ir.GenericConst):
        return graph.constant(expr.value.numpy())
    return expr
