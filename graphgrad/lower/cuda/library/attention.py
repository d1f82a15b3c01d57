"""The pass that has a library compute attention and its gradient, without a matrix of scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ....ir.calls import calls_op
from ....ir.kernel_calls import variables_of
from ....ir.passes import Phase, compiler_pass
from ....ir.rewrite import map_functions, replace_bindings, replace_body
from ....ir.tensor import type_shape
from ....memory.effect_order import may_write
from ....ops.fused_attention import ATTENTION, GRADIENT, NOT_CAUSAL
from ....runtime.cudnn import problem as library
from ....runtime.cudnn.engine import register
from ....runtime.cudnn.plans import Plan
from ....runtime.cudnn.problem import Problem, TensorForm
from ...graph.permuted_products import (
    PERMUTATION,
    axes_of_permutation,
    drop_unread,
    strip_permutations,
)
from ..compiler import arch_of
from .devices import profile_of
from .offline import plan_all
from .pointwise import CAST
from .problems import RESHAPE, View, plain, strip_reshapes
from .select import absence, library_call, read_outside

_OPS = {ATTENTION: library.ATTENTION, GRADIENT: library.ATTENTION_GRADIENT}

_DTYPES = ("float16", "bfloat16")

_FEATURES = 3
"""The axis along which tensors are contiguous, behind the batch, heads and positions."""


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
        blocks = drop_unread(blocks, func, {CAST, PERMUTATION, RESHAPE})
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
        return View(self.memory, [self.axes.index(axis) for axis in range(len(self.axes))])

    @property
    def value(self) -> Any:
        """The result, as an expression."""
        return permuted(self.memory, self.view.axes)


@dataclass(frozen=True)
class _Site:
    """An attention, its operands in memory, and its results."""

    problem: Problem
    operands: list[Any]
    results: list[_Result]


def _with_library(block: Any, func: relax.Function, profile: Mapping[str, Any]) -> Any:
    """A block with calls of the library, where all its attentions have plans."""
    for in_order in (True, False):
        found = _Attentions(block, func, in_order)
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
    in_order : bool
        Whether they read and write in the order of what is around them, or in that of their axes.
    """

    def __init__(self, block: Any, func: relax.Function, in_order: bool):
        self.sites: dict[Any, _Site] = {}
        self._block, self._in_order = block, in_order
        self._bound = {binding.var: binding.value for binding in block.bindings}
        self._readers: dict[Any, list[Any]] = {}
        for each in block.bindings:
            for variable in variables_of(each.value):
                self._readers.setdefault(variable, []).append(each)
        self._outside = read_outside(func, block)
        self._wide: dict[Any, _Result] = {}
        self._half: dict[Any, _Result] = {}
        for binding in block.bindings:
            op = next((name for name in _OPS if calls_op(binding.value, name)), None)
            if op is not None:
                self._add(op, binding)

    def _add(self, op: str, binding: Any) -> None:
        getters = self._readers.get(binding.var, [])
        if not all(isinstance(each.value, relax.TupleGetItem) for each in getters):
            return
        views = [self._read(x) for x in binding.value.args]
        dtype = str(views[0].tensor.ty.dtype)
        names: list[list[Any]] = [[] for _ in binding.value.ty.fields]
        for getter in getters:
            names[int(getter.value.index)].append(getter.var)
        results = [
            self._result(ty, own, dtype)
            for ty, own in zip(binding.value.ty.fields, names, strict=True)
        ]
        attrs = binding.value.attrs
        given = [each.view for each in results]
        problem = _problem(op, views, given, float(attrs["scale"]), str(attrs["causal"]))
        if problem is None:
            return
        self.sites[binding.var] = _Site(
            problem, [strip_reshapes(view.tensor, self._bound) for view in views], results
        )
        for result, own in zip(results, names, strict=True):
            for variable in own:
                is_half = str(variable.ty.dtype) == str(result.memory.ty.dtype)
                (self._half if is_half else self._wide)[variable] = result
                for cast in self._casts(variable, dtype):
                    self._half[cast.var] = result
                # So that gradients read what is in memory.
                self._bound[variable] = permuted(result.memory, result.view.axes)

    def _read(self, expr: Any) -> View:
        """What an operand is a view of, before it was cast to float32."""
        tensor, axes = (
            strip_permutations(expr, self._bound)
            if self._in_order
            else (expr, list(range(len(type_shape(expr.ty)))))
        )
        value: Any = self._bound.get(tensor)
        if calls_op(value, CAST) and str(value.args[0].ty.dtype) in _DTYPES:
            inner = self._read(value.args[0])
        elif isinstance(value, tvm.ir.Var):
            inner = self._read(value)
        else:
            return View(tensor, axes)
        return View(inner.tensor, [inner.axes[axis] for axis in axes])

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
        if len(shape) <= _FEATURES:
            return _Result(relax.DataflowVar("attention_sums", ty), axes)
        casts = [cast for variable in own for cast in self._casts(variable, dtype)]
        variables = [*own, *(cast.var for cast in casts)]
        reading = [each for variable in variables for each in self._readers.get(variable, [])]
        orders = [
            axes_of_permutation(each.value) if calls_op(each.value, PERMUTATION) else axes
            for each in reading
            if each not in casts and not calls_op(each.value, GRADIENT)
        ]
        is_inner = not self._outside & set(variables)
        if self._in_order and is_inner and orders and orders[0][-1] == axes[-1]:
            axes = orders[0] if all(order == orders[0] for order in orders) else axes
        memory = relax.TensorType([shape[axis] for axis in axes], dtype)
        return _Result(relax.DataflowVar("attention", memory), axes)

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


def permuted(tensor: Any, axes: Sequence[int]) -> Any:
    """A tensor with its axes in another order; itself in its own."""
    if list(axes) == sorted(axes):
        return tensor
    return relax.BlockBuilder().normalize(relax.op.permute_dims(tensor, list(axes)))


def _problem(
    op: str, operands: Sequence[View], results: Sequence[View], scale: float, causal: str
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
        form.dtype for view, form in zip(views, known, strict=True) if len(view.axes) > _FEATURES
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
    )


def _as_columns(form: TensorForm) -> TensorForm:
    """One number for each query as a column; all else as it is."""
    if len(form.shape) > _FEATURES:
        return form
    return TensorForm((*form.shape, 1), (*form.strides, 1), form.dtype)
