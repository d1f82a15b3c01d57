"""Indices that choose: the pieces are affine, disjoint and complete."""

import numpy as np
import pytest
from tvm import te, tirx, topi

import graphgrad as gg
from graphgrad.fallback.contribution import Contribution
from graphgrad.fallback.forms.piecewise import affine_pieces
from graphgrad.fallback.graph import operations
from graphgrad.fallback.guarded import Guarded
from graphgrad.fallback.indices.index_system import Axis, invert
from graphgrad.fallback.walk import identity
from tests.fallback.index_maps import scaled
from tests.fallback.integers import integer, points, readers
from tests.fallback.interpreter import evaluate
from tests.labels import label

div, mod = tirx.floordiv, tirx.floormod


def axis(name, extent, low=0):
    return Axis(te.var(name), tirx.const(low, "int32"), tirx.const(extent, "int32"))


def contribution(axes, indices, conditions=()):
    tensor = te.placeholder((40,) * len(indices), name="T")
    value = Guarded((), tirx.const(1.0, "float32"))
    return Contribution(tensor, axes, indices, [value], list(conditions))


def check_partition(part, pieces):
    """Each point that counts is in one piece, with the same indices; no other point is in any."""
    seen = []
    for piece in pieces:
        for point in points(piece.axes, {}):
            if all(integer(condition, point) for condition in piece.conditions):
                seen.append(tuple(int(integer(e, point)) for e in _place(part, piece)))
    expected = [
        tuple(int(integer(e, point)) for e in _place(part, part))
        for point in points(part.axes, {})
        if all(integer(condition, point) for condition in part.conditions)
    ]
    assert sorted(seen) == sorted(expected)


def _place(part, piece):
    return [*(a.var for a in part.axes), *piece.indices]


def check_inversions(part, pieces, extent=12):
    """The pieces' readers of each element are, together, those of the whole."""
    expected: dict[int, list[tuple[int, ...]]] = {}
    for point in points(part.axes, {}):
        at = int(integer(part.indices[0], point))
        expected.setdefault(at, []).append(tuple(point[identity(a.var)] for a in part.axes))
    x = axis("x", extent, -2)
    inversions = [
        invert(piece.indices, piece.axes, [x], equations=piece.conditions) for piece in pieces
    ]
    for point in points([x], {}):
        at = point[identity(x.var)]
        given = [
            r
            for piece, i in zip(pieces, inversions, strict=True)
            for r in readers(i, piece.axes, point)
        ]
        assert sorted(given) == sorted(expected.get(at, []))


def clamped(i, j):
    return tirx.max(tirx.min(i - 1, 5), 0)


def mirrored(i, j):
    return tirx.if_then_else(i >= 9, 14 - i, tirx.if_then_else(i < 1, 1 - i, i - 1))


def mirrored_by_abs(i, j):
    return 6 - tirx.abs(6 - tirx.abs(i - 2))


def window_clipped(i, j):
    return tirx.min(tirx.max(2 * i + j - 1, 0), 7)


def two_conditions(i, j):
    return tirx.Select(tirx.all(i > 2, j < 2), i, j)


def either(i, j):
    return tirx.Select(tirx.any(tirx.EQ(i, 4), tirx.Not(j < 2)), i + j, 3)


def by_parity(i, j):
    return tirx.if_then_else(tirx.EQ(mod(i, 2), 0), div(i, 2), 5)


def not_equal(i, j):
    return tirx.if_then_else(tirx.NE(i, 3), i, j)


def inside_a_quotient(i, j):
    return div(tirx.min(i, 6) + j, 2)


CHOICES = [
    clamped, mirrored, mirrored_by_abs, window_clipped, two_conditions, either, by_parity,
    not_equal, inside_a_quotient,
]  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.__name__)
def test_pieces_are_affine_disjoint_and_complete(choice):
    i, j = axis("i", 11), axis("j", 3)
    part = contribution([i, j], [choice(i.var, j.var)])
    pieces = affine_pieces(part)
    assert len(pieces) > 1
    check_partition(part, pieces)
    check_inversions(part, pieces)


def random_choice(generator, axes, depth=2):
    """Nested choices between sums of variables, quotients and constants."""
    if depth == 0 or generator.random() < 0.2:
        i = axes[generator.integers(len(axes))].var
        j = axes[generator.integers(len(axes))].var
        offset = int(generator.integers(-2, 6))
        return [i + offset, offset - i, i + j, div(i + offset, 2), mod(i, 3) + j][
            generator.integers(5)
        ]
    a, b, c, d = (random_choice(generator, axes, depth - 1) for _ in range(4))
    return [
        lambda: tirx.min(a, b),
        lambda: tirx.max(a, b) - 1,
        lambda: tirx.abs(a),
        lambda: tirx.if_then_else(a < b, c, d),
        lambda: tirx.Select(tirx.all(a >= 1, tirx.Not(b > 2)), c, d),
        lambda: tirx.Select(tirx.any(tirx.EQ(a, 2), tirx.NE(mod(b, 2), 0)), c, d),
    ][generator.integers(6)]()


