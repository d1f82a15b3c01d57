"""Maps by tiles in shared memory: what they compute, and which maps take other ways."""

import pytest
from tvm import te, tirx, topi

from graphgrad.ir.visits import nodes_in
from tests.labels import label
from tests.lower.cuda.running import run
from tests.lower.kernel_programs import tensor


def compute(shape, element):
    """A map with 64-bit extents, as Relax makes them."""
    return te.compute(tuple(tirx.IntImm("int64", n) for n in shape), element)


def tiled(result):
    """How many tensors go through shared memory."""
    allocated = nodes_in(result.func.body, tirx.AllocBuffer)
    return sum(allocation.buffer.scope() == "shared" for allocation in allocated)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((256, 128), (1, 0)),
        ((200, 136), (1, 0)),  # no whole tiles
        ((133, 257), (1, 0)),  # no vectors either
        ((2, 16, 20, 48), (0, 2, 3, 1)),  # channels last, from channels first
        ((2, 20, 16, 48), (0, 3, 1, 2)),
        ((4, 32, 20, 80), (0, 3, 2, 1)),
        ((1, 128, 1, 144), (3, 0, 1, 2)),
    ],
    ids=label,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_permutations(shape, axes, dtype):
    x = tensor(*shape, dtype=dtype)
    result = run([x], [topi.transpose(x, axes)])
    result.agree()
    assert tiled(result)


@pytest.mark.parametrize("shape", [(40, 2000), (2000, 17)], ids=label)
def test_narrow_tensors(shape):
    x = tensor(*shape)
    result = run([x], [topi.transpose(x)])
    result.agree()
    assert tiled(result)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensors_chosen_by_a_mask(dtype):
    """The mask's vectors are 16 elements, all of a short axis, and so are those of the result."""
    x, mask = tensor(32, 64, 16, dtype=dtype), tensor(32, 16, 64, dtype="int8", name="mask")

    def chosen(condition, value):
        return tirx.Select(condition > tirx.const(0, "int8"), value, tirx.const(0, dtype))

    result = run(
        [x, mask],
        [compute((32, 16, 64), lambda b, i, j: chosen(mask[b, i, j], x[b, j, i]))],
    )
    result.agree()
    assert tiled(result)


def test_narrow_tensors_made_wide():
    x = tensor(256, 128, dtype="int8")
    result = run([x], [compute((128, 256), lambda i, j: x[j, i].astype("float64"))])
    result.agree()
    assert tiled(result)


def test_maps_of_several_tensors():
    x, y, z, s = tensor(96, 200), tensor(96, 200, name="y"), tensor(200, 96, name="z"), tensor(96)
    result = run(
        [x, y, z, s],
        [compute((200, 96), lambda i, j: x[j, i] * z[i, j] + y[j, i] * s[j] - x[j, i])],
    )
    result.agree()
    assert tiled(result) == 2  # each tensor once


def test_types_of_other_widths():
    x, y = tensor(256, 160, dtype="float16"), tensor(160, 256, name="y")
    result = run([x, y], [compute((160, 256), lambda i, j: x[j, i].astype("float32") + y[i, j])])
    result.agree()
    assert tiled(result)


def test_parts_of_tensors():
    x = tensor(300, 400)
    result = run([x], [compute((256, 192), lambda i, j: x[j + 5, i + 7])])
    result.agree()
    assert tiled(result)


def test_a_choice_that_stays_inside():
    x, y = tensor(160, 128), tensor(128, 160, name="y")

    def chosen(i, j):
        return tirx.if_then_else(y[i, j] > 0, x[j, i], tirx.const(0.0, "float32"))

    result = run([x, y], [compute((128, 160), chosen)])
    result.agree()
    assert tiled(result)


def test_what_a_choice_keeps_inside_is_not_moved_ahead():
    x = tensor(100, 100)

    def padded(i, j):
        inside = tirx.all(i >= 8, i < 108, j >= 8, j < 108)
        return tirx.if_then_else(inside, x[j - 8, i - 8], tirx.const(0.0, "float32"))

    result = run([x], [compute((136, 136), padded)])
    result.agree()
    assert not tiled(result)


@pytest.mark.parametrize(
    "read",
    [
        lambda i, j: (i, j),
        lambda i, j: (191 - i, j),
        lambda i, j: (i, tirx.const(3, "int64")),
        lambda i, j: (j, 191 - i),  # backwards
        lambda i, j: (j, i * j % 192),  # not linear
        lambda i, j: (j, i // 2),
    ],
)
def test_other_maps_have_no_tiles(read):
    x = tensor(192, 192)
    result = run([x], [compute((192, 192), lambda i, j: x[read(i, j)])])
    result.agree()
    assert not tiled(result)


def test_small_tensors_have_no_tiles():
    x = tensor(64, 64)
    result = run([x], [topi.transpose(x)])
    result.agree()
    assert not tiled(result)


def test_a_sum_of_a_transposed_map():
    """The map has two readers, one of which wants it in memory."""
    x = tensor(256, 192)
    turned = compute((192, 256), lambda i, j: te.exp(x[j, i]) + te.tanh(x[j, i]))
    k = te.reduce_axis((0, tirx.IntImm("int64", 256)), "k")
    total = compute((192,), lambda i: te.sum(turned[i, k], axis=k))
    result = run([x], [turned, total])
    result.agree()
    assert tiled(result)
