"""Variable names that are valid in CUDA source.

The names of ONNX values, such as ``/0/Conv_output_0`` or ``0.weight``, reach the kernels. TVM
replaces dots only, and only after it has made names unique, so that ``a.b`` and ``a_b`` collide.
Names that are identifiers from the start are made unique by TVM and stay so.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx


def identifiers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A PrimFunc whose variables have names that are identifiers of C++."""
    renamed: dict[Any, Any] = {}

    def rename(var: Any) -> Any:
        name = identifier(var.name)
        if name == var.name:
            return var
        return renamed.setdefault(var, tvm.ir.Var(name, var.ty))

    return tvm_ffi.structural_map(func, (tvm.ir.Var, rename))


def identifier(name: str) -> str:
    """A name with an underscore for each character that C++ does not allow."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain
