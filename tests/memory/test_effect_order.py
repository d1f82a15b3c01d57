import pytest
import tvm
from tvm import relax

from graphgrad.memory.effect_order import is_fusion_dropping, may_write, pin_effects
from tests.lower import aliasing
from tests.lower.aliasing import TENSOR, call
from tests.lower.op_names import op_names

op = relax.op


def incremented(x):
    return op.call_inplace_packed(
        aliasing.DECLARED_INCREMENTED, x, inplace_indices=0, ty_args=TENSOR
    )


def printed(builder, x):
    builder.emit(op.print(x, format="{}"))
    return x


def module(build, dataflow=True, pure=False):
    builder = relax.BlockBuilder()
    x = relax.Var("x", TENSOR)
    with builder.function("main", [x], pure=pure):
        if dataflow:
            with builder.dataflow():
                result = builder.emit_output(build(builder, x))
        else:
            result = build(builder, x)
        builder.emit_func_output(result)
    return builder.get()


def overwritten(builder, x):
    before = builder.emit(op.sin(x))
    return builder.emit(op.add(before, builder.emit(incremented(x))))


def untouched(builder, x):
    return builder.emit(op.add(builder.emit(op.sin(x)), x))


def packed(name):
    """Return a program that calls a packed function for its effects alone."""

    def build(builder, x):
        builder.emit(call(name, x))
        return x

    return build


def kinds(mod):
    return [type(block) for block in mod["main"].body.blocks]


def test_a_block_that_overwrites_becomes_ordinary_in_its_order():
    mod = module(overwritten)
    changed = pin_effects(mod)
    assert kinds(mod) == [relax.DataflowBlock] and kinds(changed) == [relax.BindingBlock]
    (block,) = changed["main"].body.blocks
    assert not any(isinstance(binding.var, relax.DataflowVar) for binding in block.bindings)
    called = [name for name in op_names(changed["main"]) if name]
    assert called == ["relax.sin", "relax.call_inplace_packed", "relax.add"]
    assert relax.analysis.check_well_formed(changed)


def test_a_block_that_overwrites_nothing_stays_a_dataflow_block():
    mod = module(untouched, pure=True)
    tvm.ir.assert_structural_equal(pin_effects(mod), mod)


def test_so_it_is_in_branches():
    builder = relax.BlockBuilder()
    c, x = relax.Var("c", relax.TensorType((), "bool")), relax.Var("x", TENSOR)

    def branch(value):
        with_block = relax.BlockBuilder()
        with with_block.function("branch", [x], pure=False):
            with with_block.dataflow():
                y = with_block.emit_output(value)
            with_block.emit_func_output(y)
        return with_block.get()["branch"].body

    with builder.function("main", [c, x], pure=False):
        chosen = relax.If(c, branch(incremented(x)), branch(op.sin(x)))
        builder.emit_func_output(builder.emit(chosen))
    (block,) = pin_effects(builder.get())["main"].body.blocks
    branches = block.bindings[0].value
    assert type(branches.true_branch.blocks[0]) is relax.BindingBlock
    assert type(branches.false_branch.blocks[0]) is relax.DataflowBlock


@pytest.mark.parametrize(
    "build, expected",
    [
        (untouched, False),
        (overwritten, True),
        (packed(aliasing.INCREMENT), True),
        (packed("tests.unheard_of"), True),
        (lambda b, x: b.emit(op.call_pure_packed(aliasing.SAME, x, ty_args=TENSOR)), False),
        (lambda b, x: x, False),
        (printed, False),
    ],
)
def test_what_may_write(build, expected):
    assert may_write(module(build, dataflow=False)["main"].body) is expected


def test_a_call_of_a_relax_function_may_write():
    builder = relax.BlockBuilder()
    a, x = relax.Var("a", TENSOR), relax.Var("x", TENSOR)
    with builder.function("callee", [a]):
        builder.emit_func_output(a)
    callee = builder.get().get_global_var("callee")
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.Call(callee, [x])))
    assert may_write(builder.get()["main"].body)


def unused(builder, x):
    builder.emit(incremented(x))
    return builder.emit(op.sin(x))


@pytest.mark.parametrize(
    "build, dataflow, expected",
    [(unused, True, True), (overwritten, True, False), (untouched, True, False)],
)
def test_when_fusion_would_drop_a_call(build, dataflow, expected):
    assert is_fusion_dropping(module(build, dataflow)) is expected
