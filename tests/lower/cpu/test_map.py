"""Maps: elementwise chains, broadcasts, padding and transpositions."""

import pytest
from tvm import te, topi

from tests.labels import label
from tests.lower.kernel_programs import run, tensor

DTYPES = ["float32", "float64", "float16", "int32", "int8"]


def unary(x):
    return [x], [topi.add(topi.multiply(x, x), x)]


@pytest.mark.parametrize(
    "shape",
    [(20000,), (19997,), (64, 33, 17), (1, 1, 20001), (127, 131), (16, 4, 8, 64)],
    ids=label,
)
def test_elementwise(shape):
    result = run(*unary(tensor(*shape)))
    result.agree()
    assert "T.parallel" in result.text


@pytest.mark.parametrize(
    "shape, vector",
    [((4, 32, 28, 28), "for ax2_ax3_fused_1 in"), ((8, 512, 7, 7), "for ax1_ax2_ax3_fused_1 in")],
    ids=label,
)
def test_no_more_axes_are_fused_than_make_whole_vectors(shape, vector):
    """Of more, each vector takes divisions by all extents: a dozen times as long."""
    result = run(*unary(tensor(*shape)))
    result.agree()
    assert f"{vector} T.vectorized(T.int64(16))" in result.text


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,), (0, 7), (40000, 0)], ids=label)
def test_small_maps_stay_serial(shape):
    result = run(*unary(tensor(*shape)))
    result.agree()
    assert "T.parallel" not in result.text


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    result = run(*unary(tensor(37, 32, 32, dtype=dtype)))
    result.agree()
    assert "T.vectorized" in result.text


def test_a_fill_of_bfloat16():
    """TVM forgets how many lanes its constant has."""
    filled = topi.full((64, 1024), "bfloat16", 1.5)
    run([], [filled]).agree()


@pytest.mark.parametrize(
    "other", [(1, 32, 1, 1), (7, 1, 8, 16), (1, 1, 1, 16), (16,), (1, 1, 1, 1), (7, 32, 1, 1)]
)
def test_broadcast(other):
    x, y = tensor(7, 32, 8, 16), tensor(*other, name="y")
    result = run([x, y], [topi.nn.relu(topi.add(x, y))])
    result.agree()
    assert "T.parallel" in result.text


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)], ids=label)
def test_transposition(order):
    x = tensor(5, 17, 16, 16)
    run([x], [topi.transpose(x, order)]).agree()


def test_padding_reads_nothing_outside():
    x = tensor(9, 16, 15, 15)
    run([x], [topi.nn.pad(x, (0, 0, 1, 2), (0, 0, 2, 1))]).agree()


def test_vectors_that_no_border_crosses():
    x = tensor(9, 15, 15, 32)
    result = run([x], [topi.nn.pad(x, (0, 1, 2, 0), (0, 2, 1, 0))])
    result.agree()
    assert "T.vectorized" in result.text


def test_vectors_that_a_border_crosses():
    x = tensor(9, 15, 15, 32)
    result = run([x], [topi.nn.pad(x, (0, 0, 0, 8), (0, 0, 0, 8))])
    result.agree()
    assert "T.vectorized" not in result.text


def test_flip_and_reshape_of_odd_extents():
    x = tensor(33, 7, 91)
    run([x], [topi.flip(topi.reshape(x, (91, 33, 7)), 1)]).agree()


def test_selection_between_branches():
    x = tensor(64, 320)
    pick = te.compute(x.shape, lambda i, j: te.if_then_else(j > 5, x[i, j - 5], x[i, 0] * 2))
    run([x], [pick]).agree()


def test_a_chain_becomes_one_loop():
    x = tensor(64, 640)
    result = run([x], [topi.exp(topi.nn.relu(topi.add(x, x)))])
    result.agree()
    assert "sblock_alloc_buffer" not in result.text


def test_repeated_squaring_does_not_explode():
    x = tensor(8, 16)
    y = x
    for _ in range(40):
        y = topi.multiply(y, y)
    result = run([x], [y])
    result.agree()
    assert len(result.text) < 100_000


@pytest.mark.parametrize("extents", [(64, 640), (1, 1), (13, 7), (0, 3)], ids=label)
def test_symbolic_extents(extents):
    n, m = te.var("n", "int64"), te.var("m", "int64")
    x = te.placeholder((n, m), "float32", "x")
    result = run([x], [topi.add(x, x)], shapes=[extents, extents])
    result.agree()
    assert "T.parallel" in result.text
