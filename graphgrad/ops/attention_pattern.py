"""Attention as models write it, in products and a softmax, found by its structure.

What is found is softmax(scale · q kᵀ + bias) v with all that exporters put around it: scales on
either factor or on the scores, masks that are added or chosen by, constant or computed, guards
for rows in which nothing is attended, heads of keys and values that are repeated for a group of
queries, and reshapes that move no element across rows. What is in doubt stays as it is: scores or
weights that are also read elsewhere, dropout or caps on them, a mask that trains, and a finite
mask that may exclude a whole row, whose weights are then equal and not zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..ir.attributes import Attributes
from ..ir.calls import axes_of_permutation, calls_op
from ..ir.program import Program, variables_in
from ..ir.tensor import Emitter, Tensor, has_shape, is_float, type_shape
from ..ir.write import replace_bindings
from . import functional as op
from .constant_masks import constant_value
from .fused_attention import BOTTOM_RIGHT, NOT_CAUSAL, TOP_LEFT, fused_attention

_STOCK = ("relax.nn.attention", "relax.nn.attention_bias")

_LOW = -1e30
"""Scores at which, and below, a weight is zero next to that of any score in use."""

_MOST_BIAS = 256.0
"""Finite biases up to which float32 leaves the logarithm of a row's sum four decimal places."""

_PERMUTATION, _RESHAPE = "relax.permute_dims", "relax.reshape"

_RELABELING = ("astype", "reshape", "broadcast_to", "expand_dims", "squeeze", "permute_dims")

Serves = Callable[[list[Any], float, str], bool]
"""From types of operands, scale and causality to whether an attention is to be fused."""


class _NoMatch(Exception):
    """A program that is not attention, or may not be."""


@dataclass
class _Scores:
    """What the scores of a softmax are made of.

    Attributes
    ----------
    product : Call
        Of queries and transposed keys.
    scale : float
        Of the product.
    biases : list of (expression, shape)
        What is added, and the shape of the scores there.
    masks : list of (expression, shape, is_allowed, fill)
        Conditions by which scores are chosen, or `fill` in their place.
    inner : list of variables
        What has been looked through.
    """

    product: Any = None
    scale: float = 1.0
    biases: list[tuple[Any, list[Any]]] = field(default_factory=list)
    masks: list[tuple[Any, list[Any], bool, float]] = field(default_factory=list)
    inner: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    """An attention that was found.

    Attributes
    ----------
    inner : set of variables
        What is left out, but for the result.
    query, key, value : _Source
    scale : float
    causal : str
    biases : list of _Source
        Zero or −∞, or small.
    masks : list of (_Source, bool)
        Conditions, and whether they hold where queries attend.
    positions_first : bool
        Whether the result is (batch, positions, heads, features).
    """

    inner: set[Any]
    query: _Source
    key: _Source
    value: _Source
    scale: float
    causal: str
    biases: list[_Source]
    masks: list[tuple[_Source, bool]]
    positions_first: bool = False

    @property
    def reads(self) -> list[Any]:
        """The expressions that it is computed from."""
        sources = [self.query, self.key, self.value, *self.biases]
        return [source.expr for source in (*sources, *(mask for mask, _ in self.masks))]


@dataclass(frozen=True)
class _Source:
    """A tensor of rank 4, made of an expression by a permutation and a reshape.

    Attributes
    ----------
    expr : relax expression
    shape : list of int
    axes : list of int, optional
    steps : tuple of calls
        Further permutations and reshapes, which come first.
    """

    expr: Any
    shape: list[int]
    axes: list[int] | None = None
    steps: tuple[Any, ...] = ()

    def emit(self, emitter: Emitter, environment: Callable[[Any], Any]) -> Tensor:
        """Emit it."""
        tensor = emitter.lift(environment(self.expr))
        for step in self.steps:
            if calls_op(step, _RESHAPE):
                tensor = op.reshape(tensor, type_shape(step.ty))
            else:
                tensor = op.permute_dims(tensor, axes_of_permutation(step))
        if self.axes is not None and self.axes != sorted(self.axes):
            tensor = op.permute_dims(tensor, self.axes)
        return op.reshape(tensor, self.shape)

    @property
    def type(self) -> Any:
        """Its type."""
        return relax.TensorType(self.shape, self.expr.ty.dtype)


