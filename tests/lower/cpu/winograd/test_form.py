"""Which stages are taken for convolutions with windows of 3 by 3, and what is read of them."""

import pytest
from tvm import te, tirx

from graphgrad.lower.cpu.contraction import PlainStore
from graphgrad.lower.cpu.winograd.form import convolution_of, weight_gradient_of
from graphgrad.ops.conv import Window, convolution
from tests.lower.cpu.winograd.convolutions import CHANNELS_LAST, Layer, expression, stages_of
from tests.lower.kernel_programs import tensor

LAYER = Layer(2, 7, 9, 32, 16, (0, 0, 0, 0))


def found(inputs, output, form):
    """Return what the last stage is recognized as."""
    stages, blocks = stages_of(inputs, output)
    stage = stages[-1]
    return form(stage, blocks[stage.name], {}, PlainStore(blocks[stage.name]))


def test_a_convolution():
    conv = found(*expression("forward", LAYER), convolution_of)
    assert (conv.images.count, conv.images.channels) == (2, 32)
    assert (conv.rows, conv.columns, conv.filters) == (5, 7, 16)
    assert (conv.images.top, conv.images.left) == (0, 0)
    assert not conv.turned


def test_a_data_gradient_is_a_convolution_with_turned_weights():
    layer = Layer(2, 7, 9, 32, 16, (2, 2, 2, 2))
    conv = found(*expression("data", layer), convolution_of)
    assert (conv.images.channels, conv.filters) == (16, 32)
    assert conv.turned
    _, indices = conv.weight(*[tirx.const(i, "int64") for i in (0, 1, 3, 4)])
    assert [int(index) for index in indices] == [2, 1, 4, 3]


def test_a_weight_gradient():
    gradient = found(*expression("weight", LAYER), weight_gradient_of)
    assert gradient.data_in_rows
    assert (gradient.data.rows, gradient.cotangent.rows) == (7, 5)


@pytest.mark.parametrize("kind", ["forward", "data", "weight"])
def test_one_image_is_no_axis(kind):
    layer = Layer(1, 7, 9, 32, 16, (2, 2, 2, 2) if kind == "data" else (0, 0, 0, 0))
    form = weight_gradient_of if kind == "weight" else convolution_of
    assert found(*expression(kind, layer), form) is not None


@pytest.mark.parametrize("kind", ["forward", "data", "weight"])
def test_one_is_not_the_other(kind):
    other = convolution_of if kind == "weight" else weight_gradient_of
    assert found(*expression(kind, LAYER), other) is None


@pytest.mark.parametrize(
    "window",
    [
        Window((2, 1), (0, 0, 0, 0), (1, 1), 1),
        Window((1, 1), (0, 0, 0, 0), (1, 2), 1),
        Window((1, 1), (0, 0, 0, 0), (1, 1), 2),
    ],
    ids=["strides", "dilation", "groups"],
)
def test_other_windows(window):
    x, w = tensor(2, 7, 9, 32, name="x"), tensor(3, 3, 32 // window.groups, 16, name="w")
    rows = (7 - 3) // window.strides[0] + 1
    columns = 9 - 2 * window.dilation[1]
    result = convolution(x, w, (2, rows, columns, 16), window, CHANNELS_LAST, "float32")
    assert found([x, w], result, convolution_of) is None


@pytest.mark.parametrize(
    ("x", "w", "layouts", "shape"),
    [
        ((2, 7, 9, 32), (3, 1, 32, 16), ("NHWC", "HWIO", "NHWC"), (2, 5, 9, 16)),
        ((2, 7, 9, 32), (5, 5, 32, 16), ("NHWC", "HWIO", "NHWC"), (2, 3, 5, 16)),
        ((2, 7, 9, 32), (16, 32, 3, 3), ("NHWC", "OIHW", "NHWC"), (2, 5, 7, 16)),
        ((2, 32, 7, 9), (3, 3, 32, 16), ("NCHW", "HWIO", "NCHW"), (2, 16, 5, 7)),
    ],
    ids=["3x1", "5x5", "filters first", "channels first"],
)
def test_other_forms(x, w, layouts, shape):
    inputs = [tensor(*x, name="x"), tensor(*w, name="w")]
    window = Window((1, 1), (0, 0, 0, 0), (1, 1), 1)
    result = convolution(*inputs, shape, window, layouts, "float32")
    assert found(inputs, result, convolution_of) is None


def test_a_symbolic_batch_is_computed_directly():
    n = te.var("n", "int64")
    sizes = [tirx.const(v, "int64") for v in (7, 9, 32)]
    x, w = te.placeholder((n, *sizes), "float32", "x"), tensor(3, 3, 32, 16, name="w")
    window = Window((1, 1), (0, 0, 0, 0), (1, 1), 1)
    result = convolution(x, w, (n, 5, 7, 16), window, CHANNELS_LAST, "float32")
    assert found([x, w], result, convolution_of) is None
