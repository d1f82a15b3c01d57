"""Addresses of buffers, as integers that kernels can compare."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

_FFI_ANY_UNION_FIELD = 15
"""The field of an argument on TVM's stack that holds its bits (``kTVMFFIAnyUnionValue``)."""


class Addresses:
    """Reads addresses through a value on the stack: TVM lets nobody reinterpret a pointer.

    Attributes
    ----------
    begin : statement
        Comes before all that is read.
    """

    def __init__(self) -> None:
        memory = tirx.tvm_stack_alloca("tvm_ffi_any", 1)
        self._stack = tvm.ir.Var("stack", memory.ty)
        self.begin = tirx.Bind(self._stack, memory)

    def of(self, buffer: Any) -> tuple[Any, Any]:
        """A statement, and what gives the address as int64 until the next such statement."""
        write = tirx.Evaluate(
            tirx.tvm_struct_set(self._stack, 0, _FFI_ANY_UNION_FIELD, buffer.data)
        )
        return write, tirx.tvm_struct_get(self._stack, 0, _FFI_ANY_UNION_FIELD, "int64")
