"""Running a GPU schedule without a GPU: its threads one after the other, as loops of the host.

A scheduled PrimFunc whose threads never wait for each other computes the same either way.
"""

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cuda.lowering import check
from graphgrad.lower.cuda.stages import one_thread_per_element
from graphgrad.lower.target import target
from tests.lower.kernel_programs import HOST, Runs, random_values

GPU = target({"kind": "cuda", "arch": "sm_90"})


def on_host(func):
    """Return a scheduled PrimFunc with its loops over threads as plain loops."""

    def plain(loop):
        if int(loop.kind) != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, plain)))


def run(inputs, outputs, shapes=None, seed=0, schedule=one_thread_per_element):
    """Run the function of TE tensors as built and as scheduled for a GPU, on the same inputs.

    `shapes`, for symbolic functions, gives the shape of each input and output.
    """
    func = te.create_prim_func([*inputs, *outputs])
    scheduled = schedule(func, GPU)
    check(scheduled, GPU)
    mod = tvm.IRModule(
        {
            "stock": func.with_attr("global_symbol", "stock"),
            "scheduled": on_host(scheduled).with_attr("global_symbol", "scheduled"),
        }
    )
    library = tvm.compile(mod, target=HOST)
    shapes = shapes or [[int(n) for n in t.shape] for t in (*inputs, *outputs)]
    values = [random_values(s, str(t.dtype), seed) for s, t in zip(shapes, inputs, strict=False)]
    results = []
    for name in ("stock", "scheduled"):
        given = [
            to_tensor(np.full(s, 77).astype(str(t.dtype)))
            for s, t in zip(shapes[len(inputs) :], outputs, strict=True)
        ]
        library[name](*(to_tensor(value) for value in values), *given)
        results.append([g.numpy() for g in given])
    return Runs(*results, scheduled, changed=True)
