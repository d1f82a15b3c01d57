import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from graphgrad.errors import ArgumentError, ModelError
from graphgrad.frontend.mode import is_seeded, specialize
from graphgrad.frontend.model import Model
from graphgrad.frontend.onnx_import import from_onnx
from graphgrad.ir.provenance import read
from tests.peers import peer

from .graphs import (
    CHANNELS,
    batch_norm_arrays,
    batch_norm_model,
    batch_norm_node,
    model_of,
    op_names,
    random,
    run_model,
    run_onnx,
)

SHAPE = [4, CHANNELS, 5]
X = random(*SHAPE)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def normalized(x, mean, var, arrays, prefix=""):
    def column(array):
        return array[:, None]

    y = (x - column(mean)) / np.sqrt(column(var) + 1e-5)
    return y * column(arrays[f"{prefix}scale"]) + column(arrays[f"{prefix}bias"])


@pytest.mark.parametrize("in_file", [0, 1])
@pytest.mark.parametrize("training", [True, False, None])
def test_form_and_numbers(in_file, training):
    model = from_onnx(batch_norm_model(0.8, in_file))
    arrays = batch_norm_arrays()
    outputs, state = run_model(model, specialize(model, training), X)
    mean, var = X.mean(axis=(0, 2)), X.var(axis=(0, 2))
    if training or (training is None and in_file):
        np.testing.assert_allclose(outputs[0], normalized(X, mean, var, arrays), **CLOSE)
        np.testing.assert_allclose(state[0], 0.8 * arrays["mean"] + 0.2 * mean, **CLOSE)
        np.testing.assert_allclose(state[1], 0.8 * arrays["var"] + 0.2 * var, **CLOSE)
    else:
        y = normalized(X, arrays["mean"], arrays["var"], arrays)
        np.testing.assert_allclose(outputs[0], y, **CLOSE)
        assert state == []


@pytest.mark.parametrize("in_file", [0, 1])
@pytest.mark.parametrize("batch", ["N", 4])
def test_agrees_with_onnxruntime_in_both_forms(in_file, batch):
    runtime = peer("onnxruntime")
    model = from_onnx(batch_norm_model(0.7, in_file, batch=batch))
    trained = run_onnx(runtime, batch_norm_model(0.7, 1, give_statistics=True), {"x": X})
    outputs, state = run_model(model, specialize(model, True), X)
    for ours, expected in zip([*outputs, *state], trained, strict=True):
        np.testing.assert_allclose(ours, expected, **CLOSE)
    outputs, _ = run_model(model, specialize(model, False), X)
    np.testing.assert_allclose(
        outputs[0], run_onnx(runtime, batch_norm_model(0.7, 0), {"x": X})[0], **CLOSE
    )


def batch_norm_module(dtype, nodes=1):
    """A Relax module of our own: batch norms in a row that share all their parameters."""
    x = relax.Var("x", relax.TensorType((4, CHANNELS, 5), dtype))
    tensors = [
        relax.Var(name, relax.TensorType((CHANNELS,), dtype)) for name in batch_norm_arrays()
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *tensors]):
        with builder.dataflow():
            value = x
            for _ in range(nodes):
                call = relax.op.nn.batch_norm(value, *tensors, axis=1, momentum=0.1, training=False)
                value = builder.emit(relax.TupleGetItem(builder.emit(call), 0))
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return builder.get()


def wrapped(dtype, nodes=1):
    arrays = {name: array.astype(dtype) for name, array in batch_norm_arrays().items()}
    state = {name: arrays.pop(name) for name in ("mean", "var")}
    return Model(batch_norm_module(dtype, nodes), arrays, state)


@pytest.mark.parametrize("training", [True, False])
def test_float64_agrees_with_torch(training):
    torch = peer("torch")
    model = wrapped("float64")
    x = X.astype("float64")
    layer = torch.nn.BatchNorm1d(CHANNELS, momentum=0.1, dtype=torch.float64).train(training)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(model.params["scale"]))
        layer.bias.copy_(torch.from_numpy(model.params["bias"]))
        layer.running_mean.copy_(torch.from_numpy(model.state["mean"]))
        layer.running_var.copy_(torch.from_numpy(model.state["var"]))
        expected = layer(torch.from_numpy(x)).numpy()
    outputs, state = run_model(model, specialize(model, training), x)
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-12, atol=1e-12)
    if training:
        np.testing.assert_allclose(state[0], layer.running_mean.numpy(), rtol=1e-12)
        unbiased = x.var(axis=(0, 2), ddof=1)
        population = layer.running_var.numpy() - 0.1 * (unbiased - x.var(axis=(0, 2)))
        np.testing.assert_allclose(state[1], population, rtol=1e-12)


def test_one_layer_applied_twice_updates_its_statistics_twice():
    """As torch does when a module is called twice."""
    model = wrapped("float32", nodes=2)
    outputs, state = run_model(model, specialize(model, True), X)
    arrays = batch_norm_arrays()
    x, mean, var = X, arrays["mean"], arrays["var"]
    for _ in range(2):
        batch_mean, batch_var = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
        mean, var = 0.9 * mean + 0.1 * batch_mean, 0.9 * var + 0.1 * batch_var
        x = normalized(x, batch_mean, batch_var, arrays)
    np.testing.assert_allclose(outputs[0], x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state[0], mean, **CLOSE)
    np.testing.assert_allclose(state[1], var, **CLOSE)


