import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.errors import ArgumentError, InputError
from graphgrad.ir.tensor import type_shape
from graphgrad.train.forward import FORWARD, ResolvedLoss, inline_model
from tests.train.nets import loss_function, mean_square, module, normalized

N = tvm.tirx.Var("n", "int64")
SCALAR = ([], "float32")


def two_outputs():
    mod = module(
        lambda b, x, w: (b.emit(relax.op.multiply(x, w)), b.emit(relax.op.sum(x))),
        x=([N, 3], "float32"), w=([3], "float32"),
    )  # fmt: skip
    return gg.Model(mod, {"w": np.ones(3, "float32")}, outputs=["y", "total"])


def batch(model, size):
    """Return the shapes of the inputs of a model with one input, for a batch of a size."""
    _, *example = type_shape(model.mod["main"].params[0].ty)
    return [(size, *example)]


def forward_of(model, loss, size, training=True):
    """Return the forward pass of a model for batches of a size."""
    return inline_model(model, training).forward(ResolvedLoss(model, loss), batch(model, size))


def shapes(types):
    return [type_shape(ty) for ty in types]


def test_everything_is_concrete():
    model = normalized()
    forward = forward_of(model, "cross_entropy", 6)
    program = forward.program
    assert program.name == FORWARD
    assert [p.name for p in program.params] == ["x", "targets", *model.params, *model.state]
    assert shapes(p.ty for p in program.params)[:2] == [[6, 2, 5, 5], [6]]
    loss, outputs, state = program.result.ty.fields
    assert type_shape(loss) == [] and shapes(outputs.fields) == [[6, 4]] == shapes(forward.outputs)
    assert shapes(state.fields) == [[4], [4]]


@pytest.mark.parametrize("training, statistics", [(True, 2), (False, 0), (None, 0)])
def test_without_a_loss(training, statistics):
    model = normalized()
    forward = forward_of(model, None, 2, training)
    outputs, state = forward.program.result.ty.fields
    assert forward.targets is None and len(outputs.fields) == 1
    assert len(state.fields) == statistics


def test_parts_of_what_it_takes():
    forward = forward_of(normalized(), "cross_entropy", 2)
    parts = [forward.arguments, forward.params, forward.state, forward.seed]
    assert [var for part in parts for var in part] == forward.program.params
    assert [var.name for var in forward.arguments] == ["x", "targets"]
    assert [var.name for var in forward.state] == ["bn.mean", "bn.var"]
    assert not forward.seeded


def test_a_form_is_for_any_shapes():
    """Each forward pass has variables of its own, so that a module may hold several."""
    model = two_outputs()
    form, loss = inline_model(model, True), ResolvedLoss(model, "total")
    first, second = (form.forward(loss, batch(model, size)).program for size in (7, 8))
    assert [type_shape(program.params[0].ty) for program in (first, second)] == [[7, 3], [8, 3]]
    assert not set(first.variables()) & set(second.variables())
    assert not isinstance(type_shape(form.program.params[0].ty)[0], int)


@pytest.mark.parametrize("types, message", [
    ([SCALAR], r"takes 1 parameter\(s\); it must take the model's 2 output"),
    ([SCALAR] * 4, r"takes 4 parameter\(s\)"),
])  # fmt: skip
def test_loss_functions_of_wrong_arity(types, message):
    loss = loss_function(lambda b, *values: relax.op.negative(values[0]), *types)
    with pytest.raises(ArgumentError, match=message):
        ResolvedLoss(two_outputs(), loss)


def test_loss_functions_that_return_no_scalar():
    loss = loss_function(lambda b, y, total: relax.op.negative(y), ([N, 3], "float32"), SCALAR)
    with pytest.raises(ArgumentError, match=r"result is of type .* a loss is a float scalar"):
        ResolvedLoss(two_outputs(), loss)


@pytest.mark.parametrize("y, message", [
    (([4, 3], "float32"), r"takes 'v0' as float32 of shape \(4, 3\), but .* shape \(5, 3\)"),
    (([N, N], "float32"), r"shape \(n, n\) with n = 5"),
    (([N], "float32"), r"but the model's output is float32 of shape \(5, 3\)"),
    (([N, 3], "float64"), "takes 'v0' as float64"),
])  # fmt: skip
def test_loss_functions_that_do_not_fit_the_outputs(y, message):
    model = two_outputs()
    loss = ResolvedLoss(model, loss_function(lambda b, y, t: relax.op.negative(t), y, SCALAR))
    with pytest.raises(ArgumentError, match=message):
        inline_model(model, True).forward(loss, batch(model, 5))


@pytest.mark.parametrize("given, wanted, ok", [
    ("float64", "float32", True), ("int64", "float32", True), ("int32", "int64", True),
    ("float32", "int64", False), ("bool", "float32", True), ("float32", "bool", False),
])  # fmt: skip
def test_targets_of_a_loss_function(given, wanted, ok):
    """Converted, but never by dropping what stands behind the point."""
    model = two_outputs()
    types = [([N, 3], "float32"), SCALAR, ([N], wanted)]
    loss = ResolvedLoss(model, loss_function(lambda b, y, t, _: relax.op.negative(t), *types))
    forward = inline_model(model, True).forward(loss, batch(model, 5))
    assert type_shape(forward.targets) == [5]
    if ok:
        assert loss.prepare(np.ones(5, given), forward.outputs).dtype == wanted
    else:
        with pytest.raises(InputError, match=f"targets: expected dtype {wanted}, given {given}"):
            loss.prepare(np.ones(5, given), forward.outputs)


def test_the_loss_function_itself_stays_symbolic():
    model = two_outputs()
    types = [([N, 3], "float32"), SCALAR, ([N, 3], "float32")]
    loss = ResolvedLoss(
        model, loss_function(lambda b, y, t, target: mean_square(b, y, target), *types)
    )
    for size in (2, 5):
        forward = inline_model(model, True).forward(loss, batch(model, size))
        assert type_shape(forward.targets) == [size, 3]


def test_an_output_that_is_no_scalar_is_no_loss():
    model = two_outputs()
    assert ResolvedLoss(model, "total").is_given
    with pytest.raises(ArgumentError, match="the model's output 'y' is of type"):
        ResolvedLoss(model, "y")
