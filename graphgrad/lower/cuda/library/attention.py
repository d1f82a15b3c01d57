"""The pass that has a library compute attention and its gradient, without a matrix of scores.

Queries, keys and values are often parts of one product, and their gradients are joined to one
tensor. A library reads and writes such parts where they are in the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import tvm
from tvm import relax

from ....ir.calls import RESHAPES, axes_of_permutation, calls_op
from ....ir.kernel_calls import variables_of
from ....ir.kernel_structure import static
from ....ir.passes import Phase, compiler_pass
from ....ir.rewrite import map_functions, replace_bindings, replace_body
from ....ir.tensor import type_shape
from ....memory.effect_order import may_write
from ....ops.fused_attention import ATTENTION, GRADIENT, NOT_CAUSAL
from ....runtime.cudnn import problem as library
from ....runtime.cudnn.engine import register
from ....runtime.cudnn.nodes import ALIGNMENT
from ....runtime.cudnn.plans import Plan
from ....runtime.cudnn.problem import Problem, TensorForm
from ...graph.permuted_products import PERMUTATION, drop_unread
from ..compiler import arch_of
from .devices import profile_of
from .offline import plan_all
from .pointwise import CAST
from .select import absence, library_call, read_outside
from .views import SPLIT, View, plain, view_of

_OPS = {ATTENTION: library.ATTENTION, GRADIENT: library.ATTENTION_GRADIENT}

_DTYPES = ("float16", "bfloat16")

_FEATURES = 3
"""The axis along which tensors are contiguous, behind the batch, heads and positions."""

_CONCATENATION = "relax.concat"

_UNDONE = (CAST, PERMUTATION, *RESHAPES)
"""What is between the results of a gradient and their concatenation."""


class _Reading(IntEnum):
    """How much of what is around attention it reads and writes past."""

    PLAIN = 0
    IN_ORDER = 1
    IN_PARTS = 2


def serves_attention(target: tvm.target.Target) -> Callable[[list[Any], float, str], bool]:
    """Whether a library computes an attention of operands of given types, a scale and an order.

    See `graphgrad.ops.attention_pattern.fuse_attention`. It is planned here, and its gradient.
    """
    profile = profile_of(arch_of(target))

    def serves(types: list[Any], scale: float, causal: str) -> bool:
        if profile is None or len(types) > 3:
            return False
        operands = [relax.Var("operand", ty) for ty in types]
        query, key, value = map(plain, operands)
        if query.form is None or value.form is None:
            return False
        shape = (*query.form.shape[:3], value.form.shape[3])
        y = plain(relax.Var("y", relax.TensorType(shape, query.form.dtype)))
        sums = plain(relax.Var("logsumexp", relax.TensorType(shape[:3], "float32")))
        problems = [
            _problem(op, views, results, scale, causal)
            for op, views, results in (
                (ATTENTION, [query, key, value], [y, sums]),
                (GRADIENT, [query, key, value, y, sums, y], [query, key, value]),
            )
        ]
        wanted = [each for each in problems if each is not None]
        answers = plan_all(wanted, profile) if len(wanted) == len(problems) else {}
        return bool(answers) and all(isinstance(each, Plan) for each in answers.values())

    return serves


@compiler_pass(
    Phase.GRAPH,
    targets=("cuda",),
    before={"call_libraries": "products read what attention writes, in the order in which it does"},
)
def call_attention_library(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Have a library compute attention and its gradient."""
    if absence(target) is not None:
        return mod
    profile = profile_of(arch_of(target))
    assert profile is not None

    def changed(_: Any, func: relax.Function) -> relax.Function:
        if may_write(func.body):  # what is permuted may change before it is read
            return func
        blocks = [
            _with_library(block, func, profile) if isinstance(block, relax.DataflowBlock) else block
            for block in func.body.blocks
        ]
        if all(new.same_as(old) for new, old in zip(blocks, func.body.blocks, strict=True)):
            return func
        register()
        blocks = drop_unread(blocks, func, {CAST, PERMUTATION, SPLIT, *RESHAPES})
        body = relax.SeqExpr(blocks, func.body.body, func.body.span)
        return relax.BlockBuilder().normalize(replace_body(func, body))

    return map_functions(mod, changed)


