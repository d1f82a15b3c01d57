"""Shapes with symbolic dimensions, and the binding of these to the extents of actual tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from ..ir.tensor import Dimension, dimension_text


@dataclass(frozen=True)
class Shaped:
    """Dtype and shape, where there is no tensor that has them or its type is slow to read."""

    dtype: Any
    shape: tuple[Any, ...]


def bind_dimensions(
    expected: Sequence[Dimension], shape: Sequence[Any], extents: dict[Any, int]
) -> None:
    """Record the extents of the symbolic dimensions that stand alone and have none yet."""
    for dimension, extent in zip(expected, shape, strict=False):
        if isinstance(dimension, tvm.tirx.Var):
            extents.setdefault(dimension, int(extent))


def fits(expected: Sequence[Dimension], shape: Sequence[Any], extents: Mapping[Any, int]) -> bool:
    """Whether a shape is the expected one, for the recorded extents."""
    return len(expected) == len(shape) and all(
        _value(dimension, extents) == int(extent)
        for dimension, extent in zip(expected, shape, strict=True)
    )


def shape_text(shape: Sequence[Dimension], extents: Mapping[Any, int]) -> str:
    """A shape as errors show it: symbolic dimensions by name, and their extents behind it."""
    text = "(" + ", ".join(map(dimension_text, shape)) + ("," if len(shape) == 1 else "") + ")"
    extent_texts = [
        f"{dimension} = {extents[dimension]}"
        for dimension in shape
        if not isinstance(dimension, int) and dimension in extents
    ]
    return f"{text} with {', '.join(dict.fromkeys(extent_texts))}" if extent_texts else text


def _value(dimension: Dimension, extents: Mapping[Any, int]) -> int | None:
    """A dimension as a number, None if it depends on an extent that is not recorded."""
    if isinstance(dimension, int):
        return dimension
    substitution = (
        tvm.ir.Var,
        lambda var: tvm.tirx.const(extents[var], var.ty) if var in extents else var,
    )
    value = tvm.sym.Analyzer().simplify(tvm_ffi.structural_map(dimension, substitution))
    return int(value) if isinstance(value, tvm.tirx.IntImm) else None
