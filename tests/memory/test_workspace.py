"""Inner tensors that the caller holds: values stay, results are new, what is kept is left alone."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, topi

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import generate, lower
from graphgrad.lower.target import target
from graphgrad.memory import workspace
from graphgrad.memory.budget import FunctionBudget
from graphgrad.runtime.arena import RELEASE
from tests.frontend.graphs import random
from tests.running import function

HOST = target("llvm")
X, W = random(8, 8), random(8, 8, seed=1)
op = relax.op


def layers(b, x, w):
    y = b.emit(op.tanh(b.emit(op.matmul(x, w))))
    z = b.emit(op.exp(b.emit(op.matmul(y, w))))
    return b.emit(op.add(b.emit(op.matmul(z, y)), x))


def reshaped(b, x, w):
    y = b.emit(op.matmul(b.emit(op.tanh(b.emit(op.matmul(x, w)))), w))
    return b.emit(op.reshape(y, [4, 16]))


def layers_values(x, w):
    y = np.tanh(x @ w)
    return np.exp(y @ w) @ y + x


def reshaped_values(x, w):
    return (np.tanh(x @ w) @ w).reshape(4, 16)


def changed(mod, name="main", budget=None):
    """Return a lowered module with a workspace, and a function that calls it, or None."""
    mod, taken = workspace.take_workspace(lower(mod, HOST, budget=budget), name)
    if taken is None:
        return mod, None
    machine = relax.VirtualMachine(generate(mod, HOST), tvm.cpu())
    tensors = taken.place(tvm.runtime.empty((taken.bytes,), "uint8"))
    return mod, lambda *arrays: machine[name](*map(to_tensor, arrays), *tensors)


def allocations(mod, name="main"):
    """Return how often a function allocates."""
    found = []

    def visit(call):
        if isinstance(call.op, tvm.ir.Op) and str(call.op.name) == "relax.vm.alloc_tensor":
            found.append(call)

    tvm_ffi.structural_walk(mod[name].body, (tvm.ir.Call, visit))
    return len(found)


def program(build):
    return function(build, ((8, 8), "float32"), ((8, 8), "float32"))


@pytest.mark.parametrize("budget", [None, FunctionBudget("main")], ids=["tvm", "planned"])
@pytest.mark.parametrize(
    "build, values",
    [(layers, layers_values), (reshaped, reshaped_values)],
    ids=["layers", "reshaped"],
)
def test_results_are_right_and_new(build, values, budget):
    mod, call = changed(program(build), budget=budget)
    assert allocations(mod) == 1 < len(mod["main"].params) - 2
    given = [(random(8, 8, seed=s), random(8, 8, seed=s + 9)) for s in range(3)]
    results = [call(*arrays) for arrays in given]
    assert len({result.data_ptr() for result in results}) == 3
    for result, arrays in zip(results, given, strict=True):
        np.testing.assert_allclose(result.numpy(), values(*arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["tests.workspace.keep", "vm.builtin.tests_keep"])
def test_what_a_packed_function_may_keep_is_allocated_anew(name):
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    tvm_ffi.register_global_func(name, keep, override=True)

    def build(b, x, w):
        y = b.emit(op.matmul(b.emit(op.tanh(b.emit(op.matmul(x, w)))), w))
        k = b.emit(relax.call_pure_packed(name, y, ty_args=[y.ty]))
        return b.emit(op.exp(b.emit(op.matmul(k, w))))

    mod = function(build, ((8, 8), "float32"), ((8, 8), "float32"))
    _, call = changed(mod)
    call(X, W)
    first = kept[0].numpy().copy()
    call(W, X)
    assert len(kept) == 2 and kept[0].data_ptr() != kept[1].data_ptr()
    np.testing.assert_array_equal(kept[0].numpy(), first)


def test_what_a_packed_function_is_known_not_to_keep_is_in_the_workspace():
    gg.declare_effects("tests.workspace.look")

    def build(b, x, w):
        y = b.emit(op.matmul(b.emit(op.tanh(b.emit(op.matmul(x, w)))), w))
        b.emit(relax.call_pure_packed("tests.workspace.look", y, ty_args=[y.ty]))
        return b.emit(op.exp(y))

    mod, _ = changed(function(build, ((8, 8), "float32"), ((8, 8), "float32")))
    assert allocations(mod) == 1  # the result


def test_of_a_planned_function_nothing_is_left_but_views_in_its_block():
    budget = FunctionBudget("main")
    lowered = lower(program(layers), HOST, budget=budget)
    assert "ensure_zero_offset" in lowered["main"].script()
    mod, taken = workspace.take_workspace(lowered, "main")
    assert "ensure_zero_offset" not in mod["main"].script()
    assert taken.bytes == budget.plan.tensors
    assert all(0 <= offset < taken.bytes for offset, _, _ in taken.tensors)


def test_tensors_whose_size_depends_on_arguments_are_left_alone():
    n = tvm.tirx.Var("n", "int64")

    def build(b, x, w):
        known = b.emit(op.matmul(w, w))
        return b.emit(op.matmul(b.emit(op.tanh(b.emit(op.matmul(x, known)))), w))

    mod, call = changed(function(build, ((n, 8), "float32"), ((8, 8), "float32")))
    assert allocations(mod) > 1
    for rows in (3, 5):
        x = random(rows, 8)
        values = np.tanh(x @ (W @ W)) @ W
        np.testing.assert_allclose(call(x, W).numpy(), values, rtol=1e-4, atol=1e-4)


def test_branches_are_left_alone():
    x, flag = (
        relax.Var("x", relax.TensorType([8, 8], "float32")),
        relax.Var("flag", relax.TensorType([], "bool")),
    )
    b = relax.BlockBuilder()
    with b.function("main", [x, flag]):
        y = b.emit(op.tanh(b.emit(op.matmul(x, x))))
        other = relax.SeqExpr([], y)
        b.emit_func_output(b.emit(relax.If(flag, relax.SeqExpr([], x), other)))
    _, call = changed(b.get())
    assert call is None


def test_a_kernel_named_release_stays_beside_the_function_that_lets_go():
    def body(b, x, w):
        y = b.emit(op.matmul(x, w))
        return b.emit_te(lambda a: topi.cumsum(a, axis=1), y, primfunc_name_hint="release")

    mod, taken = workspace.take_to_record(lower(program(body), HOST), "main")
    machine = relax.VirtualMachine(generate(mod, HOST), tvm.cpu())
    tensors = taken.place(tvm.runtime.empty((taken.bytes,), "uint8"))
    result = machine["main"](to_tensor(X), to_tensor(W), *tensors)
    np.testing.assert_allclose(result.numpy(), np.cumsum(X @ W, axis=1), rtol=1e-4, atol=1e-5)
    machine[RELEASE]()
