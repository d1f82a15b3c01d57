"""The request for tile registers, before a system that answers as a test says."""

import ctypes
import errno
import platform
import types

import pytest

from graphgrad.errors import DeviceError
from graphgrad.lower import device
from graphgrad.lower.target import target
from graphgrad.runtime import tiles


@pytest.fixture
def linux(monkeypatch):
    """Return the arguments of all system calls, and the errors that they are answered with."""
    calls, errors = [], []

    def syscall(*arguments):
        calls.append(tuple(argument.value for argument in arguments))
        if not errors:
            return 0
        ctypes.set_errno(errors[0])
        return -1

    library = types.SimpleNamespace(syscall=syscall)
    monkeypatch.setattr(tiles.ctypes, "CDLL", lambda name, use_errno: library)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return calls, errors


def test_permission(linux):
    calls, errors = linux
    assert tiles.request_tiles() == ""
    assert calls == [(158, 0x1023, 18)]
    errors.append(errno.EINVAL)
    assert "refuses: Invalid argument" in tiles.request_tiles()


def test_other_systems_are_not_asked(linux, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "Linux on x86_64 alone" in tiles.request_tiles() and not linux[0]


def test_a_refusal_comes_before_anything_runs(linux, monkeypatch):
    monkeypatch.setattr(device, "missing_features", lambda target: [])
    linux[1].append(errno.EPERM)
    spec = {"kind": "llvm", "mcpu": "sapphirerapids", "mtriple": "x86_64-linux-gnu"}
    device.device_of(target(spec))
    with pytest.raises(DeviceError, match=r"refuses: .*leave \+amx-bf16 out of the target"):
        device.device_of(target({**spec, "mattr": ["+amx-bf16"]}))
