import numpy as np
import pytest

import graphgrad as gg
from graphgrad.frontend.mode import specialize
from tests.differences import assert_gradients
from tests.frontend.converters.nodes import (
    assert_like_onnxruntime,
    drawn,
    forward,
    node_model,
    reference,
)
from tests.peers import peer

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}

STEPS, BATCH, FEATURES, HIDDEN = 4, 2, 3, 2

DIRECTIONS = ("forward", "reverse", "bidirectional")

ALL = ("bias", "lengths", "states", "peepholes")

ACTIVATIONS = (
    ["Elu", "HardSigmoid", "LeakyRelu"],
    ["Softplus", "Softsign", "Relu"],
    ["sigmoid", "TANH", "Tanh"],
)


def arrays(op, given=("bias",), *, directions=1, batch_first=False, dtype="float32"):
    """Return the inputs of a layer by name, None for those that are left out."""
    gates = GATES[op]

    def taken(name, seed, *shape):
        return drawn(shape, seed=seed, dtype=dtype) if name in given else None

    state = (BATCH, directions, HIDDEN) if batch_first else (directions, BATCH, HIDDEN)
    x = (BATCH, STEPS, FEATURES) if batch_first else (STEPS, BATCH, FEATURES)
    inputs = {
        "x": drawn(x, seed=1, dtype=dtype),
        "w": drawn((directions, gates * HIDDEN, FEATURES), seed=2, dtype=dtype),
        "r": drawn((directions, gates * HIDDEN, HIDDEN), seed=3, dtype=dtype),
        "b": taken("bias", 4, directions, 2 * gates * HIDDEN),
        "lengths": np.array([STEPS, 2], "int32") if "lengths" in given else None,
        "h": taken("states", 5, *state),
    }
    if op == "LSTM":
        inputs["c"] = taken("states", 6, *state)
        inputs["p"] = taken("peepholes", 7, directions, 3 * HIDDEN)
    return inputs


def layer(op, inputs, **attributes):
    """Return a model of one layer with all its outputs."""
    outputs = ("y", "y_h", "y_c") if op == "LSTM" else ("y", "y_h")
    ranks = {"y": 4, "y_h": 3, "y_c": 3}
    return node_model(op, inputs, outputs, opset=22, ranks=ranks, hidden_size=HIDDEN, **attributes)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", GATES)
def test_directions_and_all_inputs(op, direction):
    inputs = arrays(op, ALL, directions=2 if direction == "bidirectional" else 1)
    assert_like_onnxruntime(layer(op, inputs, direction=direction), inputs)


@pytest.mark.parametrize(
    ("op", "attributes", "given"),
    [
        ("RNN", {"clip": 0.3}, ()),
        ("GRU", {"clip": 0.3}, ()),
        ("GRU", {"linear_before_reset": 1}, ("bias", "states")),
        ("LSTM", {"clip": 0.3}, ("bias", "states")),
        ("LSTM", {"input_forget": 1}, ()),
    ],
    ids=["RNN clip", "GRU clip", "GRU linear", "LSTM clip", "LSTM coupled"],
)
def test_attributes(op, attributes, given):
    inputs = arrays(op, given)
    assert_like_onnxruntime(layer(op, inputs, **attributes), inputs)


@pytest.mark.parametrize("names", ACTIVATIONS, ids=" ".join)
def test_activations(names):
    """With the defaults of their parameters; names of any case."""
    inputs = arrays("LSTM")
    assert_like_onnxruntime(layer("LSTM", inputs, activations=names), inputs)


