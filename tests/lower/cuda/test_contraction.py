"""Contractions in tiles: every kind of convolution and product, odd extents, long sums."""

import numpy as np
import pytest
from tvm import te, tirx, topi
from tvm.s_tir import dlight

from graphgrad.lower.cuda.lowering import check
from graphgrad.lower.cuda.stages import one_thread_per_element, tile_contractions
from tests.labels import label
from tests.lower.cuda.running import GPU, run
from tests.lower.kernel_programs import random_values, tensor
from tests.peers import peer


def product(a, b, dtype=None):
    """Return a matrix product of tensors in another order of axes than topi's."""
    k = te.reduce_axis((0, a.shape[1]), "k")

    def element(i, j):
        x, y = a[i, k], b[k, j]
        return te.sum(x.astype(dtype) * y.astype(dtype) if dtype else x * y, axis=k)

    return te.compute((a.shape[0], b.shape[1]), element, name="product")


def weight_gradient(x, ct, window, stride):
    """Return Σ x·ct over batch and positions, for each tap of a window."""
    n, c = x.shape[:2]
    _, k, oh, ow = ct.shape
    b, p, q = (te.reduce_axis((0, e), name) for e, name in ((n, "b"), (oh, "p"), (ow, "q")))
    taps = tirx.IntImm("int64", window)
    return te.compute(
        (k, c, taps, taps),
        lambda o, i, r, s: te.sum(
            x[b, i, p * stride + r, q * stride + s] * ct[b, o, p, q], axis=[b, p, q]
        ),
        name="weight_gradient",
    )


def tiled(inputs, outputs, **options):
    """Run as tiles; fail if the rule does not take the function."""
    result = run(inputs, outputs, schedule=tile_contractions, **options)
    result.agree()
    assert "shared" in result.text
    return result


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(4, 64, 10), (1, 7, 1), (33, 65, 17), (2, 3, 5), (64, 64, 64), (3, 4000, 5), (70, 2050, 3)],
)
def test_products(m, k, n):
    a, b = tensor(m, k), tensor(k, n, name="b")
    if 1 in (m, n):
        assert tile_contractions(te.create_prim_func([a, b, product(a, b)]), GPU) is None
    else:
        tiled([a, b], [product(a, b)])


@pytest.mark.parametrize(("dtype", "rows"), [("float64", 33), ("float16", 7)])
def test_dtypes(dtype, rows):
    """Of float16 those with too few rows for tensor cores."""
    a, b = tensor(rows, 40, dtype=dtype), tensor(40, 70, dtype=dtype, name="b")
    result = tiled([a, b], [product(a, b, "float32" if dtype == "float16" else None)])
    assert "wmma" not in result.text


@pytest.mark.parametrize(
    "conv",
    [
        lambda x, w: topi.nn.conv2d_nchw(x, w, 1, 1, 1),
        lambda x, w: topi.nn.conv2d_nchw(x, w, 2, 0, 1),
        lambda x, w: topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 2)),
    ],
    ids=["padded", "strided", "dilated"],
)
def test_convolutions(conv):
    x, w = tensor(2, 5, 9, 9), tensor(7, 5, 3, 3, name="w")
    tiled([x, w], [conv(x, w)])


def test_convolutions_of_other_ranks():
    x, w = tensor(2, 3, 20), tensor(4, 3, 5, name="w")
    tiled([x, w], [topi.nn.conv1d_ncw(x, w, 1, 2, 1)])
    x, w = tensor(2, 3, 5, 6, 4), tensor(4, 3, 3, 3, 3, name="w")
    tiled([x, w], [topi.nn.conv3d_ncdhw(x, w, 1, 1, 1, 1)])


def test_grouped_convolutions():
    x, w = tensor(2, 6, 8, 8), tensor(8, 3, 3, 3, name="w")
    run([x, w], [topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, 2)]).agree()
    w = tensor(6, 1, 3, 3, name="w")
    run([x, w], [topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)]).agree()


@pytest.mark.parametrize("stride", [1, 2])
def test_weight_gradients_are_cut_into_parts(stride):
    size = 19 * stride
    x, ct = tensor(16, 3, size + 2, size + 2), tensor(16, 5, 19, 19, name="ct")
    result = tiled([x, ct], [weight_gradient(x, ct, 3, stride)])
    assert result.text.count("blockIdx.x") > 1


def test_many_small_products():
    """One for each block of threads, of which a grid has 65535 along its second axis.

    What the threads of 70,000 blocks compute is the same as in `test_batched_products`.
    """
    a, b = tensor(70000, 2, 3), tensor(70000, 2, 3, name="b")
    scheduled = tile_contractions(te.create_prim_func([a, b, topi.nn.batch_matmul(a, b)]), GPU)
    check(scheduled, GPU)
    assert "blockIdx.y" not in scheduled.script()
    assert 'T.thread_binding(T.int64(70000), thread="blockIdx.x")' in scheduled.script()


def test_batched_products():
    a, b = tensor(6, 9, 20), tensor(6, 33, 20, name="b")
    tiled([a, b], [topi.nn.batch_matmul(a, b)])


@pytest.mark.parametrize("extents", [0, 1, 5, 70], ids=label)
def test_symbolic_batch(extents):
    n = te.var("n", "int64")
    a, b = te.placeholder((n, tirx.IntImm("int64", 40)), "float32", "a"), tensor(40, 6, name="b")
    shapes = [(extents, 40), (40, 6), (extents, 6)]
    tiled([a, b], [product(a, b)], shapes=shapes)