def fuse_attention(
    program: Program,
    serves: Serves,
    trained: Sequence[Any] = (),
    keep: Collection[Any] = (),
    is_custom: Callable[[str], bool] = lambda name: False,
) -> Program:
    """A program that has attention as an op of ours where it had products and a softmax.

    Rows in which nothing is attended are zero, also where they were NaN. A guard that makes zeros
    of NaN weights is taken for one of such rows: other NaN is not hidden by it any more.

    Parameters
    ----------
    program : Program
        Not changed.
    serves : callable
    trained : sequence of variables
        What is differentiated: masks that depend on it stay.
    keep : collection of variables
        What must remain, because somebody asks for it by its name.
    is_custom : callable
        From the name of an op to whether somebody has a rule of their own for it, which holds.
    """
    if not program.dataflow:
        return program  # branches may read what is inside
    search = _Search(program, trained, keep)
    found: dict[Any, _Found] = {}
    inside: set[Any] = set()
    for var, value in program.bindings:
        match = search.attention(var, value)
        if match is None or any(map(is_custom, search.ops(match, var))):
            continue
        # The weights of one attention may be queries of another, or its scores.
        if inside.isdisjoint([*match.inner, *match.reads]) and serves(*_choice(match)):
            found[var] = match
            inside |= match.inner
    if not found:
        return program
    replacements = {var: partial(_emitted, match=match, ty=var.ty) for var, match in found.items()}
    return replace_bindings(program, replacements, inside - set(found))


def _choice(match: _Found) -> tuple[list[Any], float, str]:
    types = [source.type for source in (match.query, match.key, match.value)]
    parts = [*match.biases, *(mask for mask, _ in match.masks)]
    if parts:
        shape = [max(extents) for extents in zip(*(part.shape for part in parts), strict=True)]
        types.append(relax.TensorType(shape, "float32"))
    return types, match.scale, match.causal


def _emitted(emitter: Emitter, at: Callable[[Any], Any], match: _Found, ty: Any) -> Tensor:
    """Emit an attention, in the type of the variable that it was bound to."""
    # The kept result is not rounded: what it loses would weigh in the difference ȳ vᵀ − Σ ȳ ∘ y.
    query, key, value = (
        op.widen(source.emit(emitter, at)) for source in (match.query, match.key, match.value)
    )
    terms = [source.emit(emitter, at).astype("float32") for source in match.biases]
    for mask, allows in match.masks:
        condition = mask.emit(emitter, at)
        zero, infinity = (emitter.lift(relax.const(x, "float32")) for x in (0.0, -math.inf))
        choice = (zero, infinity) if allows else (infinity, zero)
        terms.append(op.where(condition, *choice))
    bias = None
    for term in terms:
        bias = term if bias is None else bias + term
    y, _ = fused_attention(query, key, value, bias, match.scale, match.causal)
    if match.positions_first:
        y = op.permute_dims(y, [0, 2, 1, 3])
    return op.reshape(y, type_shape(ty)).astype(str(ty.dtype))


