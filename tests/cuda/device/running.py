"""Running the same program on this host and on a CUDA device, real or emulated.

What ran on the device has run there twice, with the same result bit for bit. On the emulated device
the second time its threads and blocks run in the reverse order, which shows races.
"""

import os
from functools import cached_property

import numpy as np
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.device import cuda_architecture

TOLERANCE = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-5, "float64": 1e-11}
"""Between two orders of summation, relative to the largest number of a tensor."""


def gpu():
    """Return the target for this machine's CUDA device."""
    return {"kind": "cuda", "arch": cuda_architecture()}


def is_emulated():
    """Return whether the device is an emulated one, which nobody else uses."""
    return "GRAPHGRAD_EMULATOR" in os.environ


def twice(run):
    """Return what a function returns, a list of arrays, when called twice on the device.

    Raises
    ------
    AssertionError
        The two differ.
    """
    first = run()
    os.environ["GRAPHGRAD_EMULATOR_ORDER"] = "reverse"
    try:
        second = run()
    finally:
        del os.environ["GRAPHGRAD_EMULATOR_ORDER"]
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        assert a.tobytes() == b.tobytes(), f"result {index} depends on the order of the threads"
    return first


class Program:
    """A module of Relax functions, compiled for the host and for the device.

    Parameters
    ----------
    mod : IRModule
    """

    def __init__(self, mod):
        self._mod = mod

    @cached_property
    def _host(self):
        return relax.VirtualMachine(gg.compile(self._mod), tvm.cpu())

    @cached_property
    def _device(self):
        return relax.VirtualMachine(gg.compile(self._mod, gpu()), tvm.cuda())

    def run(self, name, *arrays):
        """Return the results of a function on the host and on the device, as lists of arrays."""
        on_host = flat(self._host[name](*(to_tensor(a) for a in arrays)))
        given = [to_tensor(a, tvm.cuda()) for a in arrays]
        return on_host, twice(lambda: flat(self._device[name](*given)))

    def check(self, name, *arrays):
        """Assert that host and device agree, up to the order of sums; return the device's."""
        on_host, on_device = self.run(name, *arrays)
        for expected, given in zip(on_host, on_device, strict=True):
            assert_close(given, expected)
        return on_device


def assert_close(given, expected):
    """Assert equal shapes, dtypes and numbers, these up to the order of sums."""
    assert (given.shape, given.dtype) == (expected.shape, expected.dtype)
    tolerance = TOLERANCE.get(str(expected.dtype), 0)
    given, expected = (a.astype("float64") for a in (given, expected))
    finite = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(given, expected, rtol=tolerance, atol=tolerance * finite)