@pytest.mark.parametrize("extents", [0, 70], ids=label)
def test_rows_of_two_axes_one_of_which_is_symbolic(extents):
    n = te.var("n", "int64")
    two, terms, columns = (tirx.IntImm("int64", extent) for extent in (2, 40, 6))
    a = te.placeholder((two, n, terms), "float32", "a")
    b = te.placeholder((terms, columns), "float32", "b")
    k = te.reduce_axis((0, terms), "k")
    y = te.compute((two, n, columns), lambda i, j, c: te.sum(a[i, j, k] * b[k, c], axis=k))
    tiled([a, b], [y], shapes=[(2, extents, 40), (40, 6), (2, extents, 6)])


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("rows", [9, 64])
def test_a_symbolic_number_of_products(batch, rows):
    n, *inner = te.var("n", "int64"), *(tirx.IntImm("int64", e) for e in (rows, 20, 33))
    rows_extent, terms, columns = inner
    a = te.placeholder((n, rows_extent, terms), "float32", "a")
    b = te.placeholder((n, columns, terms), "float32", "b")
    shapes = [(batch, rows, 20), (batch, 33, 20), (batch, rows, 33)]
    tiled([a, b], [topi.nn.batch_matmul(a, b)], shapes=shapes)


def test_what_is_not_a_product_is_not_tiled():
    """TVM's rule takes this sum too, and pads it with zeros, each of which adds one."""
    a, b = tensor(5, 7), tensor(7, 6, name="b")
    k = te.reduce_axis((0, 7), "k")
    y = te.compute((5, 6), lambda i, j: te.sum(te.exp(a[i, k] * b[k, j]), axis=k), name="y")

    def stock(func, target):
        with target:
            return dlight.gpu.Matmul().apply(func, target, False).mod["main"]

    wrong = run([a, b], [y], schedule=stock)
    assert (wrong.scheduled[0] > wrong.stock[0] + 1).all()
    assert tile_contractions(te.create_prim_func([a, b, y]), GPU) is None
    run([a, b], [y]).agree()


def test_a_sum_too_long_and_without_divisors_is_still_cut():
    """4099 is a prime number."""
    a, b = tensor(3, 4099), tensor(4099, 5, name="b")
    assert tile_contractions(te.create_prim_func([a, b, product(a, b)]), GPU) is None
    result = run([a, b], [product(a, b)], schedule=one_thread_per_element)
    result.agree()
    assert "parts" in result.text


@pytest.mark.parametrize("terms", [2304, 50176])
def test_long_sums_are_as_accurate_as_those_of_torch(terms):
    torch = peer("torch")
    a, b = tensor(4, terms), tensor(terms, 40, name="b")
    result = tiled([a, b], [product(a, b)])
    left, right = random_values((4, terms), "float32", 0), random_values((terms, 40), "float32", 0)
    exact = left.astype("float64") @ right.astype("float64")
    ours = np.linalg.norm(result.scheduled[0] - exact)
    theirs = np.linalg.norm((torch.tensor(left) @ torch.tensor(right)).numpy() - exact)
    assert ours < 4 * theirs


def test_maps_around_a_product_share_its_launch():
    a, b, c = tensor(5, 40), tensor(40, 6, name="b"), tensor(6, name="c")
    result = tiled([a, b, c], [topi.nn.relu(topi.add(product(topi.exp(a), b), c))])
    assert result.text.count('thread="blockIdx.x"') == 1


def test_a_product_that_several_read_is_stored_once():
    a, b = tensor(5, 40), tensor(40, 6, name="b")
    y = product(a, b)
    tiled([a, b], [topi.exp(y), topi.sum(y, 1)])


def test_a_product_that_is_a_result_too():
    a, b = tensor(5, 40), tensor(40, 6, name="b")
    y = product(a, b)
    tiled([a, b], [y, topi.exp(y)])


def test_two_products_in_a_row():
    a, b, c = tensor(5, 40), tensor(40, 6, name="b"), tensor(6, 9, name="c")
    tiled([a, b, c], [product(topi.tanh(product(a, b)), c)])


def test_a_gram_matrix():
    a = tensor(12, 30)
    k = te.reduce_axis((0, 30), "k")
    y = te.compute((12, 12), lambda i, j: te.sum(a[i, k] * a[j, k], axis=k), name="gram")
    run([a], [y]).agree()


def test_a_dot_product_uses_many_threads():
    a, b = tensor(1, 50000), tensor(50000, 1, name="b")
    result = run([a, b], [product(a, b)])
    result.agree()
    assert "parts" in result.text


def test_no_terms():
    a, b = tensor(3, 0), tensor(0, 4, name="b")
    assert (run([a, b], [product(a, b)]).scheduled[0] == np.zeros((3, 4))).all()


@pytest.mark.parametrize("shape", [(0, 5, 4), (3, 5, 0)], ids=label)
def test_no_outputs(shape):
    m, k, n = shape
    a, b = tensor(m, k), tensor(k, n, name="b")
    run([a, b], [product(a, b)]).agree()


def test_a_map_that_interleaves_products():
    """As the gradient of a strided convolution does: no product may be taken for the whole."""
    a, b = tensor(33, 40), tensor(40, 34, name="b")
    even, odd = product(a, b), product(a, b)
    y = te.compute(
        (33, 68),
        lambda i, j: tirx.if_then_else(j % 2 == 0, even(i, j // 2), odd(i, j // 2) + 1),
    )
    tiled([a, b], [y])


def test_a_map_that_concatenates_products():
    a, b = tensor(33, 40), tensor(40, 34, name="b")
    first, second = product(a, b), product(a, b)
    y = te.compute(
        (33, 68),
        lambda i, j: tirx.if_then_else(j < 34, first(i, j), second(i, j - 34) + 1),
    )
    tiled([a, b], [y])