@dataclass(frozen=True)
class _Result:
    """A result of an attention.

    Attributes
    ----------
    memory : relax.Var
        As it is in memory.
    axes : sequence of int
        For each axis of the memory, that of the result.
    """

    memory: Any
    axes: Sequence[int]

    @property
    def view(self) -> View:
        """The result, as a view of the memory."""
        return plain(self.memory).permuted(self._places)

    @property
    def value(self) -> Any:
        """The result, as an expression."""
        if list(self.axes) == sorted(self.axes):
            return self.memory
        permuted = relax.op.permute_dims(self.memory, self._places)
        return relax.BlockBuilder().normalize(permuted)

    @property
    def _places(self) -> list[int]:
        return [self.axes.index(axis) for axis in range(len(self.axes))]


@dataclass(frozen=True)
class _Joined:
    """The results of a gradient of attention as parts of one tensor.

    Attributes
    ----------
    result : _Result
        That tensor.
    variable : relax.Var
        What it is bound to.
    views : list of View
        Where in its memory each result is.
    inner : set of relax.Var
        What is not computed any more.
    """

    result: _Result
    variable: Any
    views: list[View]
    inner: set[Any]


@dataclass(frozen=True)
class _Site:
    """An attention, its operands in memory, and its results."""

    problem: Problem
    operands: list[Any]
    results: list[_Result]


def _with_library(block: Any, func: relax.Function, profile: Mapping[str, Any]) -> Any:
    """A block with calls of the library, where all its attentions have plans."""
    for reading in reversed(_Reading):
        found = _Attentions(block, func, reading)
        problems = [site.problem for site in found.sites.values()]
        answers = plan_all(problems, profile)
        if problems and all(isinstance(answer, Plan) for answer in answers.values()):
            return found.rewritten(answers)
    return block


