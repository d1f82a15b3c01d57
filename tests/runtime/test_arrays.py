"""What an exported step takes as arrays, and what it refuses."""

import sys
import types

import numpy as np
import pytest
import tvm

from graphgrad.runtime import InputError, arrays
from tests.peers import peer
from tests.runtime.data import BATCH
from tests.train.nets import held


def unaligned(array):
    """Return a copy that starts four bytes behind a multiple of 64."""
    memory = np.zeros(array.nbytes + 128, "uint8")
    start = -memory.ctypes.data % 64 + 4
    copied = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def at_an_offset(array):
    """Return a view of TVM's that begins 64 bytes behind the start of its memory."""
    memory = tvm.runtime.tensor(np.zeros(array.nbytes + 64, "uint8"))
    view = memory._create_view(array.shape, str(array.dtype), 64)
    np.from_dlpack(view)[...] = array
    return view


@pytest.mark.parametrize(
    "given",
    [
        at_an_offset,
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: a.astype(a.dtype.newbyteorder(">")),
        unaligned,
        tvm.runtime.tensor,
    ],
    ids=["offset", "order", "strides", "byte order", "unaligned", "tvm"],
)
def test_arrays_of_any_kind(original, exported, given):
    assert exported(*map(given, BATCH)) == float(original(*BATCH))


def test_torch_tensors(original, exported):
    torch = peer("torch")
    memory = torch.zeros(BATCH[0].size + 1)
    misaligned = memory[1:].view(BATCH[0].shape).copy_(torch.from_numpy(BATCH[0].copy()))
    strided = torch.from_numpy(BATCH[0].T.copy()).T.requires_grad_()
    for x in (misaligned, strided):
        assert exported(x, torch.from_numpy(BATCH[1])) == float(original(*BATCH))


def test_a_torch_tensor_that_is_read_with_the_opposite_sign():
    """The imaginary part of a conjugate is a view of that of the number."""
    torch = peer("torch")
    part = torch.tensor([[1 + 2j]], dtype=torch.complex64).conj().imag
    assert part.is_neg() and part.is_contiguous()
    assert arrays.to_array("part", part) == -2


@pytest.mark.parametrize("change", ["to_sparse", "cfloat"])
def test_torch_tensors_that_cannot_be_read(loaded, change):
    value = getattr(peer("torch").from_numpy(BATCH[0]), change)()
    with pytest.raises(InputError, match="input 'input'"):
        loaded(value, BATCH[1])


def test_lists(original, exported):
    """Floats of Python are taken for float32, as by the step that was exported."""
    inputs, labels = (array.tolist() for array in BATCH)
    assert exported(inputs, labels) == float(original(inputs, labels))


def test_tensors_of_other_libraries_keep_their_dtype():
    third = np.array([1 / 3])
    for value in (third, tvm.runtime.tensor(third)):
        assert arrays.to_array("x", value) == third


class OnStream:
    """Stands in for a tensor of PyTorch on a GPU, and for the streams there."""

    is_cuda, device = True, "cuda:0"

    def __init__(self):
        self.asked = []

    def record_stream(self, stream):
        self.asked.append("kept for the default stream")

    def default_stream(self, device):
        return self

    def current_stream(self, device):
        return "side stream"

    def wait_stream(self, stream):
        self.asked.append(f"waits for the {stream}")


def test_the_streams_of_torch(monkeypatch):
    tensor = OnStream()
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=tensor))
    assert arrays._ready(tensor) is tensor
    assert tensor.asked == ["waits for the side stream", "kept for the default stream"]


def test_what_is_handed_in_stays_the_callers(exported):
    x, y = tvm.runtime.tensor(BATCH[0]), BATCH[1].copy()
    for _ in range(3):
        exported(x, y)
    assert x.numpy().tobytes() == BATCH[0].tobytes() and (y == BATCH[1]).all()


X, Y = BATCH


@pytest.mark.parametrize(
    "arguments, message",
    [
        (({"x": X}, Y), r"given inputs \['x'\], but the model has \['input'\]"),
        (({"input": X, "more": X}, Y), "given inputs"),
        ((X.astype("float64"), Y), "input 'input': expected dtype float32, given float64"),
        ((X[:3], Y[:3]), r"shapes \(\(3, 4\),\): the export is for 'input' \(6, 4\), or 'input'"),
        ((np.array(["a"]), Y), "not an array of real numbers"),
        (([[1.0], [2.0, 3.0]], Y), "cannot be read as an array"),
        ((np.ma.masked_less(X, X.mean()), Y), "input 'input' is a masked array with"),
        ((X, np.ma.masked_equal(Y, Y[0])), "targets is a masked array with"),
        ((X,), "targets are missing"),
        ((X, Y[:3]), r"targets: expected shape \(6,\), given \(3,\)"),
        ((X, Y.astype("float32")), "targets: expected int64, given float32"),
        ((X, Y - 1), "targets: -1 is out of range; they go from 0 to 2"),
        ((X, Y + 1), "targets: 3 is out of range"),
    ],
    ids=[
        "name", "superfluous", "dtype", "shape", "text", "ragged", "masked", "masked targets",
        "no targets", "few targets", "float labels", "negative label", "large label",
    ],
)  # fmt: skip
def test_bad_inputs_change_nothing(loaded, arguments, message):
    before = held(loaded)
    with pytest.raises(InputError, match=message):
        loaded(*arguments)
    assert held(loaded) == before and loaded.steps == 2


@pytest.mark.parametrize("inputs", [X[:3], X.astype("float64")], ids=["shape", "dtype"])
def test_what_is_refused_is_not_copied_to_the_device(loaded, monkeypatch, inputs):
    monkeypatch.setattr(arrays, "copy", None)
    for refusing in (loaded, loaded.evaluate):
        with pytest.raises(InputError):
            refusing(inputs)
