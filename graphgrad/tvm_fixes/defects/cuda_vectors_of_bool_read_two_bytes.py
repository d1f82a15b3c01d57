import tvm
from tvm.script import tirx as T

from ..ledger import Defect


@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "bool"), y: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    with T.sblock("root"):
        for thread in T.thread_binding(32, thread="threadIdx.x"):
            for i in T.vectorized(2):
                y[thread * 2 + i] = T.Cast("float32", x[thread * 2 + i])


def shows() -> bool:
    executable = tvm.compile(main, tvm.target.Target({"kind": "cuda", "arch": "sm_90"}))
    (device,) = executable.mod.imports
    return "*(ushort2*)(x_ptr" in device.inspect_source("cuda")


DEFECT = Defect(
    title="[CUDA] A vector of bool in memory is read and written as numbers of 16 bits",
    kind="wrong result",
    happens=(
        "Two booleans are read as `ushort2`: the four bytes there are two of these and two others."
    ),
    expected="A byte for each lane, as the tensor has them.",
    worked_around_in=("graphgrad.lower.cuda.lanes",),
)
