"""The dtypes of promotion: float64 for every lower float."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi

LOW_FLOATS = frozenset({"float16", "bfloat16", "float32"})
WIDE = "float64"


def promote_array(array: np.ndarray) -> np.ndarray:
    """An array of a lower float as float64, any other as it is."""
    return array.astype(WIDE) if str(array.dtype) in LOW_FLOATS else array


def promote_dtype(dtype: str) -> str:
    """float64 for a lower float, any other dtype as it is."""
    return WIDE if dtype in LOW_FLOATS else dtype


def promote_type(ty: Any) -> Any:
    """A type with float64 in the place of every lower float."""
    return tvm_ffi.structural_map(ty, (tvm.ir.PrimType, promote_prim_type))


def promote_prim_type(ty: Any) -> Any:
    """The type of a scalar, with float64 in the place of a lower float."""
    return tvm.ir.PrimType(WIDE) if str(ty.dtype) in LOW_FLOATS else ty


def is_low(ty: Any) -> bool:
    """Whether a type has a lower float anywhere in it."""
    return not tvm_ffi.structural_equal(ty, promote_type(ty))