@pytest.mark.parametrize("block", range(2))
def test_random_choices(block):
    split = 0
    for seed in range(60 * block, 60 * (block + 1)):
        generator = np.random.default_rng(seed)
        axes = [
            axis(f"i{n}", int(generator.integers(2, 8)), int(generator.integers(-2, 3)))
            for n in range(2)
        ]
        part = contribution(axes, [random_choice(generator, axes)])
        pieces = affine_pieces(part)
        if pieces[0] is part:
            continue
        split += 1
        check_partition(part, pieces)
        check_inversions(part, pieces)
    assert split > 20


def test_conditions_of_the_contribution_leave_out_pieces():
    i, j = axis("i", 11), axis("j", 3)
    conditions = [i.var >= 1, i.var < 7]
    part = contribution([i, j], [clamped(i.var, j.var)], conditions)
    (piece,) = affine_pieces(part)
    assert (int(piece.axes[0].low), int(piece.axes[0].extent)) == (1, 6)
    check_partition(part, [piece])


def test_two_dimensions_have_the_product_of_the_pieces():
    i, j = axis("i", 8), axis("j", 8)
    part = contribution([i, j], [clamped(i.var, 0), clamped(j.var, 0)])
    pieces = affine_pieces(part)
    assert len(pieces) == 9
    check_partition(part, pieces)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(lambda i: i + 1, id="affine"),
        pytest.param(lambda i: tirx.min(i * i, 7), id="not affine in a piece"),
        pytest.param(lambda i: tirx.Select(te.placeholder((9,), "bool")(i), i, 0), id="data"),
        pytest.param(lambda i: sum(tirx.min(i, k) for k in range(1, 25)), id="too many"),
    ],
)
def test_what_is_not_split_is_left_as_it_is(index):
    i = axis("i", 30)
    part = contribution([i], [index(i.var)])
    (same,) = affine_pieces(part)
    assert same is part


def test_a_scaled_clamped_index_is_inverted():
    i = axis("i", 16)
    index = tirx.max(tirx.min(scaled(i.var, 0.5, 0.5), 7), 0)
    part = contribution([i], [index])
    pieces = affine_pieces(part)
    assert len(pieces) == 2
    expected = np.clip(np.floor((np.arange(16) + 0.5) * 0.5 - 0.5), 0, 7)
    x = axis("x", 8)
    for point in points([x], {}):
        given = [
            r[0]
            for piece in pieces
            for r in readers(
                invert(piece.indices, piece.axes, [x], equations=piece.conditions),
                piece.axes,
                point,
            )
        ]
        assert sorted(given) == list(np.flatnonzero(expected == point[identity(x.var)]))


def replicate_pad(x):
    def at(i):
        return tirx.max(tirx.min(i - 2, 4), 0)

    return te.compute((9, 9), lambda i, j: x[at(i), at(j)] * 2.0, name="y")


def mirror_pad(x):
    return topi.nn.mirror_pad(x, (1, 2), (2, 0))


def resized(method, shape):
    def build(x):
        box = [0.0, 0.0, float(int(x.shape[1])), float(int(x.shape[2]))]
        return topi.image.resize2d(x, box, shape, layout="NHWC", method=method, out_dtype="float64")

    build.__name__ = f"{method} {shape}"
    return build


GRADIENTS = [
    (replicate_pad, (5, 5)),
    (mirror_pad, (5, 5)),
    (resized("nearest_neighbor", (8, 12)), (1, 4, 4, 2)),
    (resized("linear", (8, 8)), (1, 4, 4, 2)),
    (resized("linear", (3, 3)), (1, 6, 6, 2)),
]


@pytest.mark.parametrize(("build", "shape"), GRADIENTS, ids=label)
def test_gradients_are_sums_over_pieces_and_no_scatter(build, shape):
    x = te.placeholder(shape, "float64", name="x")
    y = build(x)
    generator = np.random.default_rng(0)
    weights = generator.standard_normal([int(e) for e in y.shape])
    head = te.placeholder(y.shape, "float64", name="head")
    (gradient,) = gg.te_gradient(y, x, head)
    assert not any(isinstance(op, te.ExternOp) for op in operations(gradient))
    array = generator.standard_normal(shape)
    (given,) = evaluate([gradient], [(x, array), (head, weights)])
    direction = generator.standard_normal(shape)
    # The reads are linear, so a difference over any step is exact but for float32 inside.
    above, below = (evaluate([y], [(x, array + s * direction)])[0] for s in (1.0, -1.0))
    expected = ((above - below) * weights).sum() / 2
    assert abs((given * direction).sum() - expected) < 1e-5 * np.abs(given).sum()
