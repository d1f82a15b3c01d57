import resource
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
    kernel = tvm.compile(fill, "llvm")
    with tempfile.TemporaryDirectory() as folder:
        # A limit on files stands for a full disk: in either case LLVM cannot write the object.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        kernel.mod.write_to_file(str(Path(folder, "kernel.o")))
    return False


DEFECT = Defect(
    title="[LLVM] A full disk ends the process where an object is written",
    kind="crash",
    happens=(
        "`Module.write_to_file` of LLVM's modules, and with it `export_library`, does not look at "
        "the state of its stream. LLVM's destructor of a stream with an error prints `IO failure "
        "on output stream` and calls exit(1): no exception, no `finally`."
    ),
    expected=(
        "`dest.close()`, then an exception where `dest.has_error()`, after `dest.clear_error()`."
    ),
    crashes=True,
    worked_around_in=("graphgrad.lower.codegen.library",),
)
