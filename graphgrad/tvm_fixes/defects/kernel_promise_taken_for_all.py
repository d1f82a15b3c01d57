import numpy as np
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from ..ledger import Defect


@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(s_tir=True)
    def aa_shifted(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for i in range(63):
            x[i + 1] = y[i] + T.float32(1)

    @T.prim_func(s_tir=True)
    def zz_copied(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i in range(64):
            y[i] = x[i]


def shows() -> bool:
    x = tvm.runtime.tensor(np.zeros(64, "float32"))
    tvm.compile(Module, "llvm")["aa_shifted"](x, x)
    return x.numpy().tolist() != list(range(64))


DEFECT = Defect(
    title=("[LLVM] The attribute tirx.noalias of one function holds for all functions of a module"),
    kind="wrong result",
    happens=(
        "The code generator declares all functions before it generates the first, and keeps "
        "one flag: that of the function declared last. `aa_shifted`, which never promised it, "
        "is compiled as if its arguments did not overlap."
    ),
    expected="0 to 63: each function is compiled by its own attribute.",
    worked_around_in=("graphgrad.memory.no_alias",),
)
