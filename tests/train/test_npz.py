"""Archives that are damaged, lie, or would fill the memory. Their contents: see `test_data.py`."""

import io
import os
import resource
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from graphgrad.errors import InputError
from graphgrad.train.npz import read_arrays

X = np.arange(24, dtype=np.float32).reshape(6, 4)
DATA = X.tobytes()


def member(array=X) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


def archive(path, *members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def headed(header, version=1, data=DATA):
    """An array with a header of one's own."""
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + data


def described(descr="<f4", shape=(6, 4)):
    return f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes(tmp_path, save):
    arrays = {
        "x": X,
        "t": np.asfortranarray(X),
        "big": X.astype(">f8"),
        "scalar": np.int64(3),
        "empty": np.zeros((0, 4)),
        "names": np.array(["a", "bc"]),
        "zeros": np.zeros((3000, 3000)),  # compressed a thousand times, and still small
    }
    save(tmp_path / "d.npz", **arrays)
    read = read_arrays(tmp_path / "d.npz")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype


@pytest.mark.parametrize(
    "content, message",
    [
        (headed(described(shape=(1 << 40, 1 << 20))), "takes .* bytes, but has"),
        (headed(described(shape=(6, 5))), "takes .* bytes, but has"),
        (headed(described(shape=(-6, -4))), "no size"),
        (headed(described("|V0", (1 << 60,))), "no size"),
        (headed(described("|O")), "holds Python objects"),
        (headed("__import__('os').abort()"), "is damaged"),
        (headed("[" * 9000), "is damaged"),
        (headed("-" * 9000 + "1"), "is damaged"),
        (headed("("), "is damaged"),
        (headed(described(), version=9), "is damaged"),
        (member()[:-1], "takes .* bytes, but has"),
        (member()[:9], "is damaged"),
        (b"", "is damaged"),
        (b"pickled data", "is damaged"),
    ],
)
def test_arrays_that_lie(tmp_path, content, message):
    path = archive(tmp_path / "d.npz", ("x.npy", content))
    with pytest.raises(InputError, match=f"array x.*{message}"):
        read_arrays(path)


@pytest.mark.parametrize("name", ["x", "x.npy/", "../x.txt"])
def test_members_that_are_no_arrays(tmp_path, name):
    path = archive(tmp_path / "d.npz", (name, member()))
    with pytest.raises(InputError, match="is no array as numpy writes them"):
        read_arrays(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_methods_that_numpy_does_not_use(tmp_path, method):
    path = archive(tmp_path / "d.npz", ("x.npy", member()), method=method)
    with pytest.raises(InputError, match="is no array as numpy writes them"):
        read_arrays(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice(tmp_path):
    path = archive(tmp_path / "d.npz", ("x.npy", member()), ("x.npy", member()))
    with pytest.raises(InputError, match="is no array as numpy writes them"):
        read_arrays(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "d.npz")
    with pytest.raises(InputError, match=r"is not an \.npz file"):
        read_arrays(tmp_path / "d.npz")


def bomb(path, declared):
    """An archive that unpacks to four gigabytes, and says that it unpacks to `declared` bytes."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    header = described("|u1", (declared - 80,)).ljust(70)
    content = compressor.compress(headed(header, data=b"")) + compressor.flush(zlib.Z_FULL_FLUSH)
    zeros = compressor.compress(bytes(1 << 22)) + compressor.flush(zlib.Z_FULL_FLUSH)
    archive(path, ("x.npy", content + 1024 * zeros), method=zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    # The method and the unpacked size, in the member's own header and in the directory.
    for start, method, size in ((0, 8, 22), (data.rfind(b"PK\x01\x02"), 10, 24)):
        struct.pack_into("<H", data, start + method, zipfile.ZIP_DEFLATED)
        struct.pack_into("<I", data, start + size, declared)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "declared, message", [((1 << 32) - 1, "says that it unpacks to"), (1 << 20, "is damaged")]
)
def test_bombs_are_not_unpacked(tmp_path, declared, message):
    """Neither one that says how large it is, nor one that says less than it unpacks to."""
    path = bomb(tmp_path / "d.npz", declared)
    assert path.stat().st_size < 1 << 23
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=message):
        read_arrays(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000  # kB


def test_every_changed_byte_is_ours(tmp_path):
    """It is read, or refused by an error of ours."""
    path = tmp_path / "d.npz"
    np.savez(path, x=X[:1], y=np.arange(1))
    data = path.read_bytes()
    refused = 0
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0xFF
        path.write_bytes(changed)
        try:
            read_arrays(Path(path))
        except InputError:
            refused += 1
    assert refused > len(data) / 2
