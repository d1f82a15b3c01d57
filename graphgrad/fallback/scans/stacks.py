"""Graphs of stages for all values of a parameter at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te

from ..graph import Key, Operation, outputs_of, rebuild_scan, scan_body, sources
from ..indices.index_system import Axis
from ..kinds import map_stage
from ..walk import (
    Expr,
    depend,
    identity,
    is_load,
    loaded,
    postorder,
    substituted,
    tensor_key,
    transformed,
)
from .restage import like, stage_of
from .slices import zero_based


class Stacking:
    """Stages with one more dimension: a parameter that they depend on.

    Parameters
    ----------
    parameter : Axis
        Its values, from the first on, are the new indices.
    """

    def __init__(self, parameter: Axis):
        self.parameter = parameter
        self.done: dict[Key, te.Tensor] = {}
        self.dimensions: dict[Key, int] = {}
        self.made: dict[int, Operation] = {}

    def tensors(self, tensors: Sequence[te.Tensor], stages: Sequence[Operation]) -> list[te.Tensor]:
        """Tensors for all values of the parameter, along a new first dimension.

        Parameters
        ----------
        tensors : sequence of Tensor
        stages : sequence of Operation
            All that may depend on the parameter, each after those it reads.
        """
        for op in stages:
            self._made(self._stacked(op))
        return [self._along(tensor, 0) for tensor in tensors]

    def stages(self, tensors: Sequence[te.Tensor]) -> list[Operation]:
        """The stages behind stacked tensors: what was made, and what was left as it is."""
        return postorder(
            *(tensor.op for tensor in tensors),
            parts=lambda op: [s.op for s in sources(op) if identity(s.op) in self.made],
        )

    def dimensions_of_stacked(self) -> dict[Key, int]:
        """The place of the new dimension in each tensor that has it, by the key of that tensor."""
        return {tensor_key(stacked): self.dimensions[key] for key, stacked in self.done.items()}

    def _stacked(self, op: Operation) -> Operation:
        """A stage with the new dimension; the stage itself if it needs none."""
        if not self._depends(op):
            return op
        if isinstance(op, te.ScanOp):
            return self._scan(op)
        axis = zero_based(self.parameter)
        renamed = [(self.parameter.var, like(axis.var, axis.var + self.parameter.low))]

        def reading(node: Expr) -> Expr:
            if not is_load(node):
                return node
            tensor, indices = loaded(node)
            stacked = self.done.get(tensor_key(tensor))
            if stacked is None:
                return node
            at = self.dimensions[tensor_key(tensor)]
            return stacked(*indices[:at], axis.var, *indices[at:])

        stage = stage_of(op).stacked(axis)
        stage = stage.changed(lambda root: transformed(substituted(root, renamed), reading))
        results = stage.built()
        for tensor, result in zip(outputs_of(op), results, strict=True):
            self._record(tensor, result, 0)
        return results[0].op

    def _depends(self, op: Operation) -> bool:
        if any(tensor_key(tensor) in self.done for tensor in sources(op)):
            return True
        if isinstance(op, te.ScanOp):
            return any(self._depends(stage) for stage in scan_body(op))
        return depend(stage_of(op).expressions, {identity(self.parameter.var)})

    def _scan(self, op: Any) -> Operation:
        """A scan over states for all values of the parameter, behind its own time."""
        extent = self.parameter.extent
        states = []
        for state in op.state_placeholder:
            shape = [state.shape[0], extent, *state.shape[1:]]
            states.append(te.placeholder(shape, str(state.dtype), name=state.op.name))
            self._record(state, states[-1], 1)
        for stage in scan_body(op):
            self._made(self._stacked(stage))
        init, update = (
            [self._along(tensor, 1) for tensor in tensors] for tensors in (op.init, op.update)
        )
        result = rebuild_scan(op, init, update, states)
        for tensor, stacked in zip(outputs_of(op), outputs_of(result), strict=True):
            self._record(tensor, stacked, 1)
        return result

    def _made(self, op: Operation) -> None:
        self.made[identity(op)] = op

    def _record(self, tensor: te.Tensor, stacked: te.Tensor, dimension: int) -> None:
        self.done[tensor_key(tensor)] = stacked
        self.dimensions[tensor_key(tensor)] = dimension

    def _along(self, tensor: te.Tensor, dimension: int) -> te.Tensor:
        """A tensor with the new dimension at a place, moved there if it is elsewhere."""
        key = tensor_key(tensor)
        stacked = self.done.get(key)
        if stacked is not None and self.dimensions[key] == dimension:
            return stacked
        shape = list(tensor.shape)
        shape.insert(dimension, self.parameter.extent)

        def body(*position: Any) -> Expr:
            others = [index for i, index in enumerate(position) if i != dimension]
            if stacked is None:
                return tensor(*others)
            at = self.dimensions[key]
            return stacked(*others[:at], position[dimension], *others[at:])

        moved = map_stage(shape, body, name=f"{tensor.op.name}_times")
        self._made(moved.op)
        return moved
