"""Inverted index maps against enumeration: each element's readers, each once, and no others."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback.indices.index_system import Axis, Inversion, NotAffineError, invert
from graphgrad.fallback.reductions.reduce import stage_axes
from graphgrad.fallback.walk import identity
from tests.fallback.integers import integer, points, readers

div, mod = tirx.floordiv, tirx.floormod


def axis(name, extent, low=0, dtype="int32"):
    def bound(value):
        return tirx.const(value, dtype) if isinstance(value, int) else value

    return Axis(te.var(name, dtype), bound(low), bound(extent))


def check(indices, axes, element, position=None, equations=(), sizes=()) -> Inversion:
    """Invert, and run the loops of the inversion for every element."""
    inversion = invert(indices, axes, element, position, equations)
    places = [e.var for e in element] if position is None else position
    known = {identity(size): value for size, value in sizes}
    expected: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for point in points(axes, known):
        if all(integer(condition, point) for condition in equations):
            at = tuple(int(integer(index, point)) for index in indices)
            expected.setdefault(at, []).append(tuple(point[identity(a.var)] for a in axes))
    for point in points(element, known):
        at = tuple(int(integer(place, point)) for place in places)
        given = readers(inversion, axes, point)
        assert sorted(given) == sorted(expected.get(at, [])), f"element {at} with {sizes}"
    return inversion


def random_index(generator, axes):
    """A sum of multiples of variables, of quotients and remainders of such sums."""

    def linear():
        total = tirx.const(int(generator.integers(-3, 4)), "int32")
        for number in generator.choice(len(axes), generator.integers(1, len(axes) + 1), False):
            total = total + axes[number].var * int(generator.choice([1, 1, 2, 3, -1, -2]))
        return total

    index = linear()
    for _ in range(generator.integers(0, 3)):
        part = (div, mod)[generator.integers(2)](linear(), int(generator.integers(2, 6)))
        index = index + part * int(generator.choice([1, 2, -1]))
    return index


def random_conditions(generator, axes):
    if generator.random() < 0.6:
        return []
    e = random_index(generator, axes)
    total = axes[0].var + axes[-1].var
    zero, one = tirx.const(0, str(e.ty)), tirx.const(1, str(e.ty))
    return [
        [tirx.EQ(mod(e, 2), zero)],
        [tirx.EQ(e, one)],
        [e >= 0, e < 4],
        [tirx.EQ(mod(total, 3), tirx.const(0, str(total.ty))), axes[0].var >= 1],
        [tirx.NE(e, zero)],
    ][generator.integers(5)]


@pytest.mark.parametrize("block", range(4))
def test_random_systems(block):
    for seed in range(100 * block, 100 * (block + 1)):
        generator = np.random.default_rng(seed)
        dtypes = ["int32", "int64"][: 1 + (seed % 4 == 0)]
        axes = [
            axis(
                f"i{n}",
                int(generator.integers(1, 6)),
                int(generator.integers(-2, 3)),
                dtypes[n % len(dtypes)],
            )
            for n in range(generator.integers(1, 4))
        ]
        indices = [random_index(generator, axes) for _ in range(generator.integers(1, 3))]
        conditions = random_conditions(generator, axes)
        element = [axis(f"x{n}", 7, -2, dtypes[-1]) for n in range(len(indices))]
        position = None
        if generator.random() < 0.3:
            position = [2 * e.var + int(generator.integers(2)) for e in element]
        check(indices, axes, element, position, conditions)


N, M, K = te.var("n"), te.var("m"), te.var("k")
SIZES = [[(N, n), (M, m), (K, k)] for n, m, k in itertools.product((0, 1, 3), (0, 1, 2), (1, 2))]


def flattened(i, j, l_):
    return [(i.var * M + j.var) * K + l_.var], [i, j, l_], [axis("x", N * M * K)], 0


def flattened_elsewhere(i, j, l_):
    return [i.var * M + j.var], [i, j], [axis("x", 5)], 2


def flipped(i, j, l_):
    return [(N - 1 - i.var) * M + (M - 1 - j.var)], [i, j], [axis("x", N * M)], None


def taken_apart(i, j, l_):
    x = axis("x", N * M)
    return [div(x.var, M), mod(x.var, M)], [x], [axis("a", N), axis("b", M)], 0


def reshaped(i, j, l_):
    q = axis("q", M * K)
    flat = i.var * (M * K) + q.var
    at = [mod(div(div(flat, K), M), N), mod(div(flat, K), M), mod(flat, K)]
    return at, [i, q], [axis("a", N), axis("b", M), axis("c", K)], 0


def tiled(i, j, l_):
    x = axis("x", N * M)
    return [mod(x.var, M)], [x], [axis("b", M)], 0


def halved(i, j, l_):
    return [div(i.var, 2), mod(i.var, 2)], [i], [axis("a", div(N + 1, 2)), axis("b", 2)], 1


def strided_window(i, j, l_):
    r = axis("r", 3)
    return [i.var * 2 + r.var - 1], [i, r], [axis("x", 2 * N)], None


def convolution_of_two_sizes(i, j, l_):
    return [i.var + j.var], [i, j], [axis("x", N + M - 1)], None


def triangle(i, j, l_):
    t = axis("t", i.var + 1)
    return [t.var], [i, t], [axis("x", N)], None


@pytest.mark.parametrize(
    "system",
    [
        flattened, flattened_elsewhere, flipped, taken_apart, reshaped, tiled, halved,
        strided_window, convolution_of_two_sizes, triangle,
    ],
    ids=lambda system: system.__name__,
)  # fmt: skip
def test_sizes_known_only_at_run_time(system):
    i, j, l_ = axis("i", N), axis("j", M), axis("l", K)
    indices, axes, element, guards = system(i, j, l_)
    for sizes in SIZES:
        inversion = check(indices, axes, element, sizes=sizes)
    if guards is not None:
        assert len(inversion.guards) == guards


def random_symbolic_index(generator, axes):
    """Flattened variables, by sizes, perhaps taken apart again."""
    index = tirx.const(int(generator.integers(0, 2)), "int32")
    for i in axes:
        factors = [1, 1, M, K, M * K, 2, -1]
        index = index + i.var * factors[generator.integers(len(factors))]
    if generator.random() < 0.5:
        by = [M, K, M * K, tirx.const(2, "int32")][generator.integers(4)]
        index = (div, mod)[generator.integers(2)](index, by)
    return index


@pytest.mark.parametrize("block", range(3))
def test_random_systems_of_sizes_known_at_run_time(block):
    solved = 0
    for seed in range(70 * block, 70 * (block + 1)):
        generator = np.random.default_rng(seed)
        extents = [N, M, K, M * K, 3]
        axes = [
            axis(f"i{n}", extents[generator.integers(len(extents))])
            for n in range(generator.integers(1, 4))
        ]
        indices = [random_symbolic_index(generator, axes) for _ in range(generator.integers(1, 3))]
        element = [
            axis(f"x{n}", (N * M, M, K, 5)[generator.integers(4)]) for n in range(len(indices))
        ]
        try:
            invert(indices, axes, element)
        except NotAffineError:
            continue
        solved += 1
        for values in ((0, 2, 1), (2, 0, 1), (2, 1, 2), (3, 2, 2), (1, 3, 0)):
            sizes = list(zip((N, M, K), values, strict=True))
            if is_defined(indices, axes, sizes):
                check(indices, axes, element, sizes=sizes)
    assert solved > 10


def is_defined(indices, axes, sizes):
    """Whether no index divides by zero."""
    try:
        for point in points(axes, {identity(size): value for size, value in sizes}):
            for index in indices:
                integer(index, point)
    except FloatingPointError:
        return False
    return True


def test_a_range_that_depends_on_an_outer_loop():
    i = axis("i", 5)
    j = axis("j", i.var + 1)
    check([j.var], [i, j], [axis("x", 6)])
    check([i.var - j.var], [i, j], [axis("x", 6)])
    start = div(i.var * 7, 3)
    r = axis("r", div((i.var + 1) * 7 + 2, 3) - start)
    check([start + r.var], [i, r], [axis("x", 12)])
    with pytest.raises(NotAffineError):
        invert([j.var], [j, i], [axis("x", 6)])


def test_a_range_that_starts_at_a_quotient_of_an_outer_loop():
    i = axis("i", 5)
    low = div(i.var, 2)
    j = Axis(te.var("j", "int32"), low, i.var + 1 - low)
    check([i.var, j.var], [i, j], [axis("x", 5), axis("y", 6)])
    check([j.var - i.var + 5], [i, j], [axis("x", 6)])


def test_widths_of_integers_mix():
    i, j = axis("i", 4, dtype="int64"), axis("j", 3)
    index = i.var * 3 + j.var.astype("int64")
    for dtype in ("int32", "int64"):
        inversion = check([index], [i, j], [axis("x", 12, dtype=dtype)])
        assert [str(value.ty) for value in inversion.values] == ["int64", "int32"]


def narrowed(var):
    """Return an int64 loop behind casts that TVM does not see through."""
    return var.astype("int32").astype("int64")


@pytest.mark.parametrize(
    "canceled",
    [
        pytest.param(lambda i, n: div(narrowed(i) * 2 - i * 2, 3), id="constant"),
        pytest.param(lambda i, n: div(narrowed(i) - i + n, 2), id="size"),
        pytest.param(lambda i, n: div(narrowed(i) - i + 7, n) - 7, id="by size"),
        pytest.param(lambda i, n: tirx.max(i - narrowed(i) + n, 2), id="greatest"),
        pytest.param(
            lambda i, n: tirx.Select(narrowed(i) - i + n > 2, n, tirx.const(1, "int64")),
            id="choice",
        ),
        pytest.param(
            lambda i, n: ((narrowed(i) - i + n).astype("int16") * 3).astype("int64"),
            id="other dtype",
        ),
    ],
)
def test_loops_that_cancel_in_a_part_of_an_index_are_no_parameters(canceled):
    """The inversion named the loop that it replaces."""
    i, n = axis("i", 4, dtype="int64"), te.var("n", "int64")
    index = i.var + canceled(i.var, n) + 7
    for size in (1, 2, 5):
        check([index], [i], [axis("x", 20, dtype="int64")], sizes=[(n, size)])


def test_a_loop_of_long_integers_may_start_at_a_short_zero():
    shape = (tirx.const(1, "int64"), tirx.const(4, "int64"))
    stage = te.compute(shape, lambda i, j: (i + j).astype("float32"))
    i, j = stage_axes(stage.op)
    check([tirx.max(i.var, 0) + j.var], [i, j], [axis("x", 6, dtype="int64")])


def test_a_range_that_is_read_from_a_tensor_is_refused():
    counts = te.placeholder((4,), "int32", name="counts")
    i = axis("i", 4)
    with pytest.raises(NotAffineError):
        invert([i.var], [i, axis("j", counts(i.var))], [axis("x", 4)])


def test_shifts_and_masks_are_quotients_and_remainders():
    i = axis("i", 13)
    inversion = check([i.var >> 2, i.var & 3], [i], [axis("a", 4), axis("b", 4)])
    assert not inversion.loops
    check([(i.var << 1) + 1], [i], [axis("a", 30)])


def test_truncated_division_where_it_is_floor():
    i = axis("i", 13)
    check([tirx.truncdiv(i.var, 3)], [i], [axis("a", 6)])
    with pytest.raises(NotAffineError):
        invert([tirx.truncdiv(i.var - 5, 3)], [i], [axis("a", 6)])


@pytest.mark.parametrize("residue_class", [0, 1])
def test_residue_classes_of_a_strided_convolution_compute_no_remainder(residue_class):
    h, r, y = axis("h", 6), axis("r", 3), axis("y", 6)
    index = 2 * h.var + r.var - 1
    assert [by for _, by in check([index], [h, r], [axis("x", 12)]).residues] == [2]
    inversion = check([index], [h, r], [y], [2 * y.var + residue_class])
    assert inversion.residues == []
    assert [int(loop.extent) for loop in inversion.loops] == ([2] if residue_class else [])


def test_loops_are_in_the_order_of_the_axes_and_run_with_the_element():
    k, h, r = axis("k", 4), axis("h", 9), axis("r", 3)
    inversion = check([h.var + r.var - 1], [r, h, k], [axis("x", 9)])
    assert [str(loop.var.name) for loop in inversion.loops] == ["r", "k"]
    loop = inversion.loops[0].var
    (slope, *_) = tvm.sym.detect_linear_equation(inversion.values[1], [loop])
    assert int(slope) == 1


def test_an_equation_of_a_transposed_convolution_bounds_its_quotient():
    x, r = axis("x", 13), axis("r", 3)
    even = tirx.EQ(mod(x.var + r.var - 1, 2), 0)
    inside = [x.var + r.var - 1 >= 0, x.var + r.var - 1 < 13]
    inversion = check([2 - r.var], [x, r], [axis("i", 3)], equations=[even, *inside])
    assert (inversion.residues, [int(loop.extent) for loop in inversion.loops]) == ([], [7])
    position = check([div(x.var + r.var - 1, 2)], [x, r], [axis("i", 7)], equations=[even])
    assert (position.residues, [int(loop.extent) for loop in position.loops]) == ([], [3])


def test_elements_that_nothing_reads():
    i, y = axis("i", 4), axis("y", 3)
    inversion = check([i.var * 2], [i], [y], [2 * y.var + 1])
    assert inversion.loops == []
    (guard,) = inversion.guards
    assert int(guard) == 0


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(lambda i: i * i, id="square"),
        pytest.param(lambda i: tirx.min(i, 3), id="minimum"),
        pytest.param(lambda i: div(i, te.var("unknown") - 3), id="divisor of unknown sign"),
        pytest.param(lambda i: tirx.floor(i.astype("float32") * 0.3).astype("int32"), id="float"),
        pytest.param(te.placeholder((9,), "int32"), id="data"),
        pytest.param(lambda i: (i.astype("int8") * 100).astype("int32"), id="narrow integers"),
    ],
)
def test_what_is_not_affine_is_refused(index):
    i = axis("i", 9)
    with pytest.raises(NotAffineError):
        invert([index(i.var)], [i], [axis("x", 9)])
