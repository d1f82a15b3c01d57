"""Memory is taken before anything is computed, and no more of it than was planned."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

from graphgrad.ir.passes import Pipeline, declaration
from graphgrad.lower import pipeline
from graphgrad.lower.target import target
from graphgrad.memory.allocation import PAGE, allocate_first, allocated_bytes
from tests.lower.programs import module, random_tensors, tensor_type

op = relax.op
ALLOCATION = tvm.ir.Op.get("relax.memory.alloc_storage")
N = tvm.tirx.Var("n", "int64")


def chain(builder, x):
    """Values of several sizes, some of which may share memory."""
    wide = builder.emit(op.concat([builder.emit(op.exp(x)), x], axis=1))
    product = builder.emit(op.matmul(wide, builder.emit(op.permute_dims(wide))))
    return builder.emit(op.sum(builder.emit(op.exp(product)), axis=[0]))


def planned(mod):
    """Return a module with its memory planned, as the pass gets it."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
    ]
    with target("llvm"):
        return tvm.transform.Sequential(passes)(mod)


def bindings(mod):
    return [b for block in mod["main"].body.blocks for b in block.bindings]


def allocations(found):
    """Return the positions of the allocations, and their sizes in bytes."""
    calls = [(i, b.value) for i, b in enumerate(found) if isinstance(b.value, tvm.ir.Call)]
    made = [(i, call) for i, call in calls if call.op == ALLOCATION]
    return [i for i, _ in made], [str(call.args[0]) for _, call in made]


def test_what_is_planned_is_allocated_first():
    before = planned(module(chain, tensor_type(16, 24)))
    after = allocate_first(before)
    (old, sizes), (new, same) = allocations(bindings(before)), allocations(bindings(after))
    assert len(old) > 2 and old != list(range(len(old)))
    assert new == list(range(len(old))) and same == sizes
    assert len(bindings(after)) == len(bindings(before))


def test_an_allocation_whose_size_depends_on_arguments_stays():
    def body(builder, x):
        return builder.emit(op.exp(builder.emit(op.sum(builder.emit(op.exp(x)), axis=[0]))))

    before = planned(module(body, tensor_type(N, 24)))
    assert [N.name in size for size in allocations(bindings(before))[1]] == [True, False, False]
    at, sizes = allocations(bindings(allocate_first(before)))
    assert [N.name in size for size in sizes] == [False, False, True]
    assert at[:2] == [0, 1] and at[2] > 1


def test_an_allocation_in_a_branch_stays():
    p, x = relax.Var("p", tensor_type(dtype="bool")), relax.Var("x", tensor_type(4))
    builder = relax.BlockBuilder()
    with builder.function("main", [p, x]):
        out = relax.Var("out", tensor_type(4))
        branch = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(out, op.exp(x))])], out)
        builder.emit_func_output(builder.emit(relax.If(p, branch, x)))
    before = planned(builder.get())
    tvm.ir.assert_structural_equal(allocate_first(before), before)


@pytest.mark.parametrize("shape", [(16, 24), (N, 24)], ids=["static", "symbolic"])
def test_results_are_the_same(shape, monkeypatch):
    mod = module(chain, tensor_type(*shape))
    (x,) = random_tensors((16, 24))
    results = []
    first = replace(declaration(allocate_first), targets=("llvm",))
    passes = [first if each is allocate_first else each for each in pipeline.PASSES]
    for order in (pipeline.PASSES, passes):
        lowering = Pipeline(order, "llvm", pipeline.Lowering)
        monkeypatch.setitem(pipeline.PIPELINES, "llvm", lowering)
        executable = pipeline.compile(mod)
        results.append(relax.VirtualMachine(executable, tvm.cpu())["main"](x).numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("spec", ["llvm", {"kind": "cuda", "arch": "sm_90"}], ids=["cpu", "gpu"])
def test_bytes_are_those_of_the_pieces(spec):
    lowered = pipeline.lower(
        module(lambda b, x: b.emit(op.exp(b.emit(op.sum(x, axis=[1])))), tensor_type(2000, 3)),
        target(spec),
    )
    assert allocated_bytes(lowered) == {"main": 4 * PAGE}  # twice 8,000 bytes, in pages


def test_only_a_gpu_takes_all_memory_at_once():
    mod = module(chain, tensor_type(16, 24))
    first = {}
    for spec in ("llvm", {"kind": "cuda", "arch": "sm_90"}):
        lowered = pipeline.lower(mod, target(spec))
        names = [str(getattr(getattr(b.value, "op", None), "name", "")) for b in bindings(lowered)]
        at = [i for i, name in enumerate(names) if name == "relax.vm.alloc_storage"]
        first[str(target(spec).kind.name)] = at[-1] - at[0] == len(at) - 1
    assert first == {"llvm": False, "cuda": True}
