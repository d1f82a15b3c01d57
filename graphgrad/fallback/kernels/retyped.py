"""Tensor expressions in other dtypes: the same computation, in wider numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim

from ...errors import ArgumentError
from ..graph import Key, Operation, outputs_of, rebuild_reduction, rebuild_scan, replace_bodies
from ..walk import Expr, called, children, identity, is_load, loaded, postorder, rebuilt, tensor_key

Retype = Callable[[str], str]
"""Maps the name of a dtype to that of the dtype in its place."""


class Retyping:
    """Graphs of stages in other dtypes.

    Parameters
    ----------
    retype : callable
        A cast to a dtype becomes one to what it maps it to, a constant keeps its value.
    """

    def __init__(self, retype: Retype):
        self._retype = retype
        self._tensors: dict[Key, te.Tensor] = {}
        self._variables: dict[int, Any] = {}

    def tensors(self, tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
        """Some tensors in the other dtypes.

        Raises
        ------
        ArgumentError
            A stage is a kernel written by hand, whose dtypes are built in.
        """
        roots = [tensor.op for tensor in tensors]
        for op in postorder(*roots, parts=lambda op: [tensor.op for tensor in op.input_tensors]):
            if tensor_key(op.output(0)) not in self._tensors:
                for old, new in zip(outputs_of(op), self._stage(op), strict=True):
                    self._tensors[tensor_key(old)] = new
        return [self._tensors[tensor_key(tensor)] for tensor in tensors]

    def parameter(self, parameter: Any) -> Any:
        """A placeholder or a scalar variable in its other dtype."""
        if isinstance(parameter, te.Tensor):
            return self.tensors([parameter])[0]
        return self._variable(parameter)

    def _stage(self, op: Operation) -> list[te.Tensor]:
        if isinstance(op, te.PlaceholderOp):
            (tensor,) = outputs_of(op)
            return [te.placeholder(tensor.shape, self._retype(str(tensor.dtype)), name=op.name)]
        if isinstance(op, te.ScanOp):
            parts = [op.init, op.update, op.state_placeholder, op.inputs]
            return outputs_of(rebuild_scan(op, *(self.tensors(part) for part in parts)))
        if not isinstance(op, te.ComputeOp):
            raise ArgumentError(f"the stage {op.name} has its dtypes built in")
        return outputs_of(replace_bodies(op, self._bodies(list(op.body))))

    def _bodies(self, bodies: list[Expr]) -> list[Expr]:
        first = bodies[0]
        if not isinstance(first, tirx.Reduce):
            return [self._expression(body) for body in bodies]
        combiner = tirx.CommReducer(
            *(
                [self._expression(part) for part in parts]
                for parts in (
                    first.combiner.lhs,
                    first.combiner.rhs,
                    first.combiner.result,
                    first.combiner.identity_element,
                )
            )
        )
        # Built once for all bodies, so that the components stay one reduction.
        components = rebuild_reduction(
            first,
            [self._expression(source) for source in first.source],
            self._expression(first.condition),
            [self._expression(value) for value in first.init],
            combiner,
        )
        return [components[int(body.value_index)] for body in bodies]

    def _expression(self, root: Expr) -> Expr:
        results: dict[int, Expr] = {}
        for node in postorder(root):
            parts = [results[identity(child)] for child in children(node)]
            results[identity(node)] = self._node(node, parts)
        return results[identity(root)]

    def _node(self, node: Expr, parts: list[Expr]) -> Expr:
        if is_load(node):
            return self._tensors[tensor_key(loaded(node)[0])](*parts)
        if isinstance(node, tvm.ir.Var):
            return self._variable(node)
        if isinstance(node, prim.FloatImm):
            return tirx.const(node.value, self._retype(str(node.ty)))
        if isinstance(node, prim.Cast):
            return prim.Cast(tvm.ir.PrimType(self._retype(str(node.ty))), *parts)
        if isinstance(node, prim.Let):
            return prim.Let(self._variable(node.var), *parts)
        if called(node) == "tirx.reinterpret":
            # Its bits are those of the dtype that it was written for.
            parts = [part.astype(str(old.ty)) for part, old in zip(parts, node.args, strict=True)]
        if isinstance(node, tvm.ir.Call):
            ty = tvm.ir.PrimType(self._retype(str(node.ty)))
            return tvm.ir.Call(node.op, parts, attrs=node.attrs, span=node.span, ret_ty=ty)
        return rebuilt(node, parts)

    def _variable(self, var: Any) -> Any:
        dtype = self._retype(str(var.ty))
        if dtype == str(var.ty):
            return var
        return self._variables.setdefault(identity(var), tirx.Var(var.name, dtype))
