from itertools import pairwise

import tvm
from tvm.ir import prim
from tvm.script import tirx as T

from graphgrad.ir.kernel_structure import stages, statements_of
from graphgrad.ir.visits import nodes_in
from graphgrad.lower.kernels.local_values import bind_local_values


def block_of(func):
    (nest,) = statements_of(func.body.block.body)
    return nest.body.block


@T.prim_func(s_tir=True)
def guarded(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    with T.sblock("root"):
        for i in range(8):
            with T.sblock("y"):
                v_i = T.axis.spatial(8, i)
                T.reads(x[v_i - 4])
                T.writes(y[v_i])
                taken = T.alloc_local((1,), "bool")
                value = T.alloc_local((1,), "float32")
                taken[0] = v_i >= 4
                if taken[0]:
                    value[0] = T.exp(x[v_i - 4])
                y[v_i] = T.if_then_else(taken[0], value[0] * value[0], T.float32(0))


def test_what_is_kept_under_a_condition_is_bound_in_the_choice():
    block = bind_local_values(block_of(guarded))
    (store,) = statements_of(block.body)
    (let,) = nodes_in(store.value, prim.Let)
    assert store.value.op.name == "prim.if_then_else"
    assert store.value.args[1].same_as(let)  # read where it is valid, and nowhere else
    assert {str(region.source.name) for region in block.reads} == {"x"}
    assert stages(guarded) is None


@T.prim_func(s_tir=True)
def stored_twice(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    with T.sblock("root"):
        for i in range(8):
            with T.sblock("y"):
                v_i = T.axis.spatial(8, i)
                y[v_i] = x[v_i]
                y[v_i] = y[v_i] + T.float32(1)


def test_other_blocks_stay_as_they_are():
    block = block_of(stored_twice)
    assert bind_local_values(block).same_as(block)


@T.prim_func(s_tir=True)
def two_results(
    x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32"), z: T.Buffer((8,), "float32")
):
    with T.sblock("root"):
        for i in range(8):
            with T.sblock("y"):
                v_i = T.axis.spatial(8, i)
                T.reads(x[v_i])
                T.writes(y[v_i], z[v_i])
                value = T.alloc_local((1,), "float32")
                value[0] = T.exp(x[v_i])
                y[v_i] = value[0]
                z[v_i] = value[0] * value[0]


def test_no_result_of_several_is_dropped():
    block = block_of(two_results)
    assert bind_local_values(block).same_as(block)


def test_a_chain_that_would_grow_exponentially_stays():
    """Each value is used twice: put into one another they would be 2ⁿ nodes."""
    x, y = (tvm.tirx.decl_buffer((8,), "float32", name) for name in "xy")
    i = tvm.tirx.Var("i", "int32")
    local = [tvm.tirx.decl_buffer((1,), "float32", f"v{n}", scope="local") for n in range(12)]
    statements = [tvm.tirx.AllocBuffer(buffer) for buffer in local]
    statements.append(tvm.tirx.BufferStore(local[0], tvm.tirx.BufferLoad(x, [i]), [0]))
    for before, after in pairwise(local):
        value = tvm.tirx.BufferLoad(before, [0])
        statements.append(tvm.tirx.BufferStore(after, value * value + value, [0]))
    statements.append(tvm.tirx.BufferStore(y, tvm.tirx.BufferLoad(local[-1], [0]), [i]))
    axis = tvm.tirx.IterVar((0, 8), i, tvm.tirx.IterVar.DataPar)
    block = tvm.s_tir.SBlock([axis], [], [], "y", tvm.tirx.SeqStmt(statements))
    assert bind_local_values(block).same_as(block)
