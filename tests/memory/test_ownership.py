import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from graphgrad.ir.rewrite import bindings_of
from graphgrad.memory.ownership import own_constants, own_views
from tests.lower import aliasing
from tests.lower.aliasing import DTYPE, SHAPE, TENSOR, call
from tests.lower.op_names import op_names

op = relax.op
CONSTANT = relax.const(np.ones(SHAPE), DTYPE)


def module(build, types=(TENSOR,), dataflow=False):
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    with builder.function("main", params, pure=False):
        if dataflow:
            with builder.dataflow():
                result = builder.emit_output(build(builder, *params))
        else:
            result = build(builder, *params)
        builder.emit_func_output(result)
    return builder.get()


def copies(mod):
    """Return how often a function copies a constant."""
    return sum(
        isinstance(call, tvm.ir.Call)
        and call.op == tvm.ir.Op.get("relax.call_tir")
        and "copy_of_constant" in call.args[0].name_hint
        for call in (binding.value for binding in bindings_of(mod["main"].body))
    )


def constants_in_the_open(mod):
    """Return the constants of a function that are read by anything but the kernels of copies."""
    body = mod["main"].body
    found = []
    for binding in bindings_of(body):
        value = binding.value
        if not (isinstance(value, tvm.ir.Call) and value.op == tvm.ir.Op.get("relax.call_tir")):
            tvm_ffi.structural_walk(value, (tvm.ir.GenericConst, found.append))
    tvm_ffi.structural_walk(body.body, (tvm.ir.GenericConst, found.append))
    return found


def in_a_nested_tuple(b, x):
    inner = b.emit(relax.Tuple([CONSTANT, x]))
    return b.emit(relax.Tuple([x, inner]))


def passed(name):
    """Return a program that gives a constant to a packed function."""

    def build(b, x):
        b.emit(call(name, CONSTANT))
        return x

    return build


def written(b, x):
    return b.emit(
        op.call_inplace_packed(
            aliasing.DECLARED_INCREMENTED, CONSTANT, inplace_indices=0, ty_args=TENSOR
        )
    )


def by_a_name(b, x):
    return b.emit(b.emit(CONSTANT))


@pytest.mark.parametrize(
    "build, is_exposed",
    [
        (lambda b, x: CONSTANT, True),
        (by_a_name, True),
        (in_a_nested_tuple, True),
        (passed(aliasing.DECLARED_KEEP), True),
        (written, True),
        (lambda b, x: b.emit(op.add(x, CONSTANT)), False),
        (passed(aliasing.DECLARED_SEE), False),
    ],
    ids=["returned", "named", "nested", "kept", "written", "added", "seen"],
)
def test_constants_are_copied_where_they_are_exposed(build, is_exposed):
    mod = module(build)
    changed = own_constants(mod)
    assert bool(copies(changed)) is is_exposed
    if is_exposed:
        assert not constants_in_the_open(changed)
    else:
        tvm.ir.assert_structural_equal(changed, mod)


def test_a_constant_that_a_branch_returns_is_copied_in_that_branch():
    condition = relax.TensorType((), "bool")
    changed = own_constants(
        module(
            lambda b, c, x: b.emit(
                relax.If(c, relax.SeqExpr([], CONSTANT), relax.SeqExpr([], x)), "y"
            ),
            types=(condition, TENSOR),
        )
    )
    assert copies(changed) == 1
    (chosen,) = (b.value for b in bindings_of(changed["main"].body) if b.var.name == "y")
    assert chosen.true_branch.blocks and not chosen.false_branch.blocks


def test_a_copy_has_the_values_and_other_memory():
    mod = own_constants(module(lambda b, x: CONSTANT))
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    x = tvm.runtime.tensor(np.zeros(SHAPE))
    first = machine["main"](x)
    first.copyfrom(np.zeros(SHAPE))
    np.testing.assert_array_equal(machine["main"](x).numpy(), np.ones(SHAPE))


def both(b, x):
    return relax.Tuple([b.emit(op.reshape(x, (2, 2))), b.emit(op.sin(x))])


def inside(b, x):
    return b.emit(op.sin(b.emit(op.reshape(x, (2, 2)))))


def of_what_is_written(b, x):
    h = b.emit(op.sin(x))
    view = b.emit(op.reshape(h, (2, 2)))
    b.emit(
        op.call_inplace_packed(aliasing.DECLARED_INCREMENTED, h, inplace_indices=0, ty_args=TENSOR)
    )
    return b.emit(op.cos(view))


@pytest.mark.parametrize(
    "build, is_view", [(both, False), (inside, True), (of_what_is_written, False)]
)
def test_reshapes_become_views_only_where_nobody_sees_it(build, is_view):
    mod = relax.transform.LegalizeOps()(module(build, dataflow=True))
    changed = relax.transform.RewriteDataflowReshape()(own_views(mod))
    assert ("relax.reshape" in op_names(changed["main"])) is is_view