class _Attentions:
    """The attentions of a block that a library may compute.

    Attributes
    ----------
    sites : dict of variable to _Site
        By the variables of their results.

    Parameters
    ----------
    block : relax.DataflowBlock
    func : relax.Function
    reading : _Reading
    """

    def __init__(self, block: Any, func: relax.Function, reading: _Reading):
        self.sites: dict[Any, _Site] = {}
        self._block, self._reading = block, reading
        values = {binding.var: binding.value for binding in block.bindings}
        self._bound = {var: x.args[0] if _widens(x) else x for var, x in values.items()}
        self._readers: dict[Any, list[Any]] = {}
        for each in block.bindings:
            for variable in variables_of(each.value):
                self._readers.setdefault(variable, []).append(each)
        self._outside = read_outside(func, block)
        self._wide: dict[Any, _Result] = {}
        self._half: dict[Any, _Result] = {}
        self._left_out: set[Any] = set()
        for binding in block.bindings:
            op = next((name for name in _OPS if calls_op(binding.value, name)), None)
            if op is not None:
                self._add(op, binding)

    def _add(self, op: str, binding: Any) -> None:
        getters = self._readers.get(binding.var, [])
        types = [*(x.ty for x in binding.value.args), *binding.value.ty.fields]
        if not all(isinstance(each.value, relax.TupleGetItem) for each in getters):
            return
        if any(static(extent) is None for ty in types for extent in type_shape(ty)):
            return
        views = [self._read(x) for x in binding.value.args]
        dtype = str(views[0].tensor.ty.dtype)
        names: list[list[Any]] = [[] for _ in binding.value.ty.fields]
        for getter in getters:
            names[int(getter.value.index)].append(getter.var)
        results = [
            _Result(relax.DataflowVar("attention_sums", ty), range(_FEATURES))
            if op == ATTENTION and place == 1
            else self._result(ty, own, dtype)
            for place, (ty, own) in enumerate(zip(binding.value.ty.fields, names, strict=True))
        ]
        joined = None
        if (
            self._reading == _Reading.IN_PARTS
            and op == GRADIENT
            and all(len(x) == 1 for x in names)
        ):
            joined = self._joined([variable for (variable,) in names], dtype)
        attrs = binding.value.attrs
        problem = _problem(
            op,
            views,
            [each.view for each in results] if joined is None else joined.views,
            float(attrs["scale"]),
            str(attrs["causal"]),
            joined is not None,
        )
        if problem is None:
            return
        operands = [view.tensor for view in views]
        if joined is not None:
            self.sites[binding.var] = _Site(problem, operands, [joined.result])
            self._half[joined.variable] = joined.result
            self._left_out |= joined.inner
            return
        self.sites[binding.var] = _Site(problem, operands, results)
        for result, own in zip(results, names, strict=True):
            for variable in own:
                is_half = str(variable.ty.dtype) == str(result.memory.ty.dtype)
                (self._half if is_half else self._wide)[variable] = result
                for cast in self._casts(variable, dtype):
                    self._half[cast.var] = result
                # So that gradients read what is in memory.
                self._bound[variable] = result.value

    def _read(self, expr: Any) -> View:
        """What an operand is a view of, before it was cast to float32."""
        views = [view_of(expr, self._bound, RESHAPES)]
        if self._reading >= _Reading.IN_ORDER:
            views.append(view_of(expr, self._bound))
        if self._reading >= _Reading.IN_PARTS:
            views.append(view_of(expr, self._bound, may_split=self._is_read_in_parts))
        return next(filter(_is_readable, reversed(views)), views[0])

    def _is_read_in_parts(self, split: Any) -> bool:
        """Whether attention alone reads what is split, so that it need not be."""
        return calls_op(self._bound.get(split), SPLIT) and self._serves_attention(split)

    def _serves_attention(self, variable: Any) -> bool:
        """Whether nothing but attention reads a variable, or views and casts of it."""
        return variable not in self._outside and all(
            any(calls_op(each.value, op) for op in _OPS)
            or (_is_view(each.value) and self._serves_attention(each.var))
            for each in self._readers.get(variable, [])
        )

    def _casts(self, variable: Any, dtype: str) -> list[Any]:
        """The bindings that cast a variable to a dtype."""
        return [
            each
            for each in self._readers.get(variable, [])
            if calls_op(each.value, CAST) and str(each.value.ty.dtype) == dtype
        ]

    def _result(self, ty: Any, own: Sequence[Any], dtype: str) -> _Result:
        """A result as it is written: in the order in which all permute it that read it.

        Gradients of attention do not count; they read it in any order.
        """
        shape = type_shape(ty)
        axes = list(range(len(shape)))
        casts = [cast for variable in own for cast in self._casts(variable, dtype)]
        variables = [*own, *(cast.var for cast in casts)]
        reading = [each for variable in variables for each in self._readers.get(variable, [])]
        orders = [
            axes_of_permutation(each.value) if calls_op(each.value, PERMUTATION) else axes
            for each in reading
            if each not in casts and not calls_op(each.value, GRADIENT)
        ]
        is_inner = not self._outside & set(variables)
        in_order = self._reading != _Reading.PLAIN
        if in_order and is_inner and orders and orders[0][-1] == axes[-1]:
            axes = orders[0] if all(order == orders[0] for order in orders) else axes
        memory = relax.TensorType([shape[axis] for axis in axes], dtype)
        return _Result(relax.DataflowVar("attention", memory), axes)

    def _joined(self, variables: Sequence[Any], dtype: str) -> _Joined | None:
        """The tensor that results are joined to; None if they are read in another way."""
        chains = [list(self._views_behind(variable)) for variable in variables]
        ends = [chain[-1].var if chain else v for v, chain in zip(variables, chains, strict=True)]
        whole = self._only_reader(ends[0])
        if (
            whole is None
            or not calls_op(whole.value, _CONCATENATION)
            or whole.value.ty.dtype != dtype
        ):
            return None
        axis, parts = whole.value.attrs.axis, list(whole.value.args[0])
        is_all = len(parts) == len(ends) and set(parts) == set(ends)
        if axis is None or not is_all or any(self._only_reader(end) is None for end in ends):
            return None
        begin, begins = 0, {}
        for part in parts:
            begins[part] = begin
            begin += int(type_shape(part.ty)[int(axis)])
        result = self._result(whole.value.ty, [whole.var], dtype)
        axis = int(axis) % len(result.axes)
        views = [
            _before(result.view.part(axis, begins[end], int(type_shape(end.ty)[axis])), chain)
            for end, chain in zip(ends, chains, strict=True)
        ]
        written = [view for view in views if view is not None and _is_readable(view)]
        inner = {*variables, *(each.var for chain in chains for each in chain)}
        return _Joined(result, whole.var, written, inner) if len(written) == len(views) else None

    def _views_behind(self, variable: Any) -> Iterator[Any]:
        """The bindings that read a variable, and each other, as nothing else does."""
        binding = self._only_reader(variable)
        if binding is not None and any(calls_op(binding.value, op) for op in _UNDONE):
            yield binding
            yield from self._views_behind(binding.var)

    def _only_reader(self, variable: Any) -> Any | None:
        """The binding that alone reads a variable; None if there are others, or none."""
        readers = self._readers.get(variable, [])
        return readers[0] if len(readers) == 1 and variable not in self._outside else None

    def rewritten(self, plans: Mapping[Problem, Any]) -> Any:
        """The block with calls of the library in place of attentions."""
        bindings: list[Any] = []
        for binding in self._block.bindings:
            value, span = binding.value, binding.span
            first = value.args[0] if isinstance(value, tvm.ir.Call) and value.args else None
            if binding.var in self.sites:
                site = self.sites[binding.var]
                outputs = [each.memory for each in site.results]
                plan = plans[site.problem]
                bindings += library_call(plan, site.operands, outputs, binding)
            elif binding.var in self._left_out:
                continue
            elif binding.var in self._half:
                new = self._half[binding.var].value
                bindings.append(relax.VarBinding(binding.var, new, span))
            elif binding.var in self._wide:
                result = self._wide[binding.var]
                half = relax.DataflowVar(f"{binding.var.name}_half", result.value.ty)
                wide = relax.op.astype(half, binding.var.ty.dtype)
                new = relax.BlockBuilder().normalize(wide)
                bindings.append(relax.VarBinding(half, result.value, span))
                bindings.append(relax.VarBinding(binding.var, new, span))
            elif (
                calls_op(value, PERMUTATION)
                and first in self._half
                and axes_of_permutation(value) == list(self._half[first].axes)
            ):
                bindings.append(relax.VarBinding(binding.var, self._half[first].memory, span))
            else:
                bindings.append(binding)
        return replace_bindings(self._block, bindings)


