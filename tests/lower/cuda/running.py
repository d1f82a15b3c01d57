"""Running a GPU schedule without a GPU: its threads one after the other, as loops of the host.

A scheduled PrimFunc whose threads never wait for each other computes the same either way. Where
threads exchange values, by shuffles or in shared memory, each statement runs for all threads before
the next one. Blocks arrive in order.
"""

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.kernel_structure import Load, substitute_values
from graphgrad.ir.visits import nodes_in, replace_nodes
from graphgrad.lower.cuda.column_tiles import arrives_last
from graphgrad.lower.cuda.lowering import check
from graphgrad.lower.cuda.rows import is_shuffle
from graphgrad.lower.cuda.stages import one_thread_per_element
from graphgrad.lower.target import target
from tests.lower.kernel_programs import HOST, Runs, random_values
from tests.running import compile_library

GPU = target({"kind": "cuda", "arch": "sm_90"})


def on_host(func):
    """Return a scheduled PrimFunc with its loops over threads as plain loops."""

    def plain(loop):
        if int(loop.kind) != tirx.ForKind.THREAD_BINDING:
            return loop
        exchanges = any(is_shuffle(n) or is_barrier(n) for n in nodes_in(loop.body, tvm.ir.Call))
        if str(loop.thread_binding.thread_tag) == "threadIdx.x":
            return in_lockstep(loop) if exchanges else serial(loop)
        return serial(loop, replace_nodes(loop.body, tvm.ir.Call, lambda n: arrival(n, loop)))

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, plain)))


def is_barrier(call):
    """Return whether the threads of a block wait for each other."""
    return str(getattr(call.op, "name", "")) == "tirx.tvm_storage_sync"


def arrival(call, blocks):
    """A call that asks whether a block is the last one of its tile, answered by its number."""
    if not arrives_last(call):
        return call
    tiles = tirx.floordiv(blocks.extent, call.args[2].astype("int64"))
    return (blocks.loop_var >= blocks.extent - tiles).astype("int32")


def serial(loop, body=None):
    """A loop as a plain one, with a variable of its own where it gets another body."""
    if body is None:
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
    var = tirx.Var("thread", loop.loop_var.ty)
    body = substitute_values(body, {loop.loop_var: var})
    return tirx.For(var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)


def in_lockstep(threads):
    """A loop over threads as one such loop for each of its statements.

    What a thread has in registers becomes a row of memory for each thread.
    """
    thread = threads.loop_var
    allocated = [node.buffer for node in nodes_in(threads.body, tirx.AllocBuffer)]
    held = [buffer for buffer in allocated if buffer.scope() != "shared"]
    rows = {b: tirx.decl_buffer([threads.extent, *b.shape], b.dtype) for b in held}
    shared = {b: tirx.decl_buffer(b.shape, b.dtype) for b in allocated if b not in rows}
    views = nodes_in(threads.body, tirx.DeclBuffer)

    def load(node):
        if node.source not in rows:
            return node
        return tirx.BufferLoad(rows[node.source], [thread, *node.indices])

    def store(node):
        if node.buffer not in rows:
            return node
        return tirx.BufferStore(rows[node.buffer], node.value, [thread, *node.indices])

    def shuffle(call):
        if not is_shuffle(call):
            return call
        _, _, value, distance = call.args
        return substitute_values(value, {thread: thread ^ distance.astype(str(thread.ty))})

    def for_all(statement, condition):
        for classes, replace in ((Load, load), (tirx.BufferStore, store), (tvm.ir.Call, shuffle)):
            statement = replace_nodes(statement, classes, replace)
        return serial(threads, tirx.IfThenElse(condition, statement, None))

    def steps(statement, condition):
        """Yield the steps of a statement: choices among whole warps are taken apart."""
        if isinstance(statement, tirx.SeqStmt):
            for part in statement.seq:
                yield from steps(part, condition)
        elif isinstance(statement, tirx.IfThenElse):
            yield from steps(statement.then_case, tirx.And(condition, statement.condition))
            if statement.else_case is not None:
                no = tirx.Not(statement.condition)
                yield from steps(statement.else_case, tirx.And(condition, no))
        elif not isinstance(statement, tirx.AllocBuffer | tirx.DeclBuffer) and not any(
            map(is_barrier, nodes_in(statement, tvm.ir.Call))
        ):
            yield for_all(statement, condition)

    memory = [tirx.AllocBuffer(buffer) for buffer in (*rows.values(), *shared.values())]
    body = tirx.SeqStmt([*views, *memory, *steps(threads.body, tirx.const(True, "bool"))])
    return substitute_values(body, shared)


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
    library = compile_library(mod, HOST)
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
