"""Functions within a budget: what is refused, what is repeated, and that the results are right."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import graphgrad as gg
from graphgrad.errors import ArgumentError
from graphgrad.ir.arrays import to_tensor
from graphgrad.memory.budget import FunctionBudget, MemoryBudget
from tests.frontend.graphs import random
from tests.running import function

op = relax.op
SHAPE = (64, 64)
CALLS = []
WRONG = relax.TensorType([3, 3], "float32")


@tvm_ffi.register_global_func("graphgrad.tests.budget_triple")
def triple(x):
    CALLS.append(x)
    return tvm.runtime.tensor(3 * x.numpy())


def there_and_back(packed=False, views=False):
    """A chain of layers, whose values are read again in the opposite order."""

    def build(b, x, w):
        values = [x]
        for k in range(8):
            y = b.emit(op.tanh(b.emit(op.matmul(values[-1], w))))
            if packed and k == 3:
                y = b.emit(op.call_pure_packed("graphgrad.tests.budget_triple", y, ty_args=[x.ty]))
            if views and k % 2:
                y = b.emit(op.reshape(b.emit(op.reshape(y, [64 * 64])), [64, 64]))
            values.append(y)
        result = values[-1]
        for value in reversed(values[:-1]):
            transposed = b.emit(op.permute_dims(value))
            result = b.emit(op.divide(b.emit(op.matmul(result, transposed)), relax.const(64.0)))
        return result

    return function(build, (SHAPE, "float32"), (SHAPE, "float32"))


def run(mod, limit):
    """The result of a module's function, and the plan of its memory."""
    budget = None if limit is None else FunctionBudget("main", MemoryBudget(limit))
    machine = relax.VirtualMachine(gg.compile(mod, budget=budget), tvm.cpu())
    arrays = [to_tensor(random(*SHAPE, seed=seed)) for seed in range(2)]
    results = [machine["main"](*arrays).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*results)
    return results[0], budget and budget.plan


@pytest.mark.parametrize("options", [{}, {"packed": True}, {"views": True}], ids=str)
def test_results_are_those_without_a_budget(options, monkeypatch):
    monkeypatch.setenv("GRAPHGRAD_CACHE", "0")
    mod = there_and_back(**options)
    expected, _ = run(mod, None)
    _, whole = run(mod, 1.0)
    CALLS.clear()
    result, plan = run(mod, whole.least)
    np.testing.assert_array_equal(result, expected)
    assert plan.repeated > 0 and plan.peak == whole.least < whole.peak
    assert len(CALLS) == (2 if options.get("packed") else 0), "a packed function is never repeated"


@pytest.mark.parametrize("options", [{}, {"packed": True}, {"views": True}], ids=str)
def test_without_a_limit_nothing_is_repeated(options, monkeypatch):
    monkeypatch.setenv("GRAPHGRAD_CACHE", "0")
    mod, budget = there_and_back(**options), FunctionBudget("main")
    expected, _ = run(mod, None)
    machine = relax.VirtualMachine(gg.compile(mod, budget=budget), tvm.cpu())
    arrays = [to_tensor(random(*SHAPE, seed=seed)) for seed in range(2)]
    np.testing.assert_array_equal(machine["main"](*arrays).numpy(), expected)
    _, whole = run(mod, 1.0)
    assert budget.plan.repeated == 0 and budget.plan.tensors == whole.tensors


def test_a_check_of_a_size_is_kept():
    """A packed function's result has the shape that the program says, or it is an error."""

    unknown = relax.TensorType(None, "float32", ndim=2)

    def build(b, x):
        y = b.emit(op.call_pure_packed("graphgrad.tests.budget_triple", x, ty_args=[unknown]))
        return b.emit(op.exp(b.match_cast(y, WRONG)))

    mod, budget = function(build, (SHAPE, "float32")), FunctionBudget("main")
    machine = relax.VirtualMachine(gg.compile(mod, budget=budget), tvm.cpu())
    with pytest.raises(Exception, match=r"(?i)shape"):
        machine["main"](to_tensor(random(*SHAPE)))


def test_branches_and_unknown_sizes_are_refused():
    n = tvm.tirx.Var("n", "int64")
    unknown = function(lambda b, x: b.emit(op.exp(x)), ((n,), "float32"))
    with pytest.raises(ArgumentError, match="sizes of some tensors depend on values"):
        gg.compile(unknown, budget=FunctionBudget("main", MemoryBudget(1.0)))

    x = relax.Var("x", relax.TensorType([2], "float32"))
    condition = relax.Var("condition", relax.TensorType([], "bool"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, condition]):
        branches = (relax.SeqExpr([], x), relax.SeqExpr([], x))
        builder.emit_func_output(builder.emit(relax.If(condition, *branches)))
    with pytest.raises(ArgumentError, match="the step has branches"):
        gg.compile(builder.get(), budget=FunctionBudget("main", MemoryBudget(1.0)))

    # Without a limit they keep TVM's plan.
    budget = FunctionBudget("main")
    machine = relax.VirtualMachine(gg.compile(unknown, budget=budget), tvm.cpu())
    result = machine["main"](to_tensor(random(5))).numpy()
    np.testing.assert_allclose(result, np.exp(random(5)), rtol=1e-6)
    gg.compile(builder.get(), budget=budget)
    assert budget.plan is None and budget.runs == []