def _widens(value: Any) -> bool:
    """Whether a value is a cast of half precision to float32, of which a library knows."""
    return (
        calls_op(value, CAST)
        and str(value.args[0].ty.dtype) in _DTYPES
        and str(value.ty.dtype) == "float32"
    )


def _is_view(value: Any) -> bool:
    """Whether a library reads past a value, so that it need not be computed."""
    views = (PERMUTATION, *RESHAPES)
    return (
        isinstance(value, relax.TupleGetItem)
        or _widens(value)
        or any(calls_op(value, op) for op in views)
    )


def _is_readable(view: View) -> bool:
    """Whether a library reads a view where it is."""
    form = view.form
    return form is not None and form.strides[-1] == 1 and form.offset_bytes % ALIGNMENT == 0


def _before(view: View, chain: Sequence[Any]) -> View | None:
    """Where the elements are of what a chain of bindings begins with; None if that is uneven."""
    result: View | None = view
    for binding in reversed(chain):
        value = binding.value
        if result is not None and any(calls_op(value, op) for op in RESHAPES):
            result = result.reshaped([int(extent) for extent in type_shape(value.args[0].ty)])
        elif result is not None and calls_op(value, PERMUTATION):
            axes = axes_of_permutation(value)
            result = result.permuted([axes.index(axis) for axis in range(len(axes))])
    return result


def _problem(
    op: str,
    operands: Sequence[View],
    results: Sequence[View],
    scale: float,
    causal: str,
    joined: bool = False,
) -> Problem | None:
    """The problem of an attention, or its gradient; None if it is none for a library.

    A query that may attend no key has zeros as its result, and cuDNN has other numbers: so no
    bias, which may be −∞, and as many keys as queries where attention is causal.
    """
    views = (*operands, *results)
    forms = [each.form for each in views]
    if any(form is None or 0 in form.shape for form in forms):
        return None
    known = [_as_columns(form) for form in forms if form is not None]
    query, key = known[:2]
    dtypes = {
        form.dtype for view, form in zip(views, known, strict=True) if len(view.shape) > _FEATURES
    }
    if len(operands) not in (3, 6) or len(dtypes) > 1 or query.dtype not in _DTYPES:
        return None
    if causal != NOT_CAUSAL and query.shape[2] != key.shape[2]:
        return None
    if any(form.strides[-1] != 1 for form in known if form.shape[-1] > 1):
        return None
    count = len(operands)
    return Problem(
        _OPS[op],
        tuple(known[:count]),
        tuple(known[count:]),
        scale=scale,
        causal=causal != NOT_CAUSAL,
        joined=joined,
    )


def _as_columns(form: TensorForm) -> TensorForm:
    """One number for each query as a column; all else as it is."""
    if len(form.shape) > _FEATURES:
        return form
    return replace(form, shape=(*form.shape, 1), strides=(*form.strides, 1))