class _Search:
    """The search for attention in one program."""

    def __init__(self, program: Program, trained: Sequence[Any], keep: Collection[Any]):
        self._bound: dict[Any, Any] = dict(program.bindings)
        reads = [variables_in(value) for _, value in program.bindings]
        self._readers = Counter(var for read in reads for var in read)
        self._visible = {*variables_in(program.result), *keep}
        self._memo: dict[Any, np.ndarray | None] = {}
        self._active = set(trained)
        for var, value in program.bindings:
            if any(source in self._active for source in variables_in(value)):
                self._active.add(var)

    def attention(self, var: Any, value: Any) -> _Found | None:
        """The attention whose result a binding is; None if it is none."""
        if not all(_has_shape(each) for each in getattr(value, "args", ())):
            return None
        try:
            if calls_op(value, "relax.matmul"):
                return self._attention(var, value)
            if any(calls_op(value, name) for name in _STOCK):
                return self._stock_attention(value)
        except _NoMatch:
            pass
        return None

    def ops(self, match: _Found, var: Any) -> set[str]:
        """The names of the ops that an attention consists of."""
        values = (self._bound[each] for each in {*match.inner, var})
        return {str(value.op.name) for value in values if hasattr(value, "op")}

    def _stock_attention(self, call: Any) -> _Found:
        """The attention of one of TVM's ops."""
        sources = []
        for operand in call.args[:3]:
            shape = type_shape(operand.ty)
            _require(len(shape) == 4 and all(isinstance(n, int) for n in shape))
            batch, positions, heads, features = shape
            sources.append(_Source(operand, [batch, heads, positions, features], [0, 2, 1, 3]))
        query, key, value = sources
        attrs = Attributes(call.attrs)
        causal = attrs.causal_mask or NOT_CAUSAL
        _require(attrs.window_size is None and causal in (NOT_CAUSAL, TOP_LEFT, BOTTOM_RIGHT))
        # TVM's order of fewer keys than queries is another one.
        _require(causal != BOTTOM_RIGHT or key.shape[2] >= query.shape[2])
        _require(key.shape[1] > 0 and query.shape[1] % key.shape[1] == 0)
        scale = query.shape[3] ** -0.5 if attrs.scale is None else float(attrs.scale)
        shape = [*query.shape[:3], key.shape[2]]
        biases = [_as_rank_4(bias, shape, shape) for bias in call.args[3:]]
        _require(all(bias.expr not in self._active for bias in biases))
        _require(all(map(self._is_precise, biases)))
        return _Found(set(), query, key, value, scale, str(causal), biases, [], True)

    def _attention(self, var: Any, value: Any) -> _Found:
        weights, inner, guards = self._weights(value.args[0])
        scores = self._scores(weights)
        inner += scores.inner
        query, key, values, scale = self._factors(scores.product, value)
        shape = [*query.shape[:3], key.shape[2]]
        biases, masks, causal = self._masks(scores, shape, guards)
        self._check_private({*inner}, var)
        dtypes = {str(source.expr.ty.dtype) for source in (query, key, values)}
        _require(len(dtypes) == 1 and is_float(*dtypes))
        # Who asks for float64 on the way does so for its digits.
        wide = any(str(each.ty.dtype) == "float64" for each in inner)
        _require(not wide or "float64" in dtypes)
        total = scores.scale * scale
        _require(math.isfinite(total))
        return _Found({*inner}, query, key, values, total, causal, biases, masks)

    # The weights: from the product with the values to the softmax.

    def _weights(self, expr: Any) -> tuple[Any, list[Any], list[Any]]:
        """The argument of the softmax, what is between, and the conditions of zero weights."""
        inner: list[Any] = []
        guards: list[Any] = []
        while True:
            value = self._inside(expr, inner)
            if calls_op(value, "relax.astype"):
                _require(is_float(str(value.ty.dtype)))
                expr = value.args[0]
            elif calls_op(value, "relax.reshape"):
                _require(_keeps_rows(value))
                expr = value.args[0]
            elif calls_op(value, "relax.where"):
                expr = self._guarded(value, inner, guards)
            elif calls_op(value, "relax.nn.softmax"):
                rank = _rank(value)
                _require(int(value.attrs.axis) % rank == rank - 1)
                return value.args[0], inner, guards
            else:
                raise _NoMatch

    def _guarded(self, value: Any, inner: list[Any], guards: list[Any]) -> Any:
        """The weights of a choice between them and zero."""
        condition, first, second = value.args
        if self._is_number(second, 0.0) and type_shape(first.ty) == type_shape(value.ty):
            guards.append(condition)
            return first
        _require(self._is_number(first, 0.0) and type_shape(second.ty) == type_shape(value.ty))
        inside: list[Any] = []
        test = self._inside(condition, inside)
        if calls_op(test, "relax.isnan") and test.args[0].same_as(second):
            inner += inside
            return second
        inner += self._empty_rows(condition, second)
        return second

    def _empty_rows(self, condition: Any, weights: Any) -> list[Any]:
        """What computes which rows of scores are −∞ alone, as PyTorch decomposes its guard."""
        inner: list[Any] = []
        steps = [
            *("relax.logical_not", "relax.astype", "relax.max", "relax.astype"),
            *("relax.logical_not", "relax.equal"),
        ]
        expr = condition
        for name in steps:
            value = self._inside(expr, inner)
            _require(calls_op(value, name))
            if name == "relax.max":
                rank = _rank(value.args[0])
                axes = value.attrs.axis
                _require(axes is not None and [int(axis) % rank for axis in axes] == [rank - 1])
                _require(bool(value.attrs.keepdims))
            if name == "relax.equal":
                _require(self._is_number(value.args[1], -math.inf))
            expr = value.args[0]
        softmax = self._value(weights)
        _require(calls_op(softmax, "relax.nn.softmax") and softmax.args[0].same_as(expr))
        return inner

    # The scores: from the softmax to the product of queries and keys.

    def _scores(self, expr: Any) -> _Scores:
        """What scores are made of; the outermost operation is looked at first."""
        scores, outer = _Scores(), 1.0
        while True:
            value = self._inside(expr, scores.inner)
            name = value.op.name if isinstance(value, relax.Call) else ""
            shape = type_shape(value.ty) if name else []
            if name == "relax.matmul":
                scores.product, scores.scale = value, outer
                return scores
            is_cast = name == "relax.astype" and is_float(str(value.ty.dtype))
            if is_cast or (name == "relax.reshape" and _keeps_rows(value)):
                expr = value.args[0]
            elif name in ("relax.multiply", "relax.divide"):
                expr, factor = self._scaled(value)
                outer *= factor
            elif name == "relax.add":
                _require(outer == 1.0)
                first, second = value.args
                if not self._leads_to_product(first):
                    first, second = second, first
                _require(type_shape(first.ty) == shape)
                scores.biases.append((second, shape))
                expr = first
            elif name == "relax.where":
                condition, first, second = value.args
                allows = self._number(second) is not None
                chosen, fill = (first, second) if allows else (second, first)
                number = self._number(fill)
                _require(number is not None and number <= _LOW and outer == 1.0)
                _require(type_shape(chosen.ty) == shape)
                scores.masks.append((condition, shape, allows, float(number)))  # type: ignore[arg-type]
                expr = chosen
            else:
                raise _NoMatch

    def _leads_to_product(self, expr: Any) -> bool:
        """Whether an operand is made of a matrix product by what scores are made with."""
        value = self._value(expr)
        names = ("astype", "reshape", "multiply", "divide", "add", "where")
        if calls_op(value, "relax.matmul"):
            return True
        if not any(calls_op(value, f"relax.{name}") for name in names):
            return False
        operands = [each for each in value.args if isinstance(each, relax.Var)]
        return any(map(self._leads_to_product, operands))

    def _scaled(self, value: Any) -> tuple[Any, float]:
        """The operand of a product with a number, or of a division by one, and the factor."""
        first, second = value.args
        number = self._number(second)
        if number is None and calls_op(value, "relax.multiply"):
            first, number = second, self._number(first)
        _require(number is not None and number != 0)
        _require(type_shape(first.ty) == type_shape(value.ty))
        assert number is not None
        return first, (1.0 / number if calls_op(value, "relax.divide") else number)

    # The factors: queries, keys and values.

    def _factors(self, product: Any, mixed: Any) -> tuple[_Source, _Source, _Source, float]:
        """Queries, keys and values, and the factor by which the first two are scaled."""
        left, right = product.args
        weights, values = mixed.args
        for a, b in ((left, right), (weights, values)):
            rows, columns = type_shape(a.ty), type_shape(b.ty)
            _require(all(isinstance(n, int) for n in (*rows, *columns)))
            _require(len(rows) == len(columns) and len(rows) in (3, 4))
            _require(rows[:-2] == columns[:-2])
        query, scale_of_query = self._rows(left)
        key, scale_of_key = self._transposed(right)
        value = self._leading(values)
        if _rank(query) != 4 or len(key.shape) != 4 or _rank(value) != 4:
            query, (key, scale_of_key), value = left, self._transposed(right, False), values
            scale_of_query = 1.0
            shapes = [type_shape(query.ty), key.shape, type_shape(value.ty)]
            _require(all(len(shape) == 3 for shape in shapes))
            sources = [
                _Source(expr, [shape[0], 1, *shape[1:]], axes)
                for expr, shape, axes in zip(
                    (query, key.expr, value), shapes, (None, key.axes, None), strict=True
                )
            ]
        else:
            sources = [
                _Source(query, type_shape(query.ty)),
                key,
                _Source(value, type_shape(value.ty)),
            ]
        q, k, v = sources
        k, v = self._shared_heads(k, v)
        q, factor = self._unscaled(q)
        scale_of_query *= factor
        batch, heads, _, features = q.shape
        _require(k.shape[0] == v.shape[0] == batch and k.shape[3] == features)
        _require(k.shape[1:3] == v.shape[1:3] and heads % k.shape[1] == 0)
        return q, k, v, scale_of_query * scale_of_key

    def _unscaled(self, source: _Source) -> tuple[_Source, float]:
        """A tensor that is scaled before its axes are permuted and reshaped, and the factor."""
        expr: Any = source.expr
        steps: list[Any] = []
        while any(calls_op(value := self._value(expr), name) for name in (_RESHAPE, _PERMUTATION)):
            steps.insert(0, value)
            expr = value.args[0]
        if not any(calls_op(value, name) for name in ("relax.multiply", "relax.divide")):
            return source, 1.0
        try:
            expr, factor = self._scaled(value)
        except _NoMatch:
            return source, 1.0
        return replace(source, expr=expr, steps=(*steps, *source.steps)), factor

    def _before(self, expr: Any, looks_through: Callable[[Any], bool]) -> tuple[Any, float]:
        """A tensor before reshapes of some kind and scales, and what it is scaled by."""
        scale = 1.0
        while isinstance(expr, relax.Var):
            value = self._value(expr)
            if calls_op(value, _RESHAPE) and looks_through(value):
                expr = value.args[0]
            elif calls_op(value, "relax.multiply") or calls_op(value, "relax.divide"):
                try:
                    expr, factor = self._scaled(value)
                except _NoMatch:
                    break
                scale *= factor
            else:
                break
        return expr, scale

    def _rows(self, expr: Any) -> tuple[Any, float]:
        """A tensor with the same rows, and what these are scaled by."""

        def looks_through(reshape: Any) -> bool:
            makes_heads = _rank(reshape) == 4 and _rank(reshape.args[0]) != 4
            return _keeps_rows(reshape) and not makes_heads

        return self._before(expr, looks_through)

    def _leading(self, expr: Any) -> Any:
        """A tensor of which only leading axes were reshaped."""
        while isinstance(expr, relax.Var) and _rank(expr) != 4:
            value = self._value(expr)
            if not (calls_op(value, "relax.reshape") and _keeps_matrices(value)):
                break
            expr = value.args[0]
        return expr

    def _transposed(self, expr: Any, reshapes: bool = True) -> tuple[_Source, float]:
        """Keys whose transposed matrices are given, and what they are scaled by."""

        def looks_through(reshape: Any) -> bool:
            return reshapes and _keeps_matrices(reshape) and _rank(reshape) != 4

        expr, scale = self._before(expr, looks_through)
        shape = type_shape(expr.ty)
        axes = list(range(len(shape)))
        value = self._value(expr)
        if calls_op(value, "relax.permute_dims"):
            axes = axes_of_permutation(value)
            expr = value.args[0]
        axes[-1], axes[-2] = axes[-2], axes[-1]
        return _Source(expr, [*shape[:-2], shape[-1], shape[-2]], axes), scale

    def _shared_heads(self, key: _Source, value: _Source) -> tuple[_Source, _Source]:
        """Keys and values before they were repeated for groups of heads, if both were."""
        before = [self._before_repetition(source) for source in (key, value)]
        if any(source is None for source in before):
            return key, value
        k, v = before
        assert k is not None and v is not None
        return (k, v) if k.shape[1] == v.shape[1] else (key, value)

    def _before_repetition(self, source: _Source) -> _Source | None:
        """A tensor whose heads are repeated in a row; None if it is no such repetition."""
        plain = source.axes is None or source.axes == sorted(source.axes)
        if not plain or not isinstance(source.expr, relax.Var):
            return None
        batch, heads, length, features = source.shape
        value = self._value(source.expr)
        if calls_op(value, "relax.repeat") and value.attrs.axis is not None:
            if int(value.attrs.axis) % 4 == 1:
                return _Source(value.args[0], type_shape(value.args[0].ty))
            return None
        if not calls_op(value, "relax.reshape"):
            return None
        spread = type_shape(value.args[0].ty)
        repeated = self._value(value.args[0])
        if len(spread) != 5 or not calls_op(repeated, "relax.broadcast_to"):
            return None
        shared, group = spread[1:3]
        narrow = type_shape(repeated.args[0].ty)
        fits = spread == [batch, shared, group, length, features] and shared * group == heads
        if not fits or narrow != [batch, shared, 1, length, features]:
            return None
        shape = [batch, shared, length, features]
        expr = repeated.args[0]
        inner = self._value(expr)
        inserts = calls_op(inner, "relax.reshape") or calls_op(inner, "relax.expand_dims")
        if inserts and type_shape(inner.args[0].ty) == shape:
            expr = inner.args[0]
        return _Source(expr, shape)

    # Masks.

    def _masks(
        self, scores: _Scores, shape: list[int], guards: list[Any]
    ) -> tuple[list[_Source], list[tuple[_Source, bool]], str]:
        """Biases, conditions and the causal order that scores of a shape have."""
        biases: list[_Source] = []
        masks: list[tuple[_Source, bool]] = []
        allowed: np.ndarray | None = None
        is_finite = False
        unguarded = list(guards)
        for added, at in scores.biases:
            expr = self._without_casts(added)
            source = _as_rank_4(expr, at, shape)
            _require(expr not in self._active and is_float(str(expr.ty.dtype)))
            value = constant_value(expr, self._bound, self._memo)
            bias = None if value is None else value.astype("float64").reshape(source.shape)
            mask = None if bias is None else _as_mask(bias)
            if mask is None or bias is None:
                _require(self._is_precise(source))
                biases.append(source)
            else:
                is_finite |= not bool(np.isneginf(bias[~mask]).all())
                allowed = mask if allowed is None else allowed & mask
        for condition, at, allows, fill in scores.masks:
            source = _as_rank_4(condition, at, shape)
            value = constant_value(condition, self._bound, self._memo)
            is_guarded = any(allows and condition.same_as(guard) for guard in guards)
            unguarded = [guard for guard in unguarded if not (allows and condition.same_as(guard))]
            if value is None:
                _require(is_guarded or fill == -math.inf)
                masks.append((source, allows))
                continue
            mask = value.reshape(source.shape) == allows
            is_finite |= not is_guarded and fill != -math.inf
            allowed = mask if allowed is None else allowed & mask
        _require(not unguarded)
        # Of a row whose scores are all low the weights are not zero; so what is finite excludes
        # keys only where others are left, which biases and conditions might exclude.
        if is_finite:
            _require(not biases and not masks and allowed is not None)
            _require(bool(np.broadcast_to(allowed, shape).any(axis=-1).all()))  # type: ignore[arg-type]
        causal = NOT_CAUSAL
        if allowed is not None and not allowed.all():
            causal = _causality(allowed, shape)
            if not causal:
                constant = np.where(allowed, 0.0, -math.inf).astype("float32")
                biases.append(_Source(relax.const(constant, "float32"), list(constant.shape)))
        return biases, masks, causal

    def _is_precise(self, bias: _Source) -> bool:
        """Whether a bias leaves the scores their digits: it is zero, −∞ or small.

        What is kept of a row is the logarithm of its sum, whose digits are those of the largest
        score; a finite bias of −1e9 in a whole row would leave none for the gradient.
        """
        value = constant_value(bias.expr, self._bound, self._memo)
        if value is not None:
            finite = value[~np.isneginf(value)].astype("float64")
            return bool((np.abs(finite) <= _MOST_BIAS).all())
        expr = bias.expr
        while isinstance(expr, relax.Var):
            made = self._value(expr)
            if any(calls_op(made, f"relax.{name}") for name in _RELABELING):
                expr = made.args[0]
            else:
                choice = made.args[1:] if calls_op(made, "relax.where") else []
                return bool(choice) and all(self._number(c) in (0.0, -math.inf) for c in choice)
        return False

    def _without_casts(self, expr: Any) -> Any:
        """An expression before it was cast from one float to another."""
        while isinstance(expr, relax.Var):
            value = self._value(expr)
            if not calls_op(value, "relax.astype") or not is_float(str(value.args[0].ty.dtype)):
                break
            expr = value.args[0]
        return expr

    # What all have in common.

    def _value(self, expr: Any) -> Any:
        """What a variable is bound to; None for a parameter, or what is no variable."""
        while isinstance(expr, relax.Var):
            expr = self._bound.get(expr)
        return expr

    def _inside(self, expr: Any, inner: list[Any]) -> Any:
        """What a variable is bound to, which becomes one of `inner`; other names are followed."""
        while True:
            _require(isinstance(expr, relax.Var) and expr in self._bound)
            inner.append(expr)
            expr = self._bound[expr]
            if not isinstance(expr, relax.Var):
                return expr

    def _check_private(self, inner: set[Any], result: Any) -> None:
        """Raise unless nothing but `inner` and the result reads what is inside."""
        reads = Counter(var for each in (*inner, result) for var in variables_in(self._bound[each]))
        for var in inner:
            _require(var not in self._visible and self._readers[var] == reads[var])

    def _number(self, expr: Any) -> float | None:
        """The number that a tensor of known, equal elements consists of; None if it is none."""
        casts = []
        while isinstance(expr, relax.Var):
            value = self._value(expr)
            if calls_op(value, "relax.astype"):
                casts.append(str(value.ty.dtype))
            elif not calls_op(value, "relax.broadcast_to"):
                break
            expr = value.args[0]
        if not isinstance(expr, tvm.ir.GenericConst) or expr.value.numpy().size != 1:
            return None
        number = expr.value.numpy().reshape(())
        with np.errstate(over="ignore"):
            for dtype in reversed(casts):
                number = number.astype(np.dtype(dtype))
        return float(number)

    def _is_number(self, expr: Any, number: float) -> bool:
        return self._number(expr) == number


