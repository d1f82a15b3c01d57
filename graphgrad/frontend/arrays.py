"""Conversion of arrays of any library (numpy, torch, TVM) to numpy arrays of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm.ir import PrimType

from ..errors import InputError
from ..ir.arrays import to_numpy

FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})


def dtype_name(dtype: Any) -> str:
    """The name of a dtype, such as ``"float32"``: numpy's, of a TVM type, or of a TVM tensor."""
    if isinstance(dtype, PrimType):
        return str(dtype.dtype)
    return str(dtype)


def as_array(name: str, value: Any) -> np.ndarray:
    """Copy an array to a numpy array of our own.

    Parameters
    ----------
    name : str
        What the array is called in an error.
    value : array
        Whatever `graphgrad.ir.arrays.to_numpy` reads.

    Returns
    -------
    numpy.ndarray
        C-contiguous, native byte order, same shape and dtype; shares no memory with `value`.

    Raises
    ------
    InputError
        If `value` is not an array of numbers.
    """
    try:
        return np.array(to_numpy(value), order="C", copy=True)
    except InputError as error:
        raise InputError(f"{name!r}: {error}") from error


def checked_arrays(
    kind: str,
    arrays: Mapping[str, Any] | None,
    expected: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Copy named arrays, in the order of `expected`, whose names, shapes and dtypes they must have.

    Parameters
    ----------
    kind : str
        What the arrays are, for an error: ``"parameter"`` or ``"statistic"``.
    arrays : mapping of str to array, or None
        ``None`` is an empty mapping.
    expected : mapping of str to numpy.ndarray
        Arrays of the right names, shapes and dtypes.

    Raises
    ------
    InputError
        If a name is missing or not expected, or a shape or dtype differs.
    """
    arrays = {} if arrays is None else arrays
    if not isinstance(arrays, Mapping):
        raise InputError(f"expected a dict of {kind}s by name, given a {type(arrays).__name__}")
    missing = [name for name in expected if name not in arrays]
    extra = [name for name in arrays if name not in expected]
    if missing or extra:
        raise InputError(
            f"the names of the {kind}s do not fit the model: missing {missing}, not known {extra}"
        )
    copies = {name: as_array(name, arrays[name]) for name in expected}
    for name, array in copies.items():
        reference = expected[name]
        if array.shape != reference.shape or array.dtype != reference.dtype:
            raise InputError(
                f"{kind} {name!r}: expected shape {reference.shape} and dtype {reference.dtype}, "
                f"given shape {array.shape} and dtype {array.dtype}"
            )
    return copies
