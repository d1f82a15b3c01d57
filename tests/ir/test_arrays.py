"""Arrays from outside: copied, aligned, or refused with a reason."""

import textwrap
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi

from graphgrad.errors import InputError
from graphgrad.ir import arrays
from graphgrad.ir.arrays import ALIGNMENT, borrowed, to_tensor
from tests.labels import label
from tests.peers import peer


def aligned(shape, dtype="float32", offset=0):
    """Return an array whose memory starts `offset` bytes after an aligned address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 2 * ALIGNMENT, "uint8")
    start = -memory.ctypes.data % ALIGNMENT + offset
    return memory[start : start + size].view(dtype).reshape(shape)


GRID = np.arange(24, dtype="float32").reshape(4, 6)
READ_ONLY = GRID.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "value",
    [
        GRID,
        GRID.T,
        GRID[::-1, ::2],
        GRID[1:, 1:],
        np.broadcast_to(GRID[0], (3, 6)),
        GRID.astype(">f4"),
        GRID.astype("float64"),
        GRID.astype("float16"),
        GRID.astype(ml_dtypes.bfloat16),
        GRID.astype("int64"),
        GRID > 3,
        READ_ONLY,
        np.float32(3),
        np.zeros((0, 3), "float32"),
        np.array(5, "int32"),
    ],
    ids=lambda v: f"{v.dtype}{v.shape}{v.strides}",
)
def test_numpy_values_arrive_unchanged(value):
    tensor = to_tensor(value)
    assert tuple(tensor.shape) == value.shape
    assert str(tensor.dtype) == value.dtype.newbyteorder("=").name
    assert tensor.data_ptr() % ALIGNMENT == 0
    np.testing.assert_array_equal(tensor.numpy(), value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2.5, "float32"), (3, "int64"), (True, "bool"), ([[1.0, 2.0]], "float32"), ([1, 2], "int64")],
)
def test_python_values(value, dtype):
    tensor = to_tensor(value)
    assert str(tensor.dtype) == dtype
    np.testing.assert_array_equal(tensor.numpy(), value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_conversion(dtype):
    tensor = to_tensor(GRID, dtype=dtype)
    assert str(tensor.dtype) == dtype
    np.testing.assert_array_equal(tensor.numpy().astype("float32"), GRID)


@pytest.mark.parametrize("offset", range(4, 64, 4))
def test_unaligned_memory_is_copied(offset):
    value = aligned((8,), offset=offset)
    tensor = to_tensor(value)
    assert tensor.data_ptr() % ALIGNMENT == 0
    assert tensor.data_ptr() != value.ctypes.data
    assert borrowed(value, tvm.cpu()) is None


def test_kernels_survive_every_offset(python):
    """In a process of its own: the failure would be the end of the process."""
    program = """
        import numpy as np, tvm
        from tvm import relax
        import graphgrad.lower.pipeline as lower
        from graphgrad.ir.arrays import to_tensor
        from tests.ir.test_arrays import aligned

        x = relax.Var("x", relax.TensorType((4096,), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit(relax.op.add(x, x)))
        vm = relax.VirtualMachine(lower.compile(builder.get()), tvm.cpu())
        for offset in range(4, 64, 4):
            value = aligned((4096,), offset=offset)
            value[:] = offset
            out = vm["main"](to_tensor(value)).numpy()
            np.testing.assert_array_equal(out, 2 * value)
        print("alive")
    """
    done = python.run(textwrap.dedent(program))
    assert done.stdout.strip() == "alive", done.stderr


def test_memory_that_the_virtual_machine_keeps_is_taken_before_there_is_none(monkeypatch):
    """A full device: the first allocation fails, and the second if the pool was not emptied."""
    full, empty = [True], tvm.runtime.empty
    message = "CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory"

    def allocate(*arguments):
        if full:
            raise RuntimeError(message)
        return empty(*arguments)

    monkeypatch.setattr(tvm.runtime, "empty", allocate)
    monkeypatch.setattr("graphgrad.runtime.arrays.release_pool", full.clear)
    np.testing.assert_array_equal(to_tensor(GRID).numpy(), GRID)
    full.append(True)
    message = "CUDA: another error"
    with pytest.raises(RuntimeError, match=message):
        to_tensor(GRID)
    assert full, "the pool is emptied only where memory is short"


def test_copies_by_default():
    value = aligned((8,))
    tensor = to_tensor(value)
    value[:] = 7
    assert not tensor.numpy().any()


def test_copies_into_a_tensor():
    held = to_tensor(np.zeros((4, 6), "float32"))
    assert to_tensor(GRID.T.copy().T, into=held).same_as(held)
    np.testing.assert_array_equal(held.numpy(), GRID)


def test_borrows_what_is_fit():
    value = aligned((8,))
    assert borrowed(value, tvm.cpu()).data_ptr() == value.ctypes.data


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "value",
    [
        aligned((8, 4)).T,
        aligned((8,), "float64")[::2],
        read_only(aligned((8,))),
        aligned((0, 4)),
    ],
    ids=label,
)
def test_unfit_memory_is_not_borrowed(value):
    assert borrowed(value, tvm.cpu()) is None


def test_tensors_of_the_runtime_are_borrowed_on_their_device():
    tensor = to_tensor(GRID)
    assert borrowed(tensor, tvm.cpu()).same_as(tensor)
    assert borrowed(tensor, tvm.cuda()) is None


@pytest.mark.parametrize(
    "memory",
    [aligned((8,), offset=4), aligned((8, 4)).T, aligned((0, 4))],
    ids=["unaligned", "transposed", "empty"],
)
def test_unfit_tensors_of_the_runtime_are_not_borrowed(memory):
    assert borrowed(tvm_ffi.from_dlpack(memory), tvm.cpu()) is None


@pytest.mark.parametrize("offset", [4, 64])
def test_a_view_at_an_offset_is_not_borrowed(offset):
    """Also where it is aligned: kernels do not add offsets."""
    memory = to_tensor(np.arange(40, dtype="float32"))
    view = memory._create_view((2, 4), "float32", offset)
    assert borrowed(view, tvm.cpu()) is None
    expected = np.arange(8).reshape(2, 4) + offset // 4
    np.testing.assert_array_equal(to_tensor(view).numpy(), expected)
    assert borrowed(memory._create_view((2, 4), "float32", 0), tvm.cpu()) is not None


def test_tensors_of_the_runtime_are_copied():
    first = to_tensor(GRID)
    second = to_tensor(first)
    assert first.data_ptr() != second.data_ptr()
    np.testing.assert_array_equal(second.numpy(), GRID)


def test_anything_with_dlpack():
    class Exporter:
        def __dlpack__(self, **options):
            return GRID.__dlpack__(**options)

        def __dlpack_device__(self):
            return GRID.__dlpack_device__()

    np.testing.assert_array_equal(to_tensor(Exporter()).numpy(), GRID)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.arange(12.0).reshape(3, 4),
        lambda t: t.arange(12.0).reshape(3, 4).T,
        lambda t: t.arange(12.0)[1:],
        lambda t: t.arange(12.0)[::3],
        lambda t: t.ones(3, requires_grad=True),
        lambda t: t.arange(5, dtype=t.bfloat16)[1:],
        lambda t: t.arange(5, dtype=t.float16),
        lambda t: t.tensor([True, False]),
        lambda t: t.tensor(3),
    ],
)
def test_torch_values_arrive_unchanged(make):
    torch = peer("torch")
    value = make(torch)
    tensor = to_tensor(value)
    assert tensor.data_ptr() % ALIGNMENT == 0
    assert f"torch.{tensor.dtype}" == str(value.dtype)
    np.testing.assert_array_equal(
        tensor.numpy().astype("float32"), value.detach().to(torch.float32).numpy()
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("text", "type str with dtype <U4"),
        (None, "type NoneType"),
        ([[1], [2, 3]], "type list"),
        (np.array(["a"]), "dtype <U1"),
        (np.zeros(2, "complex64"), "complex64"),
        (np.array([object()]), "object"),
        ({"a": 1}, "type dict"),
    ],
    ids=label,
)
def test_what_is_no_array_is_refused(value, says):
    with pytest.raises(InputError, match=says):
        to_tensor(value)


def test_masked_values_are_refused():
    value = np.ma.masked_array(GRID, mask=np.equal(GRID, GRID.flat[3]))
    for read in (to_tensor, lambda array: borrowed(array, tvm.cpu())):
        with pytest.raises(InputError, match=r"array with 1 masked values.*\.filled"):
            read(value)
    tensor = to_tensor(np.ma.masked_array(GRID, mask=False))
    np.testing.assert_array_equal(tensor.numpy(), GRID)


class Streams:
    """What of ``torch.cuda`` orders streams: two of them, and a record of what they do."""

    def __init__(self, current):
        self.current, self.done = current, []

    def current_stream(self, _):
        return Stream(self.current, self.done)

    def default_stream(self, _):
        return Stream("default", self.done)

    @contextmanager
    def stream(self, stream):
        self.done.append(f"on {stream.name}")
        yield
        self.done.append("end")


@dataclass
class Stream:
    name: str
    done: list = field(compare=False)

    def wait_stream(self, other):
        self.done.append(f"{self.name} waits for {other.name}")


class Lent:
    """A tensor of torch on a CUDA device, at an address, that records copies of it."""

    device = SimpleNamespace(index=0)

    def __init__(self, address, done):
        self.address, self.done = address, done

    def same(self, *_):
        return self

    detach = resolve_conj = resolve_neg = contiguous = same

    def numel(self):
        return 3

    def data_ptr(self):
        return self.address

    def clone(self):
        self.done.append("copy")
        return Lent(1 << 20, self.done)

    def record_stream(self, stream):
        self.done.append(f"kept for {stream.name}")


@pytest.mark.parametrize("current, address, copied", [
    ("default", 1 << 16, False), ("default", 4, True), ("side", 1 << 16, True),
])  # fmt: skip
def test_what_other_streams_lend_is_copied_in_turn(current, address, copied, monkeypatch):
    cuda = Streams(current)
    monkeypatch.setattr(tvm.runtime, "from_dlpack", lambda tensor: tensor)
    lent = arrays._borrowed_from_torch(
        Lent(address, cuda.done), tvm.cuda(), SimpleNamespace(cuda=cuda)
    )
    assert (lent.address != address) is copied
    assert cuda.done == [
        *("on default", f"default waits for {current}"), *["copy"] * copied,
        *(f"{current} waits for default", "end", "kept for default"),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float31", "complex64", "str"])
def test_unknown_dtypes_are_refused(dtype):
    with pytest.raises(InputError, match=dtype):
        to_tensor(GRID, dtype=dtype)
