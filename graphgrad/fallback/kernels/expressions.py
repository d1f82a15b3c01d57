"""The tensor expressions of a kernel: those that it was made of, else read off its loops.

A kernel that graphgrad makes carries its expressions, so a scan, a scatter or a sort in it need not
be recognized from loops. They are an attribute's, so they live as long as the kernel, and no table
of the process has a say in what its gradient is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm_ffi.dataclasses import py_class

from ...errors import ArgumentError
from ...ir.kernel_calls import OPAQUE_PATTERN
from ...ir.kernel_names import name_as
from ..graph import all_operations, operations, outputs_of
from ..lift.prim_func import TensorProgram, lifted
from ..lowering.prim_func import create_prim_func
from ..walk import children, identity, postorder
from .retyped import Retype, Retyping

_ATTRIBUTE = "graphgrad.expressions"
"""The hash of the loops that the expressions were lowered to; `Expressions` are its span."""

_MOST_LEVELS = 500
"""Levels of nesting of what is written as JSON; TVM's stack ends at some 1,000."""

_LEVELS_OF_STAGE = 4
"""Levels that a stage adds to those of its expressions."""


@py_class("graphgrad.Expressions", structural_eq=None, frozen=True)
class Expressions(tvm.ir.Span):
    """What a kernel was made of, where TVM keeps the source that a value comes from.

    TVM neither compares nor prints spans, so kernels made of expressions that differ in names, or
    in nothing, stay equal, and are one in a module.

    Attributes
    ----------
    parameters, outputs : Array
        As in `TensorProgram`.
    """

    parameters: Any
    outputs: Any

    @staticmethod
    def of(parameters: Sequence[Any], outputs: Sequence[te.Tensor]) -> Expressions:
        """Expressions that stand in no file."""
        nowhere: dict[str, Any] = {"source_name": None}
        nowhere |= dict.fromkeys(("line", "column", "end_line", "end_column"), 0)
        values = [tvm_ffi.convert(list(each)) for each in (parameters, outputs)]
        return Expressions(**nowhere, parameters=values[0], outputs=values[1])

    def program(self) -> TensorProgram:
        """The expressions as they are differentiated."""
        return TensorProgram(list(self.parameters), list(self.outputs))

    def text(self) -> str:
        """The expressions as JSON; empty if they are nested too deeply for TVM to write them."""
        return _text(self)

    def key(self) -> Any:
        """What tells the expressions from others in a `Memo`.

        Those that cannot be written stand for themselves, and stay alive with the key.
        """
        return self.text() or tirx.IntImm("int64", identity(self), self)

    def __data_to_json__(self) -> str:
        return self.text()

    @staticmethod
    def __data_from_json__(text: str) -> Expressions:
        return Expressions.of(*(tvm.ir.load_json(text) if text else ([], [])))


def kernel_of(parameters: Sequence[Any], outputs: Sequence[te.Tensor]) -> tirx.PrimFunc:
    """A kernel that computes some tensors, and that knows of what it was made.

    Parameters
    ----------
    parameters : sequence of Tensor or Var
        Placeholders and scalar variables.
    outputs : sequence of Tensor

    Returns
    -------
    PrimFunc
        Without a global symbol: a module gives it a name of its own. Kernels that are made of
        equal expressions are equal.
    """
    func = create_prim_func([*parameters, *outputs], index_dtype_override="int64")
    func = _rename_extents(func.without_attr("global_symbol"), [*parameters, *outputs])
    expressions = Expressions.of([*parameters, *[None] * len(outputs)], outputs)
    func = func.with_attr(_ATTRIBUTE, tvm.ir.StringImm(_hash_of_loops(func), expressions))
    stages = operations(*outputs)
    if any(isinstance(op, te.ExternOp | te.ScanOp) for op in stages):
        # TVM takes a scan for an elementwise map by the look of its loops, and fuses it.
        func = func.with_attr("op_pattern", OPAQUE_PATTERN)
    return func


def expressions_of(func: tirx.PrimFunc, outputs: int) -> TensorProgram:
    """The tensor expressions that a kernel in destination-passing style computes.

    Parameters
    ----------
    func : PrimFunc
    outputs : int
        How many of its parameters, the last ones, are results.

    Raises
    ------
    MissingGradientError
        Its loops say more than tensor expressions can.
    """
    program = kept_expressions(func)
    count = len(func.params)
    return lifted(func, range(count - outputs, count)) if program is None else program


