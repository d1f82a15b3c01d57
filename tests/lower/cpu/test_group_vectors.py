"""Sums and maps by groups whose members are neighbors go in vectors along all members."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi

import graphgrad as gg
from graphgrad.ir.kernel_structure import stages, stride
from graphgrad.ir.visits import visit_nodes
from graphgrad.lower.cpu.group_vectors import vectorize_groups
from graphgrad.lower.cpu.plain_indices import simplify_indices
from graphgrad.lower.pipeline import lower
from tests.labels import label
from tests.lower.kernel_programs import HOST, run, tensor
from tests.running import function
from tests.running import run as run_function

SHAPES = [
    *((2, 20, 21, 8, 8), (1, 40, 40, 3, 5), (3, 17, 13, 16, 2), (2, 31, 29, 2, 37)),
    *((5, 16, 9, 4, 16), (1, 64, 64, 7, 1), (2, 64, 65, 1, 7), (0, 64, 64, 4, 8)),
]
"""Batch, height, width, groups, members."""

FLOATS = ["float16", "float32", "float64"]


def images(shape, split, dtype="float32", name="x"):
    """Return images with channels last, and the element at a group's member, in one of two forms.

    Parameters
    ----------
    split : bool
        Whether groups and members are two axes.
    """
    n, h, w, groups, members = shape
    if split:
        x = tensor(*shape, dtype=dtype, name=name)
        return x, x
    x = tensor(n, h, w, groups * members, dtype=dtype, name=name)
    return x, lambda i, y, z, g, m: x(i, y, z, g * members + m)


def sums_by_group(shape, term, name="sums", dtype="float32"):
    n, h, w, groups, members = shape
    axes = [te.reduce_axis((0, e), f"k{i}_{name}") for i, e in enumerate((h, w, members))]
    y, z, m = axes

    def total(i, g):
        return te.sum(term(i, y, z, g, m).astype(dtype), axis=axes)

    return te.compute((n, groups), total, name=name)


def changed(inputs, outputs):
    """Return the stages of a kernel, before and behind."""
    func = simplify_indices(te.create_prim_func([*inputs, *outputs]))
    return stages(func), stages(vectorize_groups(func))


def is_smooth(stage):
    last = stage.spatial[-1].var
    return all(stride(access, last) in (0, 1) for access in (*stage.loads, *stage.stores))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=label)
def test_sums_from_a_first_element(shape, split):
    """The moments of a group norm: what is read by groups alone is laid out along the members."""
    x, at = images(shape, split)
    shift = tensor(shape[0], shape[3], name="shift", dtype="float64")

    def centered(i, y, z, g, m):
        return at(i, y, z, g, m).astype("float64") - shift(i, g)

    sums = sums_by_group(shape, centered, dtype="float64")
    squares = sums_by_group(
        shape, lambda *i: centered(*i) * centered(*i), name="squares", dtype="float64"
    )
    run([x, shift], [sums, squares]).agree()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(dtype, split):
    x, at = images((2, 20, 21, 8, 6), split, dtype)
    wide = "float32" if dtype == "float16" else dtype
    run([x], [sums_by_group((2, 20, 21, 8, 6), at, dtype=wide)]).agree()


@pytest.mark.parametrize("split", [False, True])
def test_a_sum_goes_by_members_first(split):
    x, at = images((2, 20, 21, 8, 8), split)
    (before,), (by_member, by_group) = changed([x], [sums_by_group((2, 20, 21, 8, 8), at)])
    assert not is_smooth(before)
    assert is_smooth(by_member)
    assert [axis.extent for axis in by_member.axes] == [2, 64, 20, 21]
    assert [axis.extent for axis in by_group.axes] == [2, 8, 8]


@pytest.mark.parametrize("reduce", [topi.max, topi.min, topi.sum, topi.prod])
def test_every_combiner(reduce):
    x = tensor(2, 20, 21, 8, 6)
    result = reduce(x, axis=[1, 2, 4])
    values = [np.random.default_rng(0).uniform(0.99, 1.01, (2, 20, 21, 8, 6)).astype("f4")]
    run([x], [result], values=values).agree()
    assert len(changed([x], [result])[1]) == 2


@pytest.mark.parametrize("shape", SHAPES, ids=label)
@pytest.mark.parametrize("split", [False, True])
def test_a_map_reads_statistics_along_the_channels(shape, split):
    n, h, w, groups, members = shape
    x, at = images(shape, split)
    mean, gamma = tensor(n, groups, name="mean"), tensor(groups * members, name="gamma")

    def element(i, y, z, c):
        value = at(i, y, z, c // members, c % members)
        return (value - mean(i, c // members)) * gamma(c)

    y = te.compute((n, h, w, groups * members), element, name="y")
    run([x, mean, gamma], [y]).agree()


@pytest.mark.parametrize("split", [False, True])
def test_a_map_is_smooth(split):
    x, at = images((2, 20, 21, 8, 8), split)
    mean = tensor(2, 8, name="mean")
    y = te.compute((2, 20, 21, 64), lambda i, y, z, c: at(i, y, z, c // 8, c % 8) - mean(i, c // 8))
    (before,), (laid_out, behind) = changed([x, mean], [y])
    assert not is_smooth(before)
    assert is_smooth(behind)
    assert [axis.extent for axis in laid_out.axes] == [2, 64]


def test_what_the_kernel_makes_keeps_its_bounds():
    """Memory of its own may become smaller than the axes say: it is not read beyond an end."""
    x = tensor(2, 20, 21, 8, 8)
    doubled = te.compute(x.shape, lambda *i: x(*i) * 2.0, name="doubled")
    flat = te.compute(
        (2, 20, 21, 64), lambda n, h, w, c: doubled(n, h, w, c // 8, c % 8), name="flat"
    )
    before, behind = changed([x], [doubled, flat])
    assert [s.name for s in behind] == [s.name for s in before]
    run([x], [doubled, flat]).agree()


@pytest.mark.parametrize(
    "index",
    [
        lambda n, h, w, c: (n, h, w // 2, c),
        lambda n, h, w, c: (n, h, w, c // 2),
        lambda n, h, w, c: (n, h, w, 63 - c),
    ],
    ids=["repeated rows", "repeated channels", "reversed"],
)
def test_maps_that_read_as_much_as_they_make_stay(index):
    x = tensor(2, 20, 21, 64)
    y = te.compute(x.shape, lambda *i: x(*index(*i)), name="y")
    before, behind = changed([x], [y])
    assert len(behind) == len(before)
    run([x], [y]).agree()


def test_conditional_reads_stay_where_they_are():
    x, mean = tensor(2, 20, 21, 64), tensor(2, 7, name="mean")

    def element(n, h, w, c):
        inside = tirx.if_then_else(c < 56, mean(n, c // 8), tirx.const(0, "float32"))
        return x(n, h, w, c) - inside

    y = te.compute(x.shape, element, name="y")
    before, behind = changed([x, mean], [y])
    assert len(behind) == len(before)
    run([x, mean], [y]).agree()


def test_reads_at_indices_that_are_read_stay():
    x, table = tensor(2, 20, 21, 64), tensor(100, name="table")
    places = tensor(8, dtype="int64", name="places")
    y = te.compute(
        x.shape, lambda n, h, w, c: x(n, h, w, c) - table(tirx.abs(places(c // 8))), name="y"
    )
    before, behind = changed([x, table, places], [y])
    assert len(behind) == len(before)
    run([x, table, places], [y]).agree()


def test_sums_of_rows_stay():
    """Rows side by side are no groups of something that is summed besides."""
    x = tensor(512, 64)
    before, behind = changed([x], [topi.sum(x, axis=1)])
    assert [s.name for s in behind] == [s.name for s in before]


@pytest.mark.parametrize("window", [2, 3])
def test_windows_that_meet_are_groups_of_too_few(window):
    x = tensor(4, 8, 20 * window, 20 * window)
    i, j = (te.reduce_axis((0, window)) for _ in range(2))
    y = te.compute(
        (4, 8, 20, 20),
        lambda n, c, h, w: te.sum(x(n, c, h * window + i, w * window + j), axis=[i, j]),
    )
    before, behind = changed([x], [y])
    assert len(behind) == len(before)
    run([x], [y]).agree()


def test_runs_give_the_same_bits():
    shape = (2, 20, 21, 8, 6)
    x, at = images(shape, split=True)
    results = [run([x], [sums_by_group(shape, at)]).scheduled[0] for _ in range(2)]
    assert results[0].tobytes() == results[1].tobytes()


def group_norm(shape, groups, dtype="float32", last=True):
    """Return a module of a group norm of images, with channels last or first, and its gradient."""
    axis, axes = (3, [1, 2]) if last else (1, [2, 3])
    channels = ((shape[axis],), dtype)
    build = function(
        lambda b, *x: b.emit(relax.op.nn.group_norm(*x, groups, axis, axes)),
        (shape, dtype),
        channels,
        channels,
    )
    return gg.vjp(build)


def reference(x, gamma, beta, ct, groups, last):
    """Return the result and the gradients in float64."""
    x, gamma, beta, ct = (a.astype("float64") for a in (x, gamma, beta, ct))
    if not last:
        x, ct = (np.moveaxis(a, 1, 3) for a in (x, ct))
    split = (*x.shape[:3], groups, x.shape[3] // groups)

    def mean(a):
        means = a.reshape(split).mean((1, 2, 4), keepdims=True)
        return np.broadcast_to(means, split).reshape(x.shape)

    r = 1 / np.sqrt(mean((x - mean(x)) ** 2) + 1e-5)
    x_hat = (x - mean(x)) * r
    slope = gamma * ct
    x_bar = r * (slope - mean(slope) - x_hat * mean(slope * x_hat))
    y = gamma * x_hat + beta
    if not last:
        y, x_bar = (np.moveaxis(a, 3, 1) for a in (y, x_bar))
    return y, x_bar, (ct * x_hat).sum((0, 1, 2)), ct.sum((0, 1, 2))


BOUNDS = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-12}


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 17, 19, 64), 8), ((3, 20, 20, 30), 10), ((1, 37, 31, 35), 5), ((2, 16, 16, 64), 64)],
    ids=label,
)
def test_group_norms_and_their_gradients(shape, groups, dtype, last):
    """The cotangent is far from zero, so that its means are nearly all of it."""
    rng = np.random.default_rng(0)
    shape = shape if last else (shape[0], shape[3], *shape[1:3])
    channels = 64 if shape[3 if last else 1] == 64 else shape[3 if last else 1]
    x, ct = rng.standard_normal(shape), rng.standard_normal(shape) + 10
    gamma, beta = rng.uniform(0.5, 1.5, (2, channels))
    arrays = [a.astype(dtype) for a in (x, gamma, beta, ct)]
    found = run_function(group_norm(shape, groups, dtype, last), "main_vjp", *arrays)
    expected = reference(*arrays, groups, last)
    for ours, theirs in zip(found, expected, strict=True):
        bound = BOUNDS[dtype] * np.abs(theirs).max()
        np.testing.assert_allclose(ours.astype("float64"), theirs, rtol=0, atol=bound)


def test_a_group_norm_and_its_gradient_pass_over_images_four_times():
    """Moments and result, the sums of the gradient and the gradient: each in vectors."""
    shape = (2, 32, 32, 64)
    mod = group_norm(shape, 8)
    del mod["main"]
    lowered = lower(mod, HOST)
    called = set()
    visit_nodes(lowered["main_vjp"], tvm.ir.GlobalVar, lambda g: called.add(g.name_hint))
    kernels = [f for v, f in lowered.functions.items() if v.name_hint in called]
    large = [kernel for kernel in kernels if "T.parallel" in kernel.script()]
    assert len(large) == 4
    assert all("T.vectorized" in kernel.script() for kernel in large)