def test_mixed_forms_follow_the_file():
    """Statistics of a node in inference form come back as they went in."""
    tensors = [f"two.{name}" for name in ("scale", "bias", "mean", "var")]
    nodes = [
        batch_norm_node("x", "h", training_mode=1, outputs=("m", "v"), momentum=0.8),
        batch_norm_node("h", "y", tensors),
    ]
    arrays = batch_norm_arrays() | batch_norm_arrays("two.", seed=1)
    model = from_onnx(model_of(nodes, {"x": SHAPE}, {"y": SHAPE}, arrays))
    _, state = run_model(model, specialize(model, None), X)
    new = dict(zip(model.state, state, strict=True))
    np.testing.assert_allclose(
        new["mean"], 0.8 * arrays["mean"] + 0.2 * X.mean(axis=(0, 2)), **CLOSE
    )
    np.testing.assert_array_equal(new["two.mean"], arrays["two.mean"])
    np.testing.assert_array_equal(new["two.var"], arrays["two.var"])


def test_signature_does_not_depend_on_the_form():
    model = from_onnx(batch_norm_model())
    for training in (True, False, None):
        names = [var.name for var in specialize(model, training)["main"].params]
        assert names == [*model.inputs, *model.params, *model.state]


def test_spans_are_kept():
    model = from_onnx(batch_norm_model(training_mode=1))
    calls = [b.value for b in specialize(model, True)["main"].body.blocks[0].bindings]
    assert {read(call.span).node for call in calls} == {"BatchNormalization_0"}


@pytest.mark.parametrize(
    "proto",
    [
        batch_norm_model(),
        model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": SHAPE}, {"y": SHAPE}),
    ],
    ids=["batch norm", "nothing to compute"],
)
def test_the_model_is_not_changed(proto):
    model = from_onnx(proto)
    before = model.mod.clone()
    specialize(model, True)
    tvm.ir.assert_structural_equal(model.mod, before)


def test_unknown_form():
    with pytest.raises(ArgumentError, match="expected True, False or None, given 'yes'"):
        specialize(from_onnx(batch_norm_model()), "yes")


def dropout_model(ratio, training_mode=None, mask=False):
    inputs = ["x", "ratio", *(["mode"] if training_mode is not None else [])]
    arrays = {"ratio": np.float32(ratio)}
    if training_mode is not None:
        arrays["mode"] = np.bool_(training_mode)
    nodes = [helper.make_node("Dropout", inputs, ["y", "mask"][: 1 + mask], name="drop")]
    outputs = {"y": [3]}
    if mask:
        nodes.append(helper.make_node("Cast", ["mask"], ["m"], to=1))
        outputs["m"] = [3]
    return from_onnx(model_of(nodes, {"x": [3]}, outputs, arrays))


@pytest.mark.parametrize(
    "in_file, training, ratio, drops",
    [
        (None, True, 0.5, True),
        (False, True, 0.5, True),
        (True, True, 0.0, False),
        (True, None, 0.5, True),
        (True, None, 0.0, False),
        (False, None, 0.5, False),
        (None, None, 0.5, False),
        (True, False, 0.5, False),
    ],
)
def test_dropout(in_file, training, ratio, drops):
    model = dropout_model(ratio, in_file)
    assert op_names(model.mod) == ["relax.nn.dropout"]
    specialized = specialize(model, training)
    assert op_names(specialized) == ["graphgrad.dropout"] * drops
    assert is_seeded(specialized) == drops
    assert len(specialized["main"].params) == len(model.mod["main"].params) + drops


def test_mask_of_a_dropout_that_drops_nothing():
    model = dropout_model(0.5, mask=True)
    outputs, _ = run_model(model, specialize(model, False), random(3))
    np.testing.assert_array_equal(outputs[0], random(3))
    np.testing.assert_array_equal(outputs[1], np.ones(3, "float32"))


def calling(private):
    """A module whose main calls a function that holds the batch norm."""
    inner = batch_norm_module("float32")["main"]
    inner = inner.without_attr("global_symbol") if private else inner
    builder = relax.BlockBuilder()
    callee = builder.add_func(inner if private else inner.with_attr("global_symbol", "f"), "f")
    params = [relax.Var(var.name, var.ty) for var in inner.params]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(relax.Call(callee, params)))
    arrays = batch_norm_arrays()
    state = {name: arrays.pop(name) for name in ("mean", "var")}
    return Model(builder.get(), arrays, state)


def test_private_functions_are_inlined():
    model = calling(private=True)
    outputs, state = run_model(model, specialize(model, True), X)
    expected, expected_state = run_model(
        wrapped("float32"), specialize(wrapped("float32"), True), X
    )
    np.testing.assert_array_equal(outputs, expected)
    np.testing.assert_array_equal(state, expected_state)


def test_a_batch_norm_that_cannot_be_reached_is_refused():
    with pytest.raises(ModelError, match=r"batch_norm stands in function 'f'"):
        specialize(calling(private=False), True)
