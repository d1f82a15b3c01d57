"""The gradients' tensor expressions: their values in every layout, and what they cost."""

from itertools import product
from math import prod

import ml_dtypes
import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.kinds import Kind, kind_of
from graphgrad.ir.arrays import to_tensor
from graphgrad.ops.conv import SPATIAL, Layouts, Window, convolution, data_gradient, weight_gradient
from tests.running import compile_library

STANDARD = {rank: Layouts.standard(rank) for rank in SPATIAL}
LAST = {1: Layouts("NWC", "WIO"), 2: Layouts("NHWC", "HWIO"), 3: Layouts("NDHWC", "DHWIO")}


def window(strides, padding=None, dilation=None, groups=1):
    rank = len(strides)
    return Window(strides, padding or (0,) * 2 * rank, dilation or (1,) * rank, groups)


CASES = {
    "plain": ((2, 3, 6, 5), (4, 3, 3, 2), window((1, 1), (1, 0, 2, 1))),
    "strides": ((1, 3, 7, 6), (4, 3, 3, 2), window((2, 3), (1, 0, 1, 2))),
    "taps missing": ((2, 2, 6, 7), (3, 2, 1, 1), window((2, 3))),
    "dilation": ((1, 2, 11, 9), (3, 2, 3, 2), window((2, 1), (2, 1, 2, 1), (2, 3))),
    "dilation and stride": ((1, 2, 14), (3, 2, 3), window((4,), (1, 1), (6,))),
    "one position": ((1, 2, 1, 1), (3, 2, 3, 3), window((2, 2), (1, 1, 1, 1))),
    "groups": ((2, 4, 5, 4), (6, 2, 2, 2), window((2, 1), (1, 1, 0, 0), groups=2)),
    "depthwise": ((2, 3, 5, 5), (3, 1, 3, 3), window((2, 2), (1, 1, 1, 1), groups=3)),
    "multiplier": ((2, 3, 5), (6, 1, 3), window((1,), (1, 1), groups=3)),
    "many phases": ((1, 2, 11, 13), (2, 2, 4, 3), window((5, 4), (1, 2, 0, 1))),
    "many phases, dilation": ((1, 2, 14, 9), (2, 2, 3, 2), window((6, 3), (1, 0, 1, 0), (4, 1))),
    "volume": ((1, 2, 5, 4, 3), (2, 2, 2, 3, 1), window((2, 1, 1), (1, 1, 0, 0, 1, 0))),
    "no batch": ((0, 2, 4, 4), (3, 2, 3, 3), window((2, 2))),
    "no filters": ((1, 2, 4, 4), (0, 2, 3, 3), window((2, 2))),
}


