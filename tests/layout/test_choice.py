import pytest
import tvm
from tvm import relax

from graphgrad.ir.inline import inline_calls
from graphgrad.ir.tensor import type_shape
from graphgrad.layout import orders
from graphgrad.layout.choice import MODEL_LAYOUT, Layout, choose_storage, layout_for, storage_of
from tests.running import function

o, nn = relax.op, relax.op.nn
HWIO = orders.filters_last(4)
X, W = ((4, 4, 4, 4), "float32"), ((4, 4, 4, 4), "float32")
"""Of a shape that fits in every layout."""


def convolution():
    def build(b, x, w):
        return b.emit(relax.op.nn.conv2d(x, w))

    mod = function(build, ((2, 3, 6, 5), "float32"), ((4, 3, 3, 2), "float32"))
    return inline_calls(mod, "main")


def test_by_target():
    assert layout_for(tvm.target.Target("llvm")).converts
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    assert layout_for(cuda) == MODEL_LAYOUT


def test_storage_is_that_of_the_program():
    assert choose_storage(Layout(converts=True), convolution()).storage == {"x1": HWIO}
    assert choose_storage(MODEL_LAYOUT, convolution()) == MODEL_LAYOUT


def test_programs_in_a_layout():
    program = convolution()
    assert MODEL_LAYOUT.of(program) is program
    stored = Layout(True, {"x1": HWIO}).of(program)
    assert [type_shape(p.ty) for p in stored.params] == [[2, 3, 6, 5], [3, 2, 3, 4]]
    assert type_shape(stored.result.ty) == [2, 4, 4, 4]


def test_types_of_what_is_stored():
    layout = Layout(True, {"w": HWIO})
    ty = relax.TensorType([4, 3, 3, 2], "float16")
    assert type_shape(layout.stored_type("w", ty)) == [3, 2, 3, 4]
    assert str(layout.stored_type("w", ty).dtype) == "float16"
    assert layout.stored_type("other", ty).same_as(ty)


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
    program = inline_calls(function(build, X, W), "main")
    assert storage_of(program) == ({"x1": HWIO} if is_stored else {})


def test_every_rank():
    def build(b, x, w, y, v):
        return both(b.emit(nn.conv1d(x, w)), b.emit(nn.conv3d(y, v)))

    shapes = ((2, 3, 5), (4, 3, 2), (2, 3, 4, 4, 4), (4, 3, 2, 2, 2))
    mod = function(build, *((s, "float32") for s in shapes))
    assert storage_of(inline_calls(mod, "main")) == {"x1": (2, 1, 0), "x3": (2, 3, 4, 1, 0)}
