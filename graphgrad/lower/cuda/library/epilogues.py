"""What is computed of each element of a contraction's result, as a part of the contraction.

A contraction writes its result once, and what reads it reads it again. A library can compute maps
of the result before it writes that: an epilogue. It may read other tensors, of the shape of the
result or broadcast, and may write two tensors, one of them for those that read a value half way.

An epilogue begins with the maps that alone read each other's results; what they give, the *end*, is
written where others read it. If only maps read it, and all lead to one tensor that others read,
such as an activation, the epilogue goes on to that; what it reads on the way is computed again from
tensors in memory, as a kernel of ours would compute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import relax

from ....ir.kernel_calls import variables_of
from ....ir.kernel_structure import static
from ....ir.tensor import type_shape
from ....ops.conv import SPATIAL, Layouts, Window
from ....runtime.cudnn.nodes import COMPARISONS
from ....runtime.cudnn.problem import MATMUL, Problem, Step, TensorForm, strides_of
from .pointwise import CAST, STEPS

_FLOATS = ("float16", "bfloat16", "float32")

_REDUCTIONS = frozenset(
    {
        *(f"relax.{name}" for name in ("max", "mean", "min", "prod", "sum", "variance")),
        *(f"relax.nn.{name}" for name in ("layer_norm", "log_softmax", "softmax")),
        "graphgrad.moments",
    }
)
"""Ops whose kernels compute maps of what they read, so that these need not be written."""

MOST_STEPS = 32
"""Of one epilogue."""

MOST_TENSORS = 4
"""That one epilogue reads, of the size of the result: each takes registers."""


@dataclass(frozen=True)
class Fused:
    """A contraction with an epilogue.

    Attributes
    ----------
    problem : Problem
    others : list of relax expression
        What the epilogue reads beside the contraction, in the order of the problem's inputs.
    outputs : list of variable
        Those that the outputs are the values of.
    members : list of binding
        What the epilogue computes, in order; the last is where the call stands.
    """

    problem: Problem
    others: list[Any]
    outputs: list[Any]
    members: list[Any]


class Block:
    """The bindings of a dataflow block, and who reads them.

    Parameters
    ----------
    bindings : sequence of binding
    outside : collection of variable
        What is read outside of the block.

    Attributes
    ----------
    stored : set of variable
        What epilogues write to memory.
    taken : set of variable
        What epilogues compute, that and all on the way.
    loaded : set of relax expression
        What epilogues read from memory.
    """

    def __init__(self, bindings: Sequence[Any], outside: set[Any]):
        self.bindings = list(bindings)
        self.place = {binding.var: place for place, binding in enumerate(bindings)}
        self._outside = outside
        self.readers: dict[Any, list[int]] = {}
        for place, binding in enumerate(bindings):
            for variable in dict.fromkeys(variables_of(binding.value)):
                self.readers.setdefault(variable, []).append(place)
        self.stored: set[Any] = set()
        self.taken: set[Any] = set()
        self.loaded: set[Any] = set()

    def reading(self, variable: Any) -> list[Any]:
        """The bindings that read a variable."""
        return [self.bindings[place] for place in self.readers.get(variable, [])]

    def is_wanted(self, variable: Any, shape: Sequence[int]) -> bool:
        """Whether something reads a variable that wants it in memory."""
        return self._is_read_elsewhere(variable) or any(
            each.var in self.taken
            or not (is_map(each.value, shape) or op_name(each.value) in _REDUCTIONS)
            for each in self.reading(variable)
        )

    def _is_read_elsewhere(self, variable: Any) -> bool:
        return variable in self._outside or variable in self.loaded

    def is_read_by_maps_alone(self, variable: Any, shape: Sequence[int]) -> bool:
        """Whether all that read a variable are maps of a shape, in this block."""
        return not self._is_read_elsewhere(variable) and all(
            each.var not in self.taken and is_map(each.value, shape)
            for each in self.reading(variable)
        )


def fused(block: Block, contraction: Any, problem: Problem) -> Fused | None:
    """A contraction of a block with the longest epilogue that pays; None if there is none.

    Parameters
    ----------
    block : Block
        What the contraction writes becomes known to it as in memory.
    contraction : binding
    problem : Problem
        The contraction alone.
    """
    axes = _axes_of(contraction.value, problem)
    shape = _extents(contraction.value.ty)
    if axes is None or shape is None:
        return None
    region = _Region(block, contraction, shape)
    end = region.end()
    last = region.goal(end)
    for target in (last, end):
        if target is None or target == contraction.var:
            continue
        outputs = [end, target] if region.is_kept(end, target) else [target]
        made = region.fused(outputs, problem, axes)
        if made is not None:
            block.stored.update(outputs)
            block.loaded.update(made.others)
            block.taken.update(each.var for each in made.members)
            return made
    return None


def is_map(value: Any, shape: Sequence[int]) -> bool:
    """Whether a value is an elementwise call of a shape that a library can compute."""
    if op_name(value) not in STEPS or _extents(value.ty) != list(shape):
        return False
    name = op_name(value).rpartition(".")[2]
    dtypes = [str(value.ty.dtype)] if name not in COMPARISONS else []
    dtypes += [str(argument.ty.dtype) for argument in value.args[name == "where" :]]
    return all(dtype in _FLOATS for dtype in dtypes)


class _Region:
    """The maps behind one contraction."""

    def __init__(self, block: Block, contraction: Any, shape: list[int]):
        self._block, self._contraction, self._shape = block, contraction, shape

    def end(self) -> Any:
        """The variable behind the maps that alone read each other, beginning at the contraction.

        Casts to more bits at its end are left to those that read it.
        """
        chain = [self._contraction]
        while True:
            variable = chain[-1].var
            readers = self._block.reading(variable)
            if len(readers) != 1 or not self._block.is_read_by_maps_alone(variable, self._shape):
                break
            if str(readers[0].value.ty.dtype) not in _FLOATS:
                break
            chain.append(readers[0])
        while len(chain) > 1 and _widens(chain[-1].value):
            chain.pop()
        return chain[-1].var

    def goal(self, end: Any) -> Any | None:
        """The first map behind a variable that others read, if maps alone read the variable."""
        if not self._block.is_read_by_maps_alone(end, self._shape):
            return None
        behind = {end}
        for binding in self._block.bindings[self._block.place[end] + 1 :]:
            if not behind & set(variables_of(binding.value)):
                continue
            if binding.var in self._block.taken or not is_map(binding.value, self._shape):
                return None  # something that is made of it is read on the way
            behind.add(binding.var)
            is_float = str(binding.value.ty.dtype) in _FLOATS
            if is_float and self._block.is_wanted(binding.var, self._shape):
                goal = binding.value.args[0] if _widens(binding.value) else binding.var
                return goal if goal != end else None
        return None

    def is_kept(self, end: Any, last: Any) -> bool:
        """Whether what is on the way to the last map is read by something that is not."""
        way = self._way(last)
        readers = (each for x in way - {last} for each in self._block.reading(x))
        return end != last and any(each.var not in way for each in readers)

    def _way(self, last: Any) -> set[Any]:
        """What depends on the contraction, and the last map depends on; the last map too."""
        block, start = self._block, self._block.place[self._contraction.var]
        depends = {self._contraction.var}
        span = block.bindings[start + 1 : block.place[last] + 1]
        for binding in span:
            if depends & set(variables_of(binding.value)):
                depends.add(binding.var)
        needed = {last}
        for binding in reversed(span):
            if binding.var in needed:
                needed.update(depends & set(variables_of(binding.value)))
        return needed

    def fused(
        self, outputs: list[Any], problem: Problem, axes: Sequence[Sequence[int]]
    ) -> Fused | None:
        """The contraction with what computes some variables; None where that cannot be."""
        block, last = self._block, outputs[-1]
        way = self._way(last)
        members = [each for each in block.bindings[: block.place[last] + 1] if each.var in way]
        members = members[1:]  # without the contraction
        if any(not is_map(each.value, self._shape) for each in members):
            return None
        # All is written where the last is: nothing else may read it before.
        inside = {each.var for each in members}
        early = {
            place for x in way for place in block.readers.get(x, []) if place < block.place[last]
        }
        if any(block.bindings[place].var not in inside for place in early):
            return None
        written = _Writer(block, self._contraction.var, inside, self._shape)
        results = [written.value(variable) for variable in outputs]
        if not written.is_good or any(not isinstance(each, int) for each in results):
            return None
        forms = [_form(tensor.ty, self._shape, axes) for tensor in written.others]
        if None in forms:
            return None
        inputs = [form for form in forms if form is not None]
        large = sum(form.bytes * 2 > problem.output.bytes for form in inputs)
        if large > MOST_TENSORS or len(written.steps) > MOST_STEPS:
            return None
        made = replace(
            problem,
            inputs=(*problem.inputs, *inputs),
            outputs=tuple(replace(problem.output, dtype=str(x.ty.dtype)) for x in outputs),
            epilogue=tuple(written.numbered()),
            results=tuple(written.number(each) for each in results),
        )
        return Fused(made, written.others, outputs, members)


class _Writer:
    """Writes the steps of an epilogue, with what it reads from memory.

    Values are counted as they are found; `number` counts them as a problem does.
    """

    def __init__(self, block: Block, contraction: Any, inside: set[Any], shape: Sequence[int]):
        self._block, self._contraction, self._inside = block, contraction, inside
        self._shape = shape
        self.others: list[Any] = []
        self.steps: list[tuple[str, tuple[int | float, ...]]] = []
        self.is_good = True
        self._known: dict[Any, int | float] = {contraction: 0}

    def value(self, expr: Any) -> int | float:
        """The value of an expression: 0 the contraction, steps from 1 on, tensors from −1 down."""
        if isinstance(expr, tvm.ir.GenericConst):
            return self._constant(expr)
        if expr not in self._known:
            self._known[expr] = self._computed(expr)
        return self._known[expr]

    def _constant(self, expr: Any) -> int | float:
        array = expr.value.numpy()
        if array.size != 1 or str(array.dtype) not in _FLOATS:
            return self._loaded(expr)
        return float(array.reshape(-1)[0])

    def _computed(self, variable: Any) -> int | float:
        place = self._block.place.get(variable)
        value = None if place is None else self._block.bindings[place].value
        if value is not None and variable not in self._block.stored:
            if is_map(value, self._shape) and (
                variable in self._inside
                or variable in self._block.taken  # others that read it compute it again, too
                or self._block.is_read_by_maps_alone(variable, self._shape)
            ):
                operands = [self.value(argument) for argument in value.args[: _arity(value)]]
                return STEPS[op_name(value)](self._emit, *operands)
            if calls_cast(value):  # of a bias, say: read before it is rounded
                return self.value(value.args[0])
        return self._loaded(variable)

    def _loaded(self, tensor: Any) -> int:
        ty = getattr(tensor, "ty", None)
        self.is_good &= isinstance(ty, relax.TensorType) and str(ty.dtype) in _FLOATS
        self.others.append(tensor)
        return -len(self.others)

    def _emit(self, op: str, *operands: int | float) -> int:
        if all(isinstance(each, float) for each in operands):
            self.is_good = False  # a library wants a tensor; constants are folded elsewhere
        self.steps.append((op, operands))
        return len(self.steps)

    def number(self, value: int | float) -> Any:
        """A value as a problem counts it: the contraction, the tensors, the steps."""
        if isinstance(value, float) or value == 0:
            return value
        return -value if value < 0 else len(self.others) + value

    def numbered(self) -> list[Step]:
        """The steps."""
        return [Step(op, tuple(map(self.number, operands))) for op, operands in self.steps]


def op_name(value: Any) -> str:
    """The name of the op that a value calls; empty if it calls none."""
    return str(getattr(getattr(value, "op", None), "name", ""))


def calls_cast(value: Any) -> bool:
    """Whether a value is a cast from one float to another."""
    if op_name(value) != CAST:
        return False
    return {str(value.ty.dtype), str(value.args[0].ty.dtype)} <= set(_FLOATS)


def _widens(value: Any) -> bool:
    """Whether a value is a cast from half precision to float32."""
    return calls_cast(value) and str(value.args[0].ty.dtype) != "float32"


def _arity(value: Any) -> int:
    return 1 if op_name(value) == CAST else len(value.args)


def _extents(ty: Any) -> list[int] | None:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    extents = [static(extent) for extent in type_shape(ty)]
    return None if None in extents else [int(extent) for extent in extents if extent is not None]


def _axes_of(call: Any, problem: Problem) -> list[list[int]] | None:
    """For each axis of the result as a library counts them, its axes in memory."""
    rank = len(type_shape(call.ty))
    if problem.op == MATMUL:
        is_stack = problem.output.shape[-2] == static(type_shape(call.ty)[-2])
        last = rank - 2 if is_stack else 0
        return [list(range(last)), list(range(last, rank - 1)), [rank - 1]]
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)
    spatial = SPATIAL[window.rank]
    if problem.op == "conv_weight_gradient":
        return [[layouts.kernel.index(axis)] for axis in "OI" + spatial]
    return [[layouts.data.index(axis)] for axis in "NC" + spatial]


def _form(ty: Any, shape: Sequence[int], axes: Sequence[Sequence[int]]) -> TensorForm | None:
    """The form of a tensor that broadcasts to a shape, as a library counts axes."""
    extents = _extents(ty)
    if extents is None or len(extents) > len(shape):
        return None
    aligned = [1] * (len(shape) - len(extents)) + extents
    if any(own not in (1, full) for own, full in zip(aligned, shape, strict=True)):
        return None
    steps = strides_of(aligned)
    joined: list[tuple[int, int]] = []
    for group in axes:
        extent = prod(aligned[axis] for axis in group)
        if extent not in (1, prod(shape[axis] for axis in group)):
            return None  # broadcast along some axes that are one for the library
        # The innermost axis of more than one element gives the step.
        inner = next((axis for axis in reversed(group) if aligned[axis] > 1), None)
        joined.append((extent, prod(aligned) if inner is None else steps[inner]))
    return TensorForm(
        tuple(extent for extent, _ in joined), tuple(step for _, step in joined), str(ty.dtype)
    )
