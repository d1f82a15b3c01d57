import gc
import tempfile
from pathlib import Path

import tvm
from tvm.script import tirx as T

from ..ledger import Defect


@T.prim_func(s_tir=True)
def fill(y: T.Buffer((8,), "float32")):
    for i in range(8):
        y[i] = T.float32(1)


def shows() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "library.so"))
        tvm.compile(fill, "llvm").export_library(path)
        module = tvm.runtime.load_module(path)
        del module
        gc.collect()
        return path in Path("/proc/self/maps").read_text()


DEFECT = Defect(
    title="[Runtime] `tvm.runtime.load_module` never unloads a library",
    kind="cost",
    happens=(
        "A module that it has loaded stays until the process ends, also when nothing refers to it: "
        "a process that compiles and drops programs grows by five maps and some 70 kB with each."
    ),
    expected=(
        "It takes `keep_module_alive=False`, as the `tvm_ffi.load_module` that it calls; functions "
        "hold the module that they are from."
    ),
    worked_around_in=("graphgrad.runtime.loading",),
)
