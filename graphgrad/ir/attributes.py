"""The attributes of a call, as a rule sees them."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi


class Attributes:
    """Attributes by name, as ``attrs.axis`` or ``attrs["axis"]``, in plain Python values.

    Integers, floats, booleans, strings, None, and tuples of those. It serves the attribute objects
    of stock ops and the dictionaries of ops that were defined in Python alike.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: Any):
        self._raw = raw

    def __getitem__(self, name: str) -> Any:
        try:
            raw = self._raw
            value = raw[name] if isinstance(raw, tvm.ir.DictAttrs) else getattr(raw, name)
        except (AttributeError, KeyError):
            raise KeyError(f"the op has no attribute {name!r}") from None
        return _plain(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None


def _plain(value: Any) -> Any:
    """A value of TVM's as one of Python's; a dtype as text."""
    if isinstance(value, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return value.value
    if isinstance(value, (tvm_ffi.Array, list, tuple)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, (tvm.ir.PrimType, tvm_ffi.dtype)):
        return str(value)
    return value
