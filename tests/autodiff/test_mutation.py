"""Gradients of programs that change memory: right, or a clear error."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from tests.lower import aliasing
from tests.lower.aliasing import DTYPE, SHAPE, TENSOR, call, outside

op = relax.op
BOOL = relax.TensorType((), "bool")


def program(build, *types):
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types or [TENSOR])]
    builder = relax.BlockBuilder()
    with builder.function("main", params, pure=False):
        builder.emit_func_output(build(builder, *params))
    return builder.get()


def gradient(mod, *arrays):
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    with outside():
        _, (found,) = machine["main_vjp"](*map(to_tensor, [*arrays, np.ones(SHAPE)]))
    return found.numpy()


def increment(builder, value):
    builder.emit(call(aliasing.DECLARED_INCREMENT, value))


def read_by_the_gradient(b, x):
    y = b.emit(op.multiply(x, x))
    z = b.emit(op.sin(y))
    increment(b, y)
    return z


def read_by_the_gradient_under_another_name(b, x):
    y = b.emit(op.multiply(x, x))
    alias = b.emit(relax.Tuple([y]))
    z = b.emit(op.sin(y))
    increment(b, relax.TupleGetItem(alias, 0))
    return z


def result_read_by_its_own_gradient(b, x):
    y = b.emit(op.exp(x))
    z = b.emit(op.add(y, x))
    increment(b, y)
    return z


@pytest.mark.parametrize(
    "build",
    [
        read_by_the_gradient,
        read_by_the_gradient_under_another_name,
        result_read_by_its_own_gradient,
    ],
)
def test_a_value_that_the_gradient_needs_and_a_call_overwrites(build):
    with pytest.raises(
        gg.MissingGradientError,
        match=r"increment at .* overwrites .* which the gradient of relax\.",
    ):
        gg.vjp(program(build))


def test_a_value_that_no_gradient_reads_may_be_overwritten():
    def build(b, x):
        y = b.emit(op.multiply(x, x))
        z = b.emit(op.add(y, y))
        increment(b, y)
        return z

    x = np.linspace(-1, 1, 4)
    np.testing.assert_allclose(gradient(gg.vjp(program(build)), x), 4 * x)


def test_a_value_that_is_overwritten_before_it_is_read():
    """The gradient reads what the forward pass read."""

    def build(b, x, scratch):
        increment(b, scratch)
        return b.emit(op.multiply(x, scratch))

    mod = gg.vjp(program(build, TENSOR, TENSOR), wrt="x0")
    scratch = np.linspace(0, 3, 4)
    np.testing.assert_allclose(gradient(mod, np.ones(4), scratch), scratch + 0.25)


def test_a_derivative_through_memory_is_never_silently_zero():
    def build(b, x):
        total = b.emit(op.zeros(SHAPE, DTYPE))
        b.emit(call(aliasing.DECLARED_ADD_TO, total, x))
        return b.emit(op.multiply(total, total))

    with pytest.raises(gg.MissingGradientError, match=r"add_to at .* may mutate .* outputs depend"):
        gg.vjp(program(build))


def seen(name):
    def build(b, x):
        y = b.emit(op.sin(x))
        b.emit(call(name, y))
        return b.emit(op.sin(y))

    return program(build)


def test_a_function_that_only_looks_must_be_declared():
    with pytest.raises(gg.MissingGradientError, match=r"may mutate .* graphgrad\.declare_effects"):
        gg.vjp(seen("tests.aliasing.undeclared"))
    x = np.linspace(-1, 1, 4)
    got = gradient(gg.vjp(seen(aliasing.DECLARED_SEE)), x)
    np.testing.assert_allclose(got, np.cos(np.sin(x)) * np.cos(x))


def test_a_branch_that_changes_memory_is_not_run_again():
    def build(b, condition, x, counter):
        branches = []
        for function in (op.sin, op.cos):
            b._begin_binding_block()
            increment(b, counter)
            result = b.emit(function(x))
            branches.append(relax.SeqExpr([b._end_block()], result))
        return b.emit(relax.If(condition, *branches))

    with pytest.raises(gg.MissingGradientError, match=r"in a branch of .* runs that branch again"):
        gg.vjp(program(build, BOOL, TENSOR, TENSOR), wrt="x1")


def test_an_old_name_behind_a_call_that_overwrites():
    def build(b, x, scratch):
        overwritten = op.call_inplace_packed(
            aliasing.DECLARED_INCREMENTED, scratch, inplace_indices=0, ty_args=TENSOR
        )
        new = b.emit(overwritten)
        return b.emit(op.multiply(b.emit(op.add(new, scratch)), x))

    with pytest.raises(gg.MissingGradientError, match=r"overwrites x1, which is used afterwards"):
        gg.vjp(program(build, TENSOR, TENSOR), wrt="x0")


def test_closures_in_branches_are_differentiated():
    """What is inlined into a branch leaves no dataflow variable and no function behind."""

    def build(b, condition, x):
        branches = []
        for function in (op.sin, op.cos):
            a, out = relax.Var("a", TENSOR), relax.DataflowVar("out", TENSOR)
            result = relax.Var("result", TENSOR)
            block = relax.DataflowBlock(
                [relax.VarBinding(out, function(a)), relax.VarBinding(result, op.add(out, x))]
            )
            body = b.normalize(relax.SeqExpr([block], result))
            b._begin_binding_block()
            closure = b.emit(relax.Function([a], body, TENSOR))
            value = b.emit(relax.Call(closure, [x]))
            branches.append(relax.SeqExpr([b._end_block()], value))
        return b.emit(relax.If(condition, *branches))

    mod = gg.vjp(program(build, BOOL, TENSOR))
    x = np.linspace(-1, 1, 4)
    np.testing.assert_allclose(gradient(mod, np.array(False), x), 1 - np.sin(x))
