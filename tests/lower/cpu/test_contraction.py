"""Contractions: matrix products, convolutions and their gradients, over awkward extents."""

import pytest
import tvm
from tvm import te, topi

from graphgrad.lower.cpu.tuning import processor_of
from tests.labels import label
from tests.lower.kernel_programs import HOST, run, tensor


def tiled(result):
    """Return whether a register tile was used: unrolled rows around vectors."""
    return "T.unroll" in result.text and "T.vectorized" in result.text


@pytest.mark.parametrize(
    "shape",
    [
        (64, 64, 64),
        (96, 10, 64),
        (1, 512, 64),
        (512, 1, 64),
        (127, 127, 127),
        (33, 48, 17),
        (31, 37, 41),
        (64, 64, 1),
        (40, 7, 80),
        (13, 32, 128),
    ],
    ids=label,
)
@pytest.mark.parametrize("flip", [(False, False), (True, False), (False, True)], ids=label)
def test_matrix_products(shape, flip):
    rows, columns, inner = shape
    a = tensor(*((inner, rows) if flip[0] else (rows, inner)), name="a")
    b = tensor(*((columns, inner) if flip[1] else (inner, columns)), name="b")
    run([a, b], [topi.matmul(a, b, *flip)]).agree()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_dtypes(dtype):
    a, b = tensor(32, 24, dtype=dtype, name="a"), tensor(24, 32, dtype=dtype, name="b")
    result = run([a, b], [topi.matmul(a, b)])
    result.agree()
    assert tiled(result)


def test_half_precision_operands_with_a_wide_sum():
    a, b = tensor(32, 40, dtype="float16", name="a"), tensor(40, 32, dtype="float16", name="b")
    k = te.reduce_axis((0, 40), "k")
    product = te.compute(
        (32, 32),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
    )
    result = run([a, b], [product])
    result.agree()
    assert tiled(result)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_zero_extents(zero):
    shape = [32, 64, 48]
    shape[zero] = 0
    a, b = tensor(shape[0], shape[2], name="a"), tensor(shape[2], shape[1], name="b")
    result = run([a, b], [topi.matmul(a, b)])
    assert not result.scheduled[0].any()


def test_batched_product_with_broadcast():
    a, b = tensor(6, 16, 24, name="a"), tensor(6, 24, 32, name="b")
    result = run([a, b], [topi.nn.batch_matmul(a, b, transpose_b=False)])
    result.agree()
    assert tiled(result)


CONVOLUTIONS = [  # batch, channels, height, width, filters, window, stride, padding, dilation
    (4, 16, 8, 8, 32, 3, 1, 1, 1),
    (4, 16, 8, 8, 32, 3, 2, 1, 1),
    (8, 16, 4, 4, 16, 3, 1, 1, 1),
    (16, 16, 2, 2, 32, 3, 1, 1, 1),
    (2, 3, 33, 31, 13, 5, 1, 2, 1),
    (3, 7, 7, 7, 11, 3, 1, 1, 1),
    (2, 16, 14, 14, 16, 1, 1, 0, 1),
    (2, 8, 16, 16, 8, 3, 1, 2, 2),
    (1, 1, 28, 28, 6, 5, 1, 0, 1),
    (2, 3, 32, 32, 16, 7, 2, 3, 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=label)
def test_convolutions(case):
    batch, channels, height, width, filters, window, stride, padding, dilation = case
    x = tensor(batch, channels, height, width)
    w = tensor(filters, channels, window, window, name="w")
    run([x, w], [topi.nn.conv2d_nchw(x, w, stride, padding, dilation)]).agree()


@pytest.mark.parametrize("groups", [2, 4, 16])
def test_grouped_convolutions(groups):
    x, w = tensor(4, 16, 10, 10), tensor(32, 16 // groups, 3, 3, name="w")
    run([x, w], [topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, groups)]).agree()


def test_depthwise_convolution():
    x, w = tensor(4, 32, 16, 16), tensor(32, 1, 3, 3, name="w")
    run([x, w], [topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)]).agree()


def test_convolution_with_an_epilogue():
    x, w, b = tensor(4, 16, 8, 8), tensor(32, 16, 3, 3, name="w"), tensor(1, 32, 1, 1, name="b")
    y = topi.nn.relu(topi.add(topi.nn.conv2d_nchw(x, w, 1, 1, 1), b))
    result = run([x, w, b], [y])
    result.agree()
    assert tiled(result)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("filters", "channels"), [(16, 16), (16, 3), (13, 7), (8, 40)])
def test_weight_gradients(filters, channels, stride):
    batch, size, window = 4, 8, 3
    padded = (size - 1) * stride + window
    ct = tensor(batch, filters, size, size, name="ct")
    x = tensor(batch, padded, padded, channels)
    n, p, q = (te.reduce_axis((0, e), v) for e, v in ((batch, "n"), (size, "p"), (size, "q")))
    w = te.compute(
        (window, window, filters, channels),
        lambda r, s, k, c: te.sum(
            ct[n, k, p, q] * x[n, p * stride + r, q * stride + s, c], axis=[n, p, q]
        ),
    )
    run([ct, x], [w]).agree()


def test_flipped_windows():
    x, w = tensor(4, 8, 18, 18), tensor(8, 16, 3, 3, name="w")
    k, r, s = (te.reduce_axis((0, e), v) for e, v in ((8, "k"), (3, "r"), (3, "s")))
    y = te.compute(
        (4, 16, 16, 16),
        lambda n, c, i, j: te.sum(x[n, k, i + r, j + s] * w[k, c, 2 - r, 2 - s], axis=[k, r, s]),
    )
    result = run([x, w], [y])
    result.agree()
    assert tiled(result)


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_symbolic_batch(batch):
    n = te.var("n", "int64")
    x, w = te.placeholder((n, 32), "float32", "x"), tensor(32, 48, name="w")
    result = run([x, w], [topi.matmul(x, w)], shapes=[(batch, 32), (32, 48), (batch, 48)])
    result.agree()
    assert "T.vectorized" in result.text


def test_products_that_are_no_contraction():
    x = tensor(64, 512)
    run([x], [topi.sum(topi.multiply(x, x), 1)]).agree()
    a, b, c = (tensor(32, 32, name=v) for v in "abc")
    k = te.reduce_axis((0, 32), "k")
    triple = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j] * c[k, j], axis=k))
    run([a, b, c], [triple]).agree()


def test_generated_code_uses_the_widest_registers():
    register = {64: "zmm", 32: "ymm", 16: "xmm"}[processor_of(HOST).vector_bytes]
    if "x86_64" not in str(HOST.attrs.get("mtriple", "x86_64")):
        register = "fmla"
    a, b = tensor(64, 64, name="a"), tensor(64, 64, name="b")
    func = run([a, b], [topi.matmul(a, b)]).func
    assembly = tvm.compile(func, target=HOST).mod.inspect_source("asm")
    assert assembly.count(register) > 16
