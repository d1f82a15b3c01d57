"""Names of variables and kernels that are valid in CUDA source.

The names of ONNX values, such as ``/0/Conv_output_0`` or ``0.weight``, reach the kernels, and so
does that of a Python function of which a kernel is made, such as ``<lambda>``. TVM replaces dots
only, and only after it has made names unique, so that ``a.b`` and ``a_b`` collide. Names that are
identifiers from the start are made unique by TVM and stay so.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.visits import replace_nodes


def identifiers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A PrimFunc whose variables have names that are identifiers of C++."""
    renamed: dict[Any, Any] = {}

    def rename(var: Any) -> Any:
        name = identifier(var.name)
        if name == var.name:
            return var
        return renamed.setdefault(var, tvm.ir.Var(name, var.ty))

    return tvm_ffi.structural_map(func, (tvm.ir.Var, rename))


def name_launched(mod: tvm.IRModule) -> tvm.IRModule:
    """A module of host and device code in which all that is launched has the name of a function.

    Parameters
    ----------
    mod : IRModule
        Lowered: launches are calls by name.
    """
    taken = {variable.name_hint for variable in mod.functions}
    changed: dict[str, str] = {}
    for variable, func in mod.functions.items():
        old = variable.name_hint
        if str(func.attrs["target"].kind.name) != "cuda" or identifier(old) == old:
            continue
        new = identifier(old)
        while new in taken:
            new += "_"
        taken.add(new)
        changed[old] = new
    if not changed:
        return mod

    def text(node: Any) -> Any:
        return tvm.ir.StringImm(changed[node.value]) if node.value in changed else node

    functions = {}
    for variable, func in mod.functions.items():
        if variable.name_hint in changed:
            name = changed[variable.name_hint]
            functions[tvm.ir.GlobalVar(name)] = func.with_attr("global_symbol", name)
        else:
            functions[variable] = func.with_body(replace_nodes(func.body, tvm.ir.StringImm, text))
    return tvm.IRModule(functions, attrs=mod.attrs)


def identifier(name: str) -> str:
    """A name with an underscore for each character that C++ does not allow."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain
