import tvm
from tvm import relax

from graphgrad.ir.tensor import type_shape
from graphgrad.layout import orders
from graphgrad.layout.choice import MODEL_LAYOUT, Layout, choose_storage, layout_for
from tests.running import function

HWIO = orders.filters_last(4)


def convolution():
    def build(b, x, w):
        return b.emit(relax.op.nn.conv2d(x, w))

    return function(build, ((2, 3, 6, 5), "float32"), ((4, 3, 3, 2), "float32"))


def test_by_target():
    assert layout_for(tvm.target.Target("llvm")).converts
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    assert layout_for(cuda) == MODEL_LAYOUT


def test_storage_is_that_of_the_function():
    assert choose_storage(Layout(converts=True), convolution()).storage == {"x1": HWIO}
    assert choose_storage(MODEL_LAYOUT, convolution()) == MODEL_LAYOUT


def test_functions_in_a_layout():
    mod = convolution()
    assert MODEL_LAYOUT.of(mod, "main").same_as(mod)
    stored = Layout(True, {"x1": HWIO}).of(mod, "main")["main"]
    assert [type_shape(p.ty) for p in stored.params] == [[2, 3, 6, 5], [3, 2, 3, 4]]
    assert type_shape(stored.ret_ty) == [2, 4, 4, 4]


def test_types_of_what_is_stored():
    layout = Layout(True, {"w": HWIO})
    ty = relax.TensorType([4, 3, 3, 2], "float16")
    assert type_shape(layout.stored_type("w", ty)) == [3, 2, 3, 4]
    assert str(layout.stored_type("w", ty).dtype) == "float16"
    assert layout.stored_type("other", ty).same_as(ty)
