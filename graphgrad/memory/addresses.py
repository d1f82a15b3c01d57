"""Addresses of buffers as integers, which the checks of overlap and alignment compute with."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

_FFI_ANY_UNION_FIELD = 15
"""The field of an argument on TVM's stack that holds its bits (``kTVMFFIAnyUnionValue``)."""


class StackValues:
    """Integers on the stack of the host, also in a kernel whose buffers are on another device.

    Parameters
    ----------
    count : int
    name : str

    Attributes
    ----------
    begin : statement
        Reserves the values; it comes before all others.
    """

    def __init__(self, count: int, name: str = "stack") -> None:
        values = tirx.tvm_stack_alloca("tvm_ffi_any", count)
        self._stack = tvm.ir.Var(name, values.ty)
        self.begin = tirx.Bind(self._stack, values)

    def store(self, index: Any, value: Any) -> Any:
        """The statement that stores an int64 or a pointer."""
        return tirx.Evaluate(tirx.tvm_struct_set(self._stack, index, _FFI_ANY_UNION_FIELD, value))

    def load(self, index: Any, dtype: str = "int64") -> Any:
        """The value at an index, which may be an expression, as int64 or as a ``handle``."""
        return tirx.tvm_struct_get(self._stack, index, _FFI_ANY_UNION_FIELD, dtype)


class Addresses:
    """Reads the addresses of buffers in a kernel.

    TIR has no cast from a pointer to an integer. So the pointer is stored in an argument value on
    the stack (``TVMFFIAny``), and its bits are loaded as int64.

    Attributes
    ----------
    begin : statement
        Reserves the value on the stack; it comes before all statements that `of` returns.
    """

    def __init__(self) -> None:
        self._value = StackValues(1)
        self.begin = self._value.begin

    def of(self, buffer: Any) -> tuple[Any, Any]:
        """A statement that stores a buffer's pointer, and the expression of its address.

        The expression is int64. It is valid until the statement of another buffer, because all
        pointers go through the same value on the stack.
        """
        return self._value.store(0, buffer.data), self._value.load(0)
