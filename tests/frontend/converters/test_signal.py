"""Fourier transforms from ONNX: outputs as numpy's, gradients by differences."""

import numpy as np
import onnx
import pytest

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.movement import moving_node
from tests.frontend.converters.nodes import drawn, node_model
from tests.frontend.converters.sampling import assert_samples
from tests.running import F64


def parts(numbers):
    return np.stack([numbers.real, numbers.imag], -1)


def complex_of(x):
    return x[..., 0] + 1j * x[..., 1]


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("length", [None, 3, 7], ids=["whole", "cropped", "padded"])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transform_of_complex_numbers(inverse, length, opset):
    x = drawn((2, 5, 3, 2), dtype=F64)
    given = {"axis": 1} if opset == 17 else {}
    settings = (length,) if opset == 17 else (length, -3)
    proto = moving_node("DFT", x.shape, *settings, opset=opset, inverse=inverse, **given)
    transform = np.fft.ifft if inverse else np.fft.fft
    assert_samples(proto, x, expected=[parts(transform(complex_of(x), length, axis=1))])


@pytest.mark.parametrize("length", [None, 6], ids=["odd", "even"])
def test_onesided_transform_and_back(length):
    x = drawn((2, 5, 1), dtype=F64)
    proto = moving_node("DFT", x.shape, length, opset=20, onesided=1)
    spectrum = parts(np.fft.rfft(x[..., 0], length))
    assert_samples(proto, x, expected=[spectrum])
    back = moving_node("DFT", spectrum.shape, length or 5, opset=20, onesided=1, inverse=1)
    expected = np.zeros((2, length or 5, 1))
    expected[:, :5] = x
    assert_samples(back, spectrum, expected=[expected])


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_transform(onesided):
    arrays = {"x": drawn((2, 11, 1), dtype=F64), "step": np.int64(3), "w": drawn((4,), dtype=F64)}
    given = node_model("STFT", arrays, opset=17, onesided=onesided, ranks={"y": 4})
    proto = _with_constant(given, "step", arrays)
    frames = [arrays["x"][:, t : t + 4, 0] * arrays["w"] for t in (0, 3, 6)]
    transform = np.fft.rfft if onesided else np.fft.fft
    expected = parts(np.stack([transform(frame) for frame in frames], 1))
    assert_samples(proto, arrays["x"], arrays["w"], expected=[expected])


def _with_constant(proto, name, arrays):
    kept = [value for value in proto.graph.input if value.name != name]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(arrays[name], name))
    return proto


def test_onesided_transform_of_complex_numbers_is_refused():
    with pytest.raises(ModelError, match="onesided"):
        gg.from_onnx(moving_node("DFT", (2, 5, 2), opset=20, onesided=1))


def test_a_symbolic_extent_is_refused():
    x = drawn((2, 5, 1))
    proto = node_model("DFT", {"x": x}, opset=20, shapes={"x": (2, "n", 1)})
    with pytest.raises(ModelError, match="extent of axis 1"):
        gg.from_onnx(proto)
