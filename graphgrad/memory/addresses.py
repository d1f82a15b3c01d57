"""Addresses of buffers as integers, which the checks of overlap and alignment compute with."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

_FFI_ANY_UNION_FIELD = 15
"""The field of an argument on TVM's stack that holds its bits (``kTVMFFIAnyUnionValue``)."""


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
        stack_value = tirx.tvm_stack_alloca("tvm_ffi_any", 1)
        self._stack = tvm.ir.Var("stack", stack_value.ty)
        self.begin = tirx.Bind(self._stack, stack_value)

    def of(self, buffer: Any) -> tuple[Any, Any]:
        """A statement that stores a buffer's pointer, and the expression of its address.

        The expression is int64. It is valid until the statement of another buffer, because all
        pointers go through the same value on the stack.
        """
        store_pointer = tirx.Evaluate(
            tirx.tvm_struct_set(self._stack, 0, _FFI_ANY_UNION_FIELD, buffer.data)
        )
        return store_pointer, tirx.tvm_struct_get(self._stack, 0, _FFI_ANY_UNION_FIELD, "int64")