def test_defaults_that_onnxruntime_does_not_have():
    """It takes 0 where a parameter of these is left out."""
    inputs = arrays("LSTM")
    names = ["Affine", "ThresholdedRelu", "ScaledTanh"]
    parameters = {"activation_alpha": [1.0, 1.0, 1.0], "activation_beta": [0.0, 1.0]}
    explicit = layer("LSTM", inputs, activations=names, **parameters)
    for a, b in zip(
        forward(layer("LSTM", inputs, activations=names), inputs),
        reference(explicit, inputs),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_parameters_are_consumed_in_the_order_of_those_that_take_any():
    inputs = arrays("LSTM", directions=2)
    proto = layer(
        "LSTM",
        inputs,
        direction="bidirectional",
        activations=["HardSigmoid", "Tanh", "LeakyRelu", "Affine", "ScaledTanh", "Elu"],
        activation_alpha=[0.3, 0.05, 0.5, 0.8, 0.7],
        activation_beta=[0.4, 0.1, 0.9],
    )
    assert_like_onnxruntime(proto, inputs)


def test_the_batch_first():
    """onnxruntime does not serve this layout."""
    inputs = arrays("LSTM", ("states",), directions=2, batch_first=True)
    turned = {
        name: array.swapaxes(0, 1) if array is not None and name in "xhc" else array
        for name, array in inputs.items()
    }
    y, *states = forward(layer("LSTM", inputs, layout=1, direction="bidirectional"), inputs)
    expected_y, *expected = reference(layer("LSTM", turned, direction="bidirectional"), turned)
    np.testing.assert_allclose(y, expected_y.transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(states, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.swapaxes(0, 1), rtol=1e-5, atol=1e-6)


def test_half_precision_is_computed_in_float32():
    inputs = arrays("GRU", ("bias", "states"), dtype="float16")
    wide = {n: None if a is None else a.astype("float32") for n, a in inputs.items()}
    for ours, exact in zip(
        forward(layer("GRU", inputs), inputs), forward(layer("GRU", wide), wide), strict=True
    ):
        np.testing.assert_array_equal(ours, exact.astype("float16"))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("RNN", {"clip": 0.6}), ("GRU", {}), ("LSTM", {"direction": "reverse"})],
    ids=GATES,
)
def test_gradients_with_all_inputs(op, attributes):
    inputs = arrays(op, ALL, dtype="float64")
    module = specialize(gg.from_onnx(layer(op, inputs, **attributes)), None)
    assert_gradients(module, *(array for array in inputs.values() if array is not None))


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_gradients_as_in_torch(op):
    """Both directions; weights in torch's order of gates, of a symbolic batch and length."""
    torch = peer("torch")
    inputs = arrays(op, directions=2, dtype="float64")
    own = {"GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}[op]
    attributes = {"linear_before_reset": 1} if op == "GRU" else {}
    proto = node_model(
        op, inputs, opset=22, ranks={"y": 4}, hidden_size=HIDDEN, direction="bidirectional",
        shapes={"x": ["time", "batch", FEATURES]}, **attributes,
    )  # fmt: skip
    _, gradients = gg.value_and_grad(gg.from_onnx(proto), wrt=["x", "w", "r", "b"])(
        {name: array for name, array in inputs.items() if array is not None},
        np.ones((STEPS, 2, BATCH, HIDDEN)),
    )
    twin = getattr(torch.nn, op)(FEATURES, HIDDEN, bidirectional=True, dtype=torch.float64)

    def reordered(array):
        blocks = np.split(array, GATES[op], 0)
        return torch.from_numpy(np.concatenate([blocks[i] for i in own]))

    values = {}
    for number, suffix in enumerate(("", "_reverse")):
        bias = np.split(inputs["b"][number], 2)
        parts = (inputs["w"][number], inputs["r"][number], *bias)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        values |= {f"{n}_l0{suffix}": reordered(p) for n, p in zip(names, parts, strict=True)}
    twin.load_state_dict(values)
    x = torch.from_numpy(inputs["x"]).requires_grad_()
    twin(x)[0].sum().backward()
    np.testing.assert_allclose(gradients["x"], x.grad, rtol=1e-9, atol=1e-12)
    for name, theirs in (("w", "weight_ih"), ("r", "weight_hh")):
        for number, suffix in enumerate(("", "_reverse")):
            expected = getattr(twin, f"{theirs}_l0{suffix}").grad
            ours = reordered(gradients[name][number])
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)


def test_the_products_with_the_input_are_one_matmul_before_the_loop():
    module = specialize(gg.from_onnx(layer("LSTM", arrays("LSTM"))), None)
    text = module["main"].script()
    assert text.count("R.matmul(") == 1
    assert text.index("R.matmul(") < text.index("R.call_tir(")


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"activations": ["Cosine"]}, "'Cosine' is unknown"),
        ({"activations": ["Tanh", "Tanh"]}, "names 2 activations"),
        ({"direction": "sideways"}, "'sideways' is unknown"),
    ],
    ids=["unknown", "number", "direction"],
)
def test_what_is_refused(attributes, error):
    with pytest.raises(gg.ModelError, match=error):
        gg.from_onnx(layer("RNN", arrays("RNN"), **attributes))
