"""Rules of gathers, scatters and sorting: an index has no cotangent, a value goes back through it.

Positions and what points outside are the subject of `graphgrad.ops.indexing`.
"""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor, accumulator_dtype, broadcast_shape
from ..ops import functional as op
from ..ops.index import gather_at, scatter_add, scatter_recurrence, scatter_swap
from ..ops.indexing import Indexing
from .rule import composite, nondifferentiable, register_gradient
from .sample import Sample, TensorArgument, sample, static, tensor


def _index(shape: tuple[Any, ...], low: int, high: int, dtype: str = "int64") -> TensorArgument:
    return tensor(shape, low, high, dtype=dtype)


@register_gradient(
    "relax.take",
    samples=[
        sample((4,), _index((6,), 0, 4)),
        sample((3, 4), _index((5,), -3, 3), axis=0),
        sample((3, 4), _index((2, 3), 0, 4, "int32"), axis=-1),
        sample((2, 3, 4), _index((2, 2), -3, 3), axis=1),
        sample((3, 4), _index((), 0, 3), axis=0),
        sample((3, 4), _index((0,), 0, 3), axis=0),
        sample(("n", 4), _index((5,), 0, 3), axis=0),
        sample((3, "n"), _index(("m",), 0, 3), axis=0),
        sample((3, 4), _index((5,), -7, 8), axis=1, mode="wrap"),
        sample((3, 4), _index((5,), -7, 8), axis=1, mode="clip"),
        sample((3, 4), _index((5,), 0, 4), axis=1, mode="nan"),
    ],
)
def take(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """x̄ = Σ of ȳ over the places to which the element was taken"""
    (x, index), (ct,) = inputs, cotangents
    axis = 0 if attrs.axis is None else attrs.axis % x.ndim
    return scatter_add(ct, index, x.shape, Indexing("take", axis, attrs.mode)), None


@register_gradient(
    "relax.gather_elements",
    samples=[
        sample((3, 4), _index((5, 4), -3, 3), axis=0),
        sample((3, 4), _index((2, 6), 0, 4, "int32"), axis=-1),
        sample((2, 3, 4), _index((1, 5, 2), -3, 3), axis=1),
        sample((4,), _index((6,), 0, 4), axis=0),
        sample(("n", 4), _index(("n", 3), 0, 4), axis=1),
        sample((3, 4), _index((0, 4), 0, 3), axis=0),
    ],
)
def gather_elements(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """x̄ = Σ of ȳ over the places to which the element was gathered"""
    (x, index), (ct,) = inputs, cotangents
    return scatter_add(ct, index, x.shape, Indexing("elements", attrs.axis % x.ndim)), None


@register_gradient(
    "relax.gather_nd",
    samples=[
        sample((3, 4), _index((5, 2), 0, 3)),
        sample((3, 4), _index((2, 5, 1), -3, 3)),
        sample((2, 3, 4), _index((2, 4, 1), -3, 3), batch_dims=1),
        sample((2, 3, 4, 2), _index((2, 3, 2), -2, 2), batch_dims=2),
        sample((3, 4), _index((1,), 0, 3)),
        sample(("n", 3, 2), _index(("n", 1), 0, 3), batch_dims=1),
    ],
)
def gather_nd(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """x̄ = Σ of ȳ over the places to which the element was gathered"""
    (x, index), (ct,) = inputs, cotangents
    return scatter_add(ct, index, x.shape, Indexing("nd", attrs.batch_dims)), None


@register_gradient(
    "relax.index_tensor",
    samples=[
        sample((3, 4), [_index((5,), -3, 3)]),
        sample((3, 4), [_index((5,), 0, 3), _index((5,), -4, 4, "int32")]),
        sample((3, 4, 2), [_index((2, 1), 0, 3), _index((3,), 0, 4)]),
        sample((3, 4), [_index((), 0, 3), _index((2,), 0, 4)]),
        sample(("n", 4), [_index((5,), 0, 3)]),
    ],
)
def index_tensor(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """x̄ = Σ of ȳ over the places to which the element was taken"""
    (x, indices), (ct,) = inputs, cotangents
    return scatter_add(ct, _coordinates(indices), x.shape, Indexing("nd", 0)), None


def _coordinates(indices: list[Tensor]) -> Tensor:
    """Index tensors, broadcast, as coordinates along a last axis."""
    shape: list[Any] = []
    for index in indices:
        shape = broadcast_shape(shape, index.shape)
    broadcast = [op.broadcast_to(index.astype("int64"), shape) for index in indices]
    return op.concat([op.expand_dims(index, [-1]) for index in broadcast], axis=-1)


def _scatter(
    indexing: Indexing,
    reduction: str,
    inputs: tuple[Tensor, Tensor, Tensor],
    y: Tensor,
    ct: Tensor,
) -> tuple[Tensor, Tensor]:
    """The cotangents of a scatter's data and updates."""
    x, index, u = inputs
    if reduction == "add":
        return ct, gather_at(ct, index, indexing)
    zeros = ct.emitter.full(0.0, u.shape, u.dtype)
    if reduction == "update":
        # Backwards, the last update of a position meets ȳ first; all before it find its zero.
        u_bar, x_bar = scatter_swap(ct, zeros, index, indexing, reverse=True)
        return x_bar, u_bar
    if reduction == "mul":
        before, _ = scatter_recurrence(x, u, zeros, index, indexing, reverse=False)
        after, x_bar = scatter_recurrence(ct, u, zeros, index, indexing, reverse=True)
        return x_bar, after * before
    # "min" and "max": the data and the updates that equal the result share its cotangent.
    x_hit = op.equal(x, y)
    u_hit = op.equal(u, gather_at(y, index, indexing))
    hits = scatter_add(op.widen(u_hit.astype(u.dtype)), index, x.shape, indexing)
    share = op.widen(ct) / (hits + op.widen(x_hit.astype(x.dtype)))
    return op.where(x_hit, share, 0.0), op.where(u_hit, gather_at(share, index, indexing), 0.0)


_REDUCTIONS = ("update", "add", "mul", "min", "max")


def _scatter_samples(
    data: Any, index: TensorArgument, updates: tuple[Any, ...], reductions: Any, **attributes: Any
) -> list[Sample]:
    def values(reduction: str, shape: Any, low: float) -> TensorArgument:
        # Data and updates are interleaved: no ties.
        return tensor(shape, low, distinct=True) if reduction in ("min", "max") else tensor(shape)

    return [
        sample(
            values(reduction, data, -0.6),
            index,
            values(reduction, updates, -0.63),
            reduction=reduction,
            **attributes,
        )
        for reduction in reductions
    ]


@register_gradient(
    "relax.scatter_elements",
    samples=[
        *_scatter_samples((3, 4), _index((5, 4), -3, 3), (5, 4), (*_REDUCTIONS, "mean"), axis=0),
        *_scatter_samples((3, 4), _index((2, 3), 0, 4, "int32"), (2, 3), _REDUCTIONS, axis=-1),
        *_scatter_samples((2, 3, 2), _index((1, 4, 2), 0, 3), (1, 4, 2), ("update", "mul"), axis=1),
        *_scatter_samples(("n", 4), _index(("n", 6), 0, 4), ("n", 6), ("update", "max"), axis=1),
        *_scatter_samples((3, 4), _index((0, 4), 0, 3), (0, 4), ("update", "max"), axis=0),
    ],
)
def scatter_elements(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """To data and updates: ȳ for "add", ȳ to the last for "update", ȳ Π of the others for "mul"

    For "min" and "max" the hits share ȳ equally; "mean" divides the sum by 1 + the number of
    updates.
    """
    (x, index, u), (y,), (ct,) = inputs, outputs, cotangents
    indexing, reduction = Indexing("elements", attrs.axis % x.ndim), attrs.reduction
    if reduction == "mean":
        ones = ct.emitter.full(1.0, u.shape, accumulator_dtype(u.dtype))
        ct = op.widen(ct) / (scatter_add(ones, index, x.shape, indexing) + 1.0)
        reduction = "add"
    x_bar, u_bar = _scatter(indexing, reduction, (x, index, u), y, ct)
    return x_bar, None, u_bar


@register_gradient(
    "relax.scatter_nd",
    samples=[
        *_scatter_samples((3, 4), _index((6, 2), 0, 3), (6,), _REDUCTIONS),
        *_scatter_samples((3, 4), _index((2, 3, 1), -3, 3), (2, 3, 4), _REDUCTIONS),
        *_scatter_samples(("n", 3), _index((4, 1), 0, 3), (4, 3), ("update", "mul")),
    ],
)
def scatter_nd(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """As of scatter_elements"""
    (x, index, u), (y,), (ct,) = inputs, outputs, cotangents
    x_bar, u_bar = _scatter(Indexing("nd", 0), attrs.reduction, (x, index, u), y, ct)
    return x_bar, None, u_bar


@register_gradient(
    "relax.index_put",
    samples=[
        *(
            sample((3, 4), [_index((5,), -3, 3), _index((5,), 0, 4)], (5,), accumulate=accumulate)
            for accumulate in (False, True)
        ),
        *(
            sample(
                (3, 4), [_index((2, 1), 0, 3), _index((3,), 0, 4)], (2, 3), accumulate=accumulate
            )
            for accumulate in (False, True)
        ),
        sample((6,), [_index((4,), 0, 6)], (1,), accumulate=True),
        sample(("n",), [_index((4,), 0, 3)], (4,), accumulate=False),
        sample((6,), _index((4,), 0, 6), (4,), accumulate=False),
    ],
)
def index_put(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """To data and values: ȳ where accumulated, else ȳ to the last value put and to data kept"""
    (x, indices, values), (y,), (ct,) = inputs, outputs, cotangents
    index = _coordinates([indices] if isinstance(indices, Tensor) else indices)
    updates = op.broadcast_to(values, index.shape[:-1])
    reduction = "add" if attrs.accumulate else "update"
    x_bar, u_bar = _scatter(Indexing("nd", 0), reduction, (x, index, updates), y, ct)
    return x_bar, None, u_bar


_FORMS: list[tuple[tuple[int, ...], TensorArgument, dict[str, Any]]] = [
    ((2, 3, 4), _index((2, 3), -4, 3), {"form": "take", "axis": 0, "mode": "fast"}),
    ((3, 5), _index((5,), -7, 9), {"form": "take", "axis": 1, "mode": "wrap"}),
    ((5, 4), _index((5, 4), -4, 4), {"form": "elements", "axis": 0, "mode": "fast"}),
    ((3, 2), _index((3, 2, 1), 0, 4), {"form": "nd", "axis": 1, "mode": "fast"}),
    ((5,), _index((5, 2), 0, 3), {"form": "nd", "axis": 0, "mode": "fast"}),
]
"""Shape of what is gathered from data of shape (3, 4), and the index; some point outside."""


@register_gradient(
    "graphgrad.gather", samples=[sample((3, 4), index, **form) for _, index, form in _FORMS]
)
def gather(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """x̄ = Σ of ȳ over the places to which the element was gathered"""
    (x, index), (ct,) = inputs, cotangents
    return scatter_add(ct, index, x.shape, Indexing.of(attrs)), None


@register_gradient(
    "graphgrad.scatter_add",
    samples=[sample(shape, index, static((3, 4)), **form) for shape, index, form in _FORMS],
)
def scatter_add_rule(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """ū = x̄ at the position to which the update was added"""
    (_, index, _), (ct,) = inputs, cotangents
    return gather_at(ct, index, Indexing.of(attrs)), None, None


@register_gradient(
    "graphgrad.scatter_swap",
    samples=[
        sample((3, 4), shape, index, reverse=reverse, **form)
        for (shape, index, form), reverse in zip(_FORMS, [0, 1, 0, 1, 0], strict=True)
    ],
)
def swap(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """The same walk backwards, from the cotangent of what is left: v̄ is what it finds"""
    (_, _, index), (old, left) = inputs, cotangents
    v_bar, x_bar = scatter_swap(left, old, index, Indexing.of(attrs), not attrs.reverse)
    return x_bar, v_bar, None


@register_gradient(
    "graphgrad.scatter_recurrence",
    samples=[
        *(
            sample((3, 4), shape, shape, index, reverse=reverse, **form)
            for (shape, index, form), reverse in zip(_FORMS, [1, 0, 1, 0, 1], strict=True)
        ),
        sample((2, 1, 2), (2, 4, 2), (2, 4, 2), form="line", axis=1, mode="fast", reverse=0),
    ],
)
def recurrence(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """With s the same walk backwards, s ← a s + (h̄ found), from the h̄ left: b̄ = s, ā = s h"""
    (_, a, _, *index), (h, _), (old, left) = inputs, outputs, cotangents
    s, x_bar = scatter_recurrence(
        left, a, old, index[0] if index else None, Indexing.of(attrs), not attrs.reverse
    )
    return x_bar, s * h, s, *(None for _ in index)


@register_gradient(
    "relax.reverse_sequence",
    samples=[
        sample((2, 4, 3), tensor((2,), 0, 5, dtype="int64")),
        sample((4, 2), tensor((2,), 1, 5, dtype="int32"), seq_axis=0, batch_axis=-1),
        sample(("n", 4), tensor(("n",), 1, 5, dtype="int64"), seq_axis=-1, batch_axis=0),
    ],
)
def reverse_sequence(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, None]:
    """x̄ = ȳ with the same stretches reversed"""
    (_, lengths), (ct,) = inputs, cotangents
    return op.reverse_sequence(ct, lengths, attrs.seq_axis, attrs.batch_axis), None


def _distinct(shape: tuple[Any, ...]) -> TensorArgument:
    return tensor(shape, -0.6, distinct=True)


@composite(
    "relax.sort",
    samples=[
        sample(_distinct((5,))),
        sample(_distinct((3, 4)), axis=0, descending=True),
        sample(_distinct((2, 3, 4)), axis=1),
        sample(_distinct((3, 4)), axis=-1, descending=True),
        sample((0, 3), axis=0),
    ],
)
def sort(x: Tensor, attrs: Any) -> Tensor:
    """y = x gathered in the order of argsort"""
    order = op.argsort(x, attrs.axis, attrs.descending, "int64")
    return op.gather_elements(x, order, attrs.axis)


@composite(
    "relax.topk",
    samples=[
        sample(_distinct((5,)), k=2),
        sample(_distinct((3, 4)), k=2, axis=0, largest=False),
        sample(_distinct((2, 3, 4)), k=2, axis=1, ret_type="values"),
        sample(_distinct((3, 4)), k=4, axis=-1, dtype="int64"),
        sample(_distinct((3, 4)), k=-1, axis=-1),
        sample(_distinct(("n", 4)), k=3, axis=1),
    ],
)
def topk(x: Tensor, attrs: Any) -> Any:
    """y = x gathered at the first k of its order; the indices have no cotangent"""
    k, axis, largest = attrs.k, attrs.axis, attrs.largest
    index = op.topk(x, k, axis, "indices", largest, attrs.dtype)
    values = op.gather_elements(x, index, axis)
    return values if attrs.ret_type == "values" else [values, index]


nondifferentiable(
    "relax.argsort",
    "relax.bucketize",
    "relax.multinomial_from_uniform",
    "relax.nonzero",
    "relax.one_hot",
)
