"""Depthwise convolutions read what is inside a border, and leave out the terms outside of it."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.lower.cpu.contraction import replace
from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.ops.conv import Layouts, Window, convolution, data_gradient, padded, weight_gradient
from tests.guarded_memory import guarded_tensor
from tests.labels import label
from tests.lower.kernel_programs import HOST, UNIT, run, tensor
from tests.running import compile_library

DATA, KERNEL = "NHWC", "HWIO"


def windows(kernel, padding, stride=1, dilation=1, before=None):
    """Return the kernel's extent, and the window but for the groups."""
    before = padding if before is None else before
    padding = (before, before, padding, padding)
    return kernel, Window((stride, stride), padding, (dilation, dilation), groups=1)


WINDOWS = {
    "same": windows(3, 1),
    "stride 2": windows(3, 1, stride=2),
    "stride 3": windows(5, 2, stride=3),
    "dilated": windows(3, 2, dilation=2),
    "one side": windows(2, 1, before=0),
    "wide": windows(5, 4),
    "rows of zeros alone": windows(2, 4),
}


class Layer:
    """The expressions of a depthwise convolution and of its gradients."""

    def __init__(self, name, batch, size, channels, dtype="float32"):
        kernel, window = WINDOWS[name]
        self._window = Window(window.strides, window.padding, window.dilation, channels)
        self._dtype = dtype
        reach = (kernel - 1) * window.dilation[0] + 1
        result = (size + window.before[0] + window.after[0] - reach) // window.strides[0] + 1
        self._shapes = {
            "x": (batch, size, size, channels),
            "w": (kernel, kernel, 1, channels),
            "ct": (batch, result, result, channels),
        }

    def forward(self):
        x, w = self._tensor("x"), self._tensor("w")
        layouts = (DATA, KERNEL, DATA)
        return [x, w], convolution(x, w, self._shapes["ct"], self._window, layouts, self._dtype)

    def data(self):
        ct, w = self._tensor("ct"), self._tensor("w")
        layouts = (DATA, KERNEL, DATA)
        return [ct, w], data_gradient(ct, w, self._shapes["x"], self._window, layouts, self._dtype)

    def weight(self):
        x, ct = self._tensor("x"), self._tensor("ct")
        layouts = Layouts(DATA, KERNEL)
        return [x, ct], weight_gradient(x, ct, self._shapes["w"], self._window, layouts)

    def _tensor(self, name):
        return tensor(*self._shapes[name], dtype=self._dtype, name=name)


def reads_through(result):
    """Return whether the kernel is a nest without a copy."""
    return "registers" in result.text and "padded" not in result.text


def shape_of(x):
    return [int(extent) for extent in x.shape]


def rounded(values, dtype):
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def computed(func, values, output):
    """Return the result of a function as float64."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    result = guarded_tensor(rounded(np.full(shape_of(output), 77), str(output.dtype)))
    compile_library(mod, HOST)["main"](*map(guarded_tensor, values), result)
    return result.numpy().astype("float64")


@pytest.fixture
def _any_size(monkeypatch):
    monkeypatch.setattr(replace, "SMALL", 1)


@pytest.mark.usefixtures("_any_size")
@pytest.mark.parametrize("extents", [(1, 5, 16), (2, 7, 19), (3, 16, 48)], ids=label)
@pytest.mark.parametrize("name", WINDOWS, ids=label)
@pytest.mark.parametrize("of", ["forward", "data", "weight"])
def test_values(name, extents, of):
    inputs, output = getattr(Layer(name, *extents), of)()
    run(inputs, [output]).agree()


@pytest.mark.usefixtures("_any_size")
@pytest.mark.parametrize("of", ["forward", "data", "weight"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes(dtype, of):
    inputs, output = getattr(Layer("same", 2, 9, 33, dtype), of)()
    generator = np.random.default_rng(0)
    values = [rounded(generator.uniform(-1, 1, shape_of(x)), dtype) for x in inputs]
    func = schedule_loops(create_prim_func([*inputs, output]), UNIT)
    found = computed(func, values, output)
    inputs, output = getattr(Layer("same", 2, 9, 33, "float64"), of)()
    exact = create_prim_func([*inputs, output])
    expected = computed(exact, [value.astype("float64") for value in values], output)
    bound = {"float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("of", ["forward", "data", "weight"])
@pytest.mark.parametrize("name", ["same", "stride 2"], ids=label)
def test_no_copy_is_made(name, of):
    inputs, output = getattr(Layer(name, 4, 28, 64), of)()
    func = create_prim_func([*inputs, output])
    text = schedule_loops(func, UNIT).script()
    assert "padded" not in text
    assert "registers" in text


def test_terms_outside_add_nothing():
    """Where a zero of the border would meet an infinite weight."""
    inputs, output = Layer("same", 1, 16, 32).forward()
    func = schedule_loops(create_prim_func([*inputs, output]), UNIT)
    weights = np.ones((3, 3, 1, 32), "float32")
    weights[0, 1] = np.inf
    found = computed(func, [np.ones((1, 16, 16, 32), "float32"), weights], output)
    np.testing.assert_array_equal(found[0, 0, 1:-1], 6)
    assert np.isinf(found[0, 1:]).all()


def test_a_copy_that_is_read_elsewhere_is_kept():
    inputs, _ = Layer("same", 2, 16, 32).forward()
    x, w = inputs
    window = Window((1, 1), (1, 1, 1, 1), (1, 1), 1)
    copy = padded(x, DATA, DATA, window)
    r, s = (te.reduce_axis((0, tirx.IntImm("int64", 3)), v) for v in "rs")
    sums = te.compute(
        x.shape,
        lambda n, h, v, c: te.sum(copy[n, h + r, v + s, c] * w[r, s, 0, c], axis=[r, s]),
        name="sums",
    )
    again = te.compute(copy.shape, lambda *i: copy(*i) * 2, name="again")
    result = run(inputs, [sums, again])
    result.agree()
    assert not reads_through(result)


@pytest.mark.usefixtures("_any_size")
def test_a_symbolic_batch():
    batch = te.var("n", "int64")
    x = te.placeholder((batch, 9, 9, 16), "float32", "x")
    w = tensor(3, 3, 1, 16, name="w")
    window = Window((1, 1), (1, 1, 1, 1), (1, 1), 16)
    layouts = (DATA, KERNEL, DATA)
    y = convolution(x, w, (batch, 9, 9, 16), window, layouts, "float32")
    run([x, w], [y], shapes=[(3, 9, 9, 16), (3, 3, 1, 16), (3, 9, 9, 16)]).agree()
