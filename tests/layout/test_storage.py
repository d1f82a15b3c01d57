import pytest
from tvm import relax

from graphgrad.layout import orders
from graphgrad.layout.storage import storage_of
from tests.running import function

o, nn = relax.op, relax.op.nn
X, W = ((4, 4, 4, 4), "float32"), ((4, 4, 4, 4), "float32")
"""Of a shape that fits in every layout."""
HWIO = orders.filters_last(4)


def conv(b, x, w, **attributes):
    return b.emit(nn.conv2d(x, w, padding=1, **attributes))


def both(*values):
    return relax.Tuple(list(values))


CASES = {
    "weights": (conv, True),
    "tied weights": (lambda b, x, w: conv(b, conv(b, x, w), w), True),
    "of a transposed convolution too": (
        lambda b, x, w: b.emit(nn.conv2d_transpose(conv(b, x, w), w)), True,
    ),
    "grouped": (lambda b, x, w: conv(b, b.emit(o.concat([x] * 4, 1)), w, groups=4), True),
    "read by something else": (lambda b, x, w: both(conv(b, x, w), b.emit(nn.relu(w))), False),
    "returned": (lambda b, x, w: both(conv(b, x, w), w), False),
    "data too": (lambda b, x, w: both(conv(b, x, w), conv(b, w, w)), False),
    "changed before": (lambda b, x, w: conv(b, x, b.emit(o.negative(w))), False),
    "in another layout": (
        lambda b, x, w: both(
            conv(b, x, b.emit(o.exp(x))),
            b.emit(nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWOI")),
        ), False,
    ),
    "of nothing": (lambda b, x, w: b.emit(nn.relu(x)), False),
}  # fmt: skip


@pytest.mark.parametrize("build, is_stored", CASES.values(), ids=CASES.keys())
def test_what_is_stored_as_convolutions_want_it(build, is_stored):
    assert storage_of(function(build, X, W)) == ({"x1": HWIO} if is_stored else {})


def test_every_rank():
    def build(b, x, w, y, v):
        return both(b.emit(nn.conv1d(x, w)), b.emit(nn.conv3d(y, v)))

    shapes = ((2, 3, 5), (4, 3, 2), (2, 3, 4, 4, 4), (4, 3, 2, 2, 2))
    mod = function(build, *((s, "float32") for s in shapes))
    assert storage_of(mod) == {"x1": (2, 1, 0), "x3": (2, 3, 4, 1, 0)}
