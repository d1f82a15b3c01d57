"""What trains by default: of networks that torch exports, exactly their parameters, by value."""

from collections import Counter
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import graphgrad as gg
from graphgrad.errors import ArgumentError
from graphgrad.frontend.onnx_import import from_onnx
from tests.torch_export import export, export_dynamo, role_network

from .graphs import batch_norm_arrays, batch_norm_node, model_of, random

# For each network: how many tensors train in the file of each exporter that computes some of the
# weights, which may be fewer than the parameters, and words of the notes on the optimized one.
NETWORKS = {
    "GroupNorms": (6, 6, ["ones and zeros of norms", "computed"]),
    "InstanceNorms": (5, 5, ["computed"]),
    "BatchNorms": (7, 4, ["batch norms are folded into the weights ['conv.weight', 'fc.weight']"]),
    "WindowAttention": (7, 7, ["tables of short numbers", "computed"]),
    "Detector": (4, 4, ["tables of short numbers", "a softmax weights"]),
    "Rotary": (3, 3, ["sines and cosines", "masks", "computed"]),
    "RotaryFrequencies": (3, 3, ["sines and cosines", "masks", "computed"]),
    "Vit": (14, 14, ["computed"]),
    "ConvNext": (9, 9, ["by which an input is standardized"]),
    "Contrastive": (4, 4, ["computed"]),
    "Gpt": (11, 9, ["sines and cosines", "masks", "tables of short numbers", "are equal"]),
    "Encoder": (14, 9, ["masks", "of several layers each"]),
    "WeightNorms": (4, 4, ["computed"]),
    "SpectralNorms": (0, 4, ["computed"]),
    "Recurrent": (10, 10, ["computed"]),
}
NOT_EXPORTED = "SpectralNorms"  # by the legacy exporter: torch has no translation of vdot
QUICK = ["GroupNorms", "WindowAttention", "Rotary", "Gpt"]  # of the dynamo exporter, which is slow


@cache
def imported(name, exporter, training=False):
    """A network, and the models of its two files: as it is, and with weights computed."""
    net, inputs = role_network(name)
    if exporter == "dynamo":
        plain, computed = export_dynamo(net, inputs, training)
    else:
        plain, computed = (
            export(net, inputs, training, dynamic=False, fold=fold) for fold in (False, True)
        )
    return net, from_onnx(plain), from_onnx(computed)


def values(arrays):
    """The arrays as a multiset of shapes and numbers."""
    return Counter((array.shape, array.tobytes()) for array in arrays)


LEGACY = [pytest.param("legacy", name, id=f"legacy {name}") for name in NETWORKS]
LEGACY = [case for case in LEGACY if case.values[1] != NOT_EXPORTED]
DYNAMO = [
    pytest.param(
        "dynamo",
        name,
        id=f"dynamo {name}",
        marks=() if name in QUICK else pytest.mark.slow,
    )
    for name in NETWORKS
]


@pytest.mark.parametrize("exporter, name", [*LEGACY, *DYNAMO])
def test_what_trains_are_the_parameters(exporter, name):
    net, model, _ = imported(name, exporter)
    parameters = [p.detach().numpy() for p in net.parameters()]
    assert values(model.params[n] for n in model.trainable()) == values(parameters)
    statistics = {n for n, _ in net.named_buffers() if "running" in n}
    assert set(model.state) == statistics
    told = " ".join(model.notes)
    assert all(repr(n) in told for n in model.constants)


@pytest.mark.parametrize("exporter, name", [*LEGACY, *DYNAMO])
def test_what_trains_where_an_exporter_computes_weights(exporter, name):
    """None of the buffers, nor what is computed of them; each weight once, but for tied ones."""
    net, _, model = imported(name, exporter)
    legacy, dynamo, notes = NETWORKS[name]
    trained = {n: set(model.params[n].ravel().tolist()) for n in model.trainable()}
    for buffer in net.buffers():
        numbers = set(buffer.numpy().ravel().tolist())
        assert not any(numbers >= weight for weight in trained.values() if len(weight) > 1)
    assert len(trained) == (dynamo if exporter == "dynamo" else legacy), sorted(trained)
    if exporter == "dynamo":
        told = " ".join(model.notes)
        assert all(words in told for words in notes), model.notes


@pytest.mark.parametrize("name", ["GroupNorms", pytest.param("BatchNorms", marks=pytest.mark.slow)])
def test_a_file_in_training_form_trains_the_same(name):
    net, model, _ = imported(name, "dynamo", training=True)
    assert set(model.trainable()) == dict(net.named_parameters()).keys()
    assert set(model.state) == {n for n, _ in net.named_buffers() if "running" in n}