def extents_of_output(x, w, window):
    reach = window.reach(w[2:])
    padded = [e + b + a for e, b, a in zip(x[2:], window.before, window.after, strict=True)]
    steps = zip(padded, reach, window.strides, strict=True)
    return (x[0], w[0], *[(extent - 1 - far) // stride + 1 for extent, far, stride in steps])


def gradients(x, w, ct, window):
    """Both gradients by their definition, one tap at a time, with the channels first."""
    x_bar, w_bar = np.zeros_like(x), np.zeros_like(w)
    groups = [(g * w.shape[1], g * w.shape[0] // window.groups) for g in range(window.groups)]
    for positions in product(*map(range, ct.shape[2:])):
        for taps in product(*map(range, w.shape[2:])):
            numbers = zip(
                positions, taps, window.strides, window.dilation, window.before, strict=True
            )
            at = tuple(p * s + r * d - before for p, r, s, d, before in numbers)
            if not all(0 <= i < extent for i, extent in zip(at, x.shape[2:], strict=True)):
                continue
            for c, k in groups:
                read = (slice(None), slice(c, c + w.shape[1]), *at)
                filters = slice(k, k + w.shape[0] // window.groups)
                taken = ct[(slice(None), filters, *positions)]
                x_bar[read] += taken @ w[(filters, slice(None), *taps)]
                w_bar[(filters, slice(None), *taps)] += taken.T @ x[read]
    return x_bar, w_bar


def shape_in(shape, source, target):
    return tuple(shape[source.index(axis)] for axis in target)


def in_order(array, source, target):
    return np.ascontiguousarray(array.transpose([source.index(axis) for axis in target]))


def placeholder(shape, dtype, name):
    return te.placeholder([tirx.IntImm("int64", e) for e in shape], dtype, name)


def evaluated(inputs, output, *arrays):
    function = compile_library(te.create_prim_func([*inputs, output]))
    result = to_tensor(np.full([int(e) for e in output.shape], 77).astype(str(output.dtype)))
    function(*map(to_tensor, arrays), result)
    return result.numpy()


def expressions(x, w, window, layouts, dtype="float64"):
    """Return both gradients as expressions, with their arguments, of shapes with channels first."""
    standard = STANDARD[window.rank]
    shapes = [
        shape_in(x, standard.data, layouts.data),
        shape_in(w, standard.kernel, layouts.kernel),
        shape_in(extents_of_output(x, w, window), standard.data, layouts.data),
    ]
    x, w, ct = (placeholder(s, dtype, n) for s, n in zip(shapes, ("x", "w", "ct"), strict=True))
    orders = (layouts.data, layouts.kernel, layouts.data)
    of_data = data_gradient(ct, w, shapes[0], window, orders, dtype)
    of_weight = weight_gradient(x, ct, shapes[1], window, layouts)
    return (x, w, ct), of_data, of_weight


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", CASES)
def test_values(case, last):
    check(*CASES[case], (LAST if last else STANDARD)[CASES[case][2].rank])


@pytest.mark.parametrize(
    "layouts", [("NHWC", "OHWI"), ("NHWC", "OIHW"), ("NCHW", "HWIO"), ("CNWH", "WOHI")], ids=str
)
@pytest.mark.parametrize("case", ["strides", "groups", "many phases"])
def test_values_in_mixed_layouts(case, layouts):
    check(*CASES[case], Layouts(*layouts))


def check(x_shape, w_shape, window, layouts):
    generator = np.random.default_rng(0)
    standard = STANDARD[window.rank]
    shapes = (x_shape, w_shape, extents_of_output(x_shape, w_shape, window))
    x, w, ct = (generator.uniform(-1, 1, shape) for shape in shapes)
    tensors, of_data, of_weight = expressions(x_shape, w_shape, window, layouts)
    arrays = [
        in_order(x, standard.data, layouts.data),
        in_order(w, standard.kernel, layouts.kernel),
        in_order(ct, standard.data, layouts.data),
    ]
    x_bar, w_bar = gradients(x, w, ct, window)
    ours = evaluated(tensors[1:][::-1], of_data, arrays[2], arrays[1])
    np.testing.assert_allclose(in_order(ours, layouts.data, standard.data), x_bar, atol=1e-12)
    ours = evaluated([tensors[0], tensors[2]], of_weight, arrays[0], arrays[2])
    np.testing.assert_allclose(in_order(ours, layouts.kernel, standard.kernel), w_bar, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_adds_up_in_float32(dtype):
    window_of_one = window((2, 2))
    layouts = LAST[2]
    name = np.dtype(dtype).name
    (x, w, ct), of_data, of_weight = expressions(
        (4096, 1, 1, 1), (4096, 1, 1, 1), window_of_one, layouts, name
    )
    ones = [np.ones([int(e) for e in tensor.shape], dtype) for tensor in (x, w, ct)]
    assert (evaluated([ct, w], of_data, ones[2], ones[1]).astype(float) == 4096).all()
    assert (evaluated([x, ct], of_weight, ones[0], ones[2]).astype(float) == 4096).all()


def stages(output):
    """Return the stages of an expression, without those of inputs."""
    found = []

    def visit(tensor):
        if isinstance(tensor.op, te.ComputeOp) and not any(tensor.op.same_as(op) for op in found):
            for source in tensor.op.input_tensors:
                visit(source)
            found.append(tensor.op)

    visit(output)
    return found


def products(output):
    """Return how many products the sums of an expression have."""
    sums = [op for op in stages(output) if op.reduce_axis or kind_of(op) is Kind.RESIDUE_CLASS]
    loops = [[*op.axis, *op.reduce_axis] for op in sums]
    return sum(prod(int(axis.dom.extent) for axis in axes) for axes in loops)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(
    ("kernel", "of"),
    [
        ((3, 3), window((2, 2), (1, 1, 1, 1))),
        ((7, 7), window((2, 2), (3, 3, 3, 3))),
        ((1, 1), window((2, 2))),
        ((4, 2), window((4, 2))),
        ((3, 3), window((3, 2), (1, 2, 1, 2), (2, 2))),
        ((3, 3), window((1, 1), (1, 1, 1, 1))),
    ],
    ids=str,
)
def test_gradients_multiply_no_more_than_the_convolution(kernel, of, last):
    layouts = (LAST if last else STANDARD)[2]
    x_shape, w_shape = (2, 8, 12, 12), (16, 8, *kernel)
    (x, w, _), of_data, of_weight = expressions(x_shape, w_shape, of, layouts)
    y_shape = shape_in(extents_of_output(x_shape, w_shape, of), "NCHW", layouts.data)
    orders = (layouts.data, layouts.kernel, layouts.data)
    forward = convolution(x, w, y_shape, of, orders, "float64")
    assert products(of_data) == products(forward)
    assert products(of_weight) == products(forward)


def test_channels_last_needs_no_copy():
    _, of_data, of_weight = expressions((2, 8, 6, 6), (16, 8, 1, 1), window((1, 1)), LAST[2])
    assert [op.name for op in stages(of_data)] == ["data_gradient"]
    assert [op.name for op in stages(of_weight)] == ["weight_gradient"]


def test_phases_share_one_border():
    of = window((2, 2), (1, 1, 1, 1))
    _, of_data, _ = expressions((2, 8, 7, 7), (16, 8, 5, 5), of, LAST[2])
    names = [op.name for op in stages(of_data)]
    assert names.count("padded") == 1
    assert sum(kind_of(op) is Kind.RESIDUE_CLASS for op in stages(of_data)) == 4


def test_a_large_stride_is_one_sum():
    _, of_data, _ = expressions((1, 2, 64, 64), (2, 2, 64, 64), window((32, 32)), LAST[2])
    assert [op.name for op in stages(of_data)] == ["padded", "data_gradient"]