def retype_kernel(func: tirx.PrimFunc, retype: Retype) -> tirx.PrimFunc | None:
    """A kernel that computes the same in other dtypes.

    Parameters
    ----------
    func : PrimFunc
    retype : callable
        Maps the name of a dtype to that of the dtype in its place.

    Returns
    -------
    PrimFunc or None
        None if it carries no tensor expressions, or some that have dtypes built in.
    """
    program = kept_expressions(func)
    if program is None:
        return None
    retyping = Retyping(retype)
    try:
        outputs = retyping.tensors(program.outputs)
    except ArgumentError:
        return None
    inputs = program.parameters[: len(program.parameters) - len(outputs)]
    parameters = [retyping.parameter(parameter) for parameter in inputs]
    return name_as(kernel_of(parameters, outputs), func)


def kept_expressions(func: tirx.PrimFunc) -> TensorProgram | None:
    """The expressions that a kernel carries; None if it was written, or has changed."""
    expressions = attached(func)
    return None if expressions is None else expressions.program()


def attached(func: tirx.PrimFunc) -> Expressions | None:
    """What a kernel carries; None if it was written as loops, or has changed since."""
    attribute = func.attrs.get(_ATTRIBUTE) if func.attrs else None
    if not isinstance(attribute, tvm.ir.StringImm) or not isinstance(attribute.span, Expressions):
        return None  # also of a kernel that was read from TVMScript, which has no spans
    # A pass may have changed the loops and kept the attribute: then they count.
    is_same = attribute.value == _hash_of_loops(func)
    # Expressions without outputs were nested too deeply to be written; see `Expressions.text`.
    return attribute.span if is_same and len(attribute.span.outputs) else None


def kernel_key(func: tirx.PrimFunc) -> Any:
    """What tells a kernel from others in a `Memo`: its expressions, or its loops if they count.

    Loops are not enough: expressions that have other gradients may be lowered to the same.
    """
    expressions = attached(func)
    return func.without_attr("global_symbol") if expressions is None else expressions.key()


def free_variables(*tensors: te.Tensor) -> list[tirx.Var]:
    """The variables in a graph of stages that no loop of it binds: its symbolic extents."""
    variables: dict[int, tirx.Var] = {}
    for op in operations(*tensors):
        expressions = [extent for tensor in outputs_of(op) for extent in tensor.shape]
        loops: list[Any] = []
        if isinstance(op, te.ComputeOp):
            loops = [axis.var for axis in (*op.axis, *op.reduce_axis)]
            if isinstance(op.body[0], tirx.Reduce):
                # The operands of a combiner are variables that the combiner binds.
                loops += [*op.body[0].combiner.lhs, *op.body[0].combiner.rhs]
            expressions += op.body
            expressions += [axis.dom.extent for axis in op.reduce_axis]
        bound = {identity(var) for var in loops}
        for expression in expressions:
            for var in tirx.analysis.undefined_vars(expression):
                if tvm.ir.is_prim_var(var) and identity(var) not in bound:
                    variables.setdefault(identity(var), var)
    return list(variables.values())


def _rename_extents(func: tirx.PrimFunc, tensors: Sequence[Any]) -> tirx.PrimFunc:
    """A function with symbolic extents of its own.

    TVM's fusion takes an extent that two functions have in common for one and the same number.
    """
    extents = [e for t in tensors if isinstance(t, te.Tensor) for e in t.shape]
    renamed = {
        identity(var): tirx.Var(var.name, str(var.ty))
        for extent in extents
        for var in tirx.analysis.undefined_vars(extent)
    }
    return tvm_ffi.structural_map(func, (tvm.ir.Var, lambda var: renamed.get(identity(var), var)))


@lru_cache(maxsize=256)
def _text(expressions: Expressions) -> str:
    """See `Expressions.text`."""
    if _levels(expressions.outputs) > _MOST_LEVELS:
        return ""
    return str(tvm.ir.save_json([expressions.parameters, expressions.outputs]))


def _hash_of_loops(func: tirx.PrimFunc) -> str:
    """The hash of a function without its attributes, the same in every process."""
    # Passes add attributes, and the hash itself is one: only the loops count.
    code = tirx.PrimFunc(func.params, func.body, func.ret_type)
    return str(tvm_ffi.structural_hash(code))


def _levels(outputs: Sequence[te.Tensor]) -> int:
    """How deeply a graph of stages is nested, expressions and stages taken together."""
    levels: dict[int, int] = {}
    for op in all_operations(outputs):
        below = max((levels[identity(tensor.op)] for tensor in op.input_tensors), default=0)
        levels[identity(op)] = below + _LEVELS_OF_STAGE + _nesting(op)
    return max(levels.values())


def _nesting(op: Any) -> int:
    """How deeply the expressions of a stage are nested."""
    if not isinstance(op, te.ComputeOp):
        return 0
    first = op.body[0]
    is_reduction = isinstance(first, tirx.Reduce)
    roots = [first.condition, *first.source] if is_reduction else list(op.body)
    depths: dict[int, int] = {}
    for node in postorder(*roots):
        below = (depths[identity(part)] for part in children(node))
        depths[identity(node)] = 1 + max(below, default=0)
    return max(depths.values())