def _has_shape(expr: Any) -> bool:
    """Whether the shape of a tensor is written in its type; of what is no tensor there is none."""
    ty = getattr(expr, "ty", None)
    return not isinstance(ty, relax.TensorType) or has_shape(ty)


def _rank(expr: Any) -> int:
    return len(type_shape(expr.ty))


def _require(condition: bool) -> None:
    if not condition:
        raise _NoMatch


def _keeps_rows(reshape: Any) -> bool:
    """Whether a reshape leaves the last axis as it is, so that rows stay rows."""
    before, after = type_shape(reshape.args[0].ty), type_shape(reshape.ty)
    if not before or not after or not all(isinstance(n, int) for n in (*before, *after)):
        return False
    return bool(before[-1] == after[-1])


def _keeps_matrices(reshape: Any) -> bool:
    """Whether a reshape leaves the last two axes as they are."""
    before, after = type_shape(reshape.args[0].ty), type_shape(reshape.ty)
    known = all(isinstance(n, int) for n in (*before, *after))
    return known and len(before) > 1 and before[-2:] == after[-2:]


def _as_rank_4(expr: Any, at: list[Any], shape: list[int]) -> _Source:
    """A tensor that broadcasts against scores, where these have the shape `at`.

    Raises
    ------
    _NoMatch
        It does not where they have their own shape, (batch, heads, queries, keys).
    """
    given = type_shape(expr.ty)
    _require(all(isinstance(extent, int) for extent in given))
    if at == shape:
        padded = [1] * (4 - len(given)) + given
    else:
        _require(shape[1] == 1 and at == [shape[0], *shape[2:]])
        padded = [1] * (3 - len(given)) + given
        padded.insert(1, 1)
    _require(len(padded) == 4 and all(n in (1, m) for n, m in zip(padded, shape, strict=True)))
    return _Source(expr, padded)


def _as_mask(bias: np.ndarray) -> np.ndarray | None:
    """Where a bias is zero, if it is as low as a mask elsewhere; None if it is no mask."""
    allowed = bias == 0
    return allowed if bool((allowed | (bias <= _LOW)).all()) else None


def _causality(allowed: np.ndarray, shape: list[int]) -> str:
    """The causal order that a mask is; `NOT_CAUSAL` if it is none."""
    if allowed.shape[0] != 1 or allowed.shape[1] != 1:
        return NOT_CAUSAL
    queries, keys = shape[2:]
    matrix = np.broadcast_to(allowed, [1, 1, queries, keys])[0, 0]
    for causal, offset in ((TOP_LEFT, 0), (BOTTOM_RIGHT, keys - queries)):
        if np.array_equal(matrix, np.tri(queries, keys, offset, dtype=bool)):
            return causal
    return NOT_CAUSAL
