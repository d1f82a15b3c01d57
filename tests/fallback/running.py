"""Functions compiled for the CPU and called."""

import numpy as np
import tvm

from tests.fallback.interpreter import numpy_dtype
from tests.running import compile_library


def run(func, *arguments):
    """Call a function with copies of arrays, and numbers, and return the arrays afterwards."""
    return executable(func)(*arguments)


def executable(func):
    """Compile a function; the result is called like `run`."""
    call = compile_library(func)

    def called(*arguments):
        given = [tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
        call(*given)
        return [a.numpy() for a in given if not isinstance(a, int | float)]

    return called


def unwritten(*tensors, **extents):
    """Return an array for each tensor, of NaN or of an absurd number.

    `extents` are those that are symbolic, by name.
    """
    found = []
    for tensor in tensors:
        shape = [extents[e.name] if isinstance(e, tvm.ir.Var) else int(e) for e in tensor.shape]
        dtype = numpy_dtype(tensor.dtype)
        found.append(np.full(shape, -99 if dtype.kind in "iub" else np.nan, dtype))
    return found