def operand(array, name="c"):
    """A model in which an operation, not a layer, reads a tensor."""
    array = np.asarray(array, "float32")
    nodes = [
        helper.make_node("Mul", ["x", name], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    rows = len(array) if array.ndim == 2 else 2
    arrays = {name: array, "w": random(4, 3)}
    return model_of(nodes, {"x": [rows, 4]}, {"y": [rows, 3]}, arrays)


ANGLES = np.outer(np.arange(6), 1 / 10000 ** (np.arange(4) / 4))


@pytest.mark.parametrize(
    "array, name, trains",
    [
        # as weights start, or as they are after training
        pytest.param(np.full(4, 1e-6), "gamma", True, id="layer scale"),
        pytest.param(np.ones(4), "norm", True, id="ones"),
        pytest.param(np.zeros((2, 4)), "pos_embed", True, id="positions of zeros"),
        pytest.param(random(2, 4), "pos_embed", True, id="positions"),
        pytest.param(random(4), "val_7", True, id="renamed"),
        pytest.param(random(4).astype("float16"), "c", True, id="rounded to float16"),
        pytest.param([1, 2, 3, 4], "scale", True, id="short numbers with a weight's name"),
        pytest.param([0.1, 0.2, 0.3, 0.4], "c", True, id="decimal fractions"),
        pytest.param(np.full(4, 0.25), "c", True, id="slopes"),
        pytest.param([2.6593], "logit_scale", True, id="temperature"),
        # what programs compute
        pytest.param([[0, -np.inf, 0, 0], [0, 0, 0, 0]], "c", False, id="mask of infinities"),
        pytest.param([[0, -1e9, 0, 0], [0, 0, 0, 0]], "bias", False, id="mask named as a weight"),
        pytest.param([[1, 0, 0, 0], [1, 1, 0, 0]], "bias", False, id="triangle of ones"),
        pytest.param([-1e4], "masked_bias", False, id="number that forbids"),
        pytest.param([1.25, 1.625, 4.125, 2.875], "anchors", False, id="anchors"),
        pytest.param(np.arange(4), "offsets", False, id="positions in order"),
        pytest.param(np.cos(ANGLES), "c", False, id="rotary table"),
        pytest.param(np.cos(ANGLES).astype("float16"), "c", False, id="rounded rotary table"),
        pytest.param(random(4), "/Constant_3_output_0", False, id="written in the program"),
        pytest.param(random(4), "model/normalize/sub/y:0", False, id="written, in TensorFlow"),
        pytest.param(random(4), "bn.running_mean", False, id="statistic of an unknown norm"),
    ],
)
def test_an_operand(array, name, trains):
    model = from_onnx(operand(array, name))
    assert model.trainable() == ([name, "w"] if trains else ["w"])
    assert trains or any(repr(name) in note and "wrt=" in note for note in model.notes)


def test_weights_rounded_to_few_digits_train():
    """As of a network that was trained in bfloat16: each number has a short significand."""
    for seed in range(50):
        array = random(4, seed=seed).astype(ml_dtypes.bfloat16).astype("float32")
        assert from_onnx(operand(array)).trainable() == ["c", "w"]


def test_what_is_compared_or_sets_a_shape_does_not_train():
    nodes = [
        helper.make_node("Greater", ["x", "threshold"], ["c"]),
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("Where", ["c", "h", "x"], ["s"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["extents"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["extents", "halves"], ["half"]),
        helper.make_node("Cast", ["half"], ["sizes"], to=TensorProto.INT64),
        helper.make_node("Expand", ["first", "sizes"], ["e"]),
        helper.make_node("ReduceSum", ["e"], ["t"], keepdims=0),
        helper.make_node("Add", ["s", "t"], ["y"]),
    ]
    arrays = {
        "threshold": random(3),
        "halves": np.array([0.5, 2], "float32"),
        "first": random(1, 1),
        "w": random(3),
    }
    model = from_onnx(model_of(nodes, {"x": [2, 3]}, {"y": [2, 3]}, arrays))
    assert model.trainable() == ["first", "w"] and model.constants == {"threshold"}
    assert "halves" not in model.params  # known at import, so that the shape is


def test_files_of_tensorflow():
    """Names and forms as tf2onnx writes them."""
    prefix = "StatefulPartitionedCall/model/"
    dense = f"{prefix}dense/MatMul/ReadVariableOp:0"
    bias = f"{prefix}dense/BiasAdd/ReadVariableOp:0"
    scale, shift = "const_fold_opt__12", f"{prefix}norm/batchnorm/add/ReadVariableOp:0"
    conv = "const_fold_opt__34"
    nodes = [
        helper.make_node("Sub", ["x", f"{prefix}normalization/sub/y:0"], ["a"]),
        helper.make_node("Div", ["a", f"{prefix}normalization/Sqrt:0"], ["b"]),
        helper.make_node("Mul", ["b", f"{prefix}rescaling/Cast/x:0"], ["c"]),
        helper.make_node("Conv", ["c", conv], ["d"]),
        helper.make_node("BatchNormalization", ["d", *batch_norm_arrays()], ["e"]),
        helper.make_node("Mul", ["e", scale], ["f"]),
        helper.make_node("Add", ["f", shift], ["g"]),
        helper.make_node("ReduceMean", ["g"], ["h"], axes=[2], keepdims=0),
        helper.make_node("MatMul", ["h", dense], ["i"]),
        helper.make_node("Add", ["i", bias], ["y"]),
    ]
    arrays = {
        f"{prefix}normalization/sub/y:0": random(1, 3, 1),
        f"{prefix}normalization/Sqrt:0": 1 + random(1, 3, 1) ** 2,
        f"{prefix}rescaling/Cast/x:0": np.float32(1 / 255),
        conv: random(3, 3, 1),
        **batch_norm_arrays(),
        scale: np.ones((3, 1), "float32"),
        shift: np.zeros((3, 1), "float32"),
        dense: random(3, 2),
        bias: np.zeros(2, "float32"),
    }
    model = from_onnx(model_of(nodes, {"x": [2, 3, 4]}, {"y": [2, 2]}, arrays))
    assert model.trainable() == [conv, "scale", "bias", scale, shift, dense, bias]
    assert list(model.state) == ["mean", "var"]
    assert model.constants == {f"{prefix}normalization/{n}" for n in ("sub/y:0", "Sqrt:0")}
    assert any("computed" in note and scale in note for note in model.notes)


def test_wrt_trains_a_constant():
    model = from_onnx(operand(np.arange(4), "offsets"))
    x, labels = random(2, 4), np.array([0, 2])
    step = gg.train_step(model, wrt=["offsets", "w"])
    step(x, labels)
    assert not np.array_equal(step.params["offsets"], model.params["offsets"])
    step = gg.train_step(model)
    step(x, labels)
    assert np.array_equal(step.params["offsets"], model.params["offsets"])


@pytest.mark.parametrize(
    "constants, trained", [("w", ["gain"]), (["g*"], ["w"]), ((), ["gain", "w"]), (["*"], [])]
)
def test_constants_that_a_user_names(constants, trained):
    assert from_onnx(operand(random(4), "gain"), constants=constants).trainable() == trained


def test_a_literal_may_be_named_among_the_constants():
    model = from_onnx(operand([0.5], "onnx::Mul_3"), constants=["onnx::Mul_3"])
    assert model.trainable() == ["w"]


@pytest.mark.parametrize(
    "constants, message",
    [
        (["scales"], "constants: the model has no weight 'scales'; close names are"),
        (["mean"], "constants: 'mean' is a running statistic, which batch norms update"),
        ([3], "must be a name or a list of names"),
        (None, "must be a name or a list of names"),
    ],
)
def test_constants_that_are_refused(constants, message):
    shape = [2, 3, 4]
    proto = model_of([batch_norm_node("x", "y")], {"x": shape}, {"y": shape}, batch_norm_arrays())
    with pytest.raises(ArgumentError, match=message):
        from_onnx(proto, constants=constants)


def test_a_constant_that_a_user_named_is_refused_in_wrt():
    model = from_onnx(operand(random(4), "gain"), constants=["gain"])
    with pytest.raises(ArgumentError, match=r"wrt: .*\['gain'\] are frozen, by .* constants="):
        gg.train_step(model, wrt=["gain", "w"])


@pytest.mark.parametrize(
    "names, trains",
    [
        (("norm.weight", "norm.bias"), True),
        (("12", "13"), True),
        (("const_fold_opt__1", "const_fold_opt__2"), True),
        (("val_8", "val_11"), False),
        (("/norm/Constant_1_output_0", "/norm/Constant_2_output_0"), False),
    ],
)
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "trained"])
def test_a_norm_of_ones_and_zeros(names, trains, fresh):
    node = helper.make_node("InstanceNormalization", ["x", *names], ["y"])
    arrays = dict(zip(names, (np.ones(3, "float32"), np.zeros(3, "float32")), strict=True))
    if not fresh:
        arrays = {name: random(3) for name in names}
    model = from_onnx(model_of([node], {"x": [2, 3, 4]}, {"y": [2, 3, 4]}, arrays))
    is_written = "Constant" in names[0]
    assert model.trainable() == (list(names) if trains or not (fresh or is_written) else [])
