"""Which in-place calls overwrite what rules read, through views and tuples too."""

import pytest
from tvm import relax

from graphgrad.autodiff.overwriting import overwriting
from graphgrad.ir.inline import inline_calls
from tests.running import F64, function

op = relax.op
SHAPE = (2, 3)


def item(builder, y):
    return builder.emit(relax.TupleGetItem(builder.emit(relax.Tuple([y, y])), 1))


def reshaped(builder, y):
    flat = builder.emit(op.flatten(builder.emit(op.nn.batch_flatten(y))))
    return builder.emit(op.reshape(flat, SHAPE))


def with_one_more_axis(builder, y):
    return builder.emit(op.squeeze(builder.emit(op.expand_dims(y, 0)), [0]))


def cast(builder, y):
    return builder.match_cast(y, relax.TensorType(SHAPE, F64))


def copied(builder, y):
    return builder.emit(op.add(y, relax.const(0.0, F64)))


def overwritten(view, *active):
    """Return names of what is overwritten in a program where some variables are differentiated."""

    def build(builder, x):
        y = builder.emit(op.exp(x), "y")
        place = view(builder, y)
        type_ = relax.TensorType(SHAPE, F64)
        call = op.call_inplace_packed("mine", place, inplace_indices=[0], ty_args=type_)
        builder.emit(call, "z")
        return y

    program = inline_calls(function(build, (SHAPE, F64)), "main")
    differentiated = [var for var in program.variables() if var.name in active]
    return [var.name for var, _, _ in overwriting(program, differentiated)]


@pytest.mark.parametrize("view", [item, reshaped, with_one_more_axis, cast])
def test_what_shares_memory_with_what_is_read(view):
    assert overwritten(view, "y") == ["z"]


def test_a_copy_has_memory_of_its_own():
    assert overwritten(copied, "y") == []


def test_what_no_rule_reads_may_be_overwritten():
    assert overwritten(lambda builder, y: y) == []


def test_what_its_own_rule_reads():
    assert overwritten(copied, "z") == ["z"]
