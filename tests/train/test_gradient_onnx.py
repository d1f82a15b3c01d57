"""Gradients as ONNX: onnxruntime computes what `value_and_grad` computes."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tvm import te, tirx

import graphgrad as gg
from graphgrad import models
from tests import torch_export
from tests import torch_image_nets as images
from tests import torch_sequence_nets as sequences
from tests.frontend.graphs import random
from tests.models import test_exported_families as families
from tests.models.test_second_order import build
from tests.peers import peer
from tests.running import function
from tests.train.test_dropout import network
from tests.train.test_loss import SETTINGS, identity

QUICK = ["vit", images.mobilenet_v3, sequences.graph]
"""Attention; grouped convolutions with batch norm; gathers and scatters."""


def session(path):
    ort = peer("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path, feeds):
    runner = session(path)
    names = [output.name for output in runner.get_outputs()]
    return dict(zip(names, runner.run(None, feeds), strict=True))


def _case(family, quick=QUICK):
    name = family if isinstance(family, str) else family.__name__
    marks = () if family in quick else pytest.mark.slow
    return pytest.param(family, id=name, marks=marks)


FAMILIES = [*torch_export.NETWORKS, *families.SHAPES]


def exported(family):
    """Return a network in float32, its inputs, the same as a model, and whether it trains."""
    torch = peer("torch")
    net, inputs, training = build(family)
    net.float()
    inputs = {k: x.to(torch.float32) if x.is_floating_point() else x for k, x in inputs.items()}
    dynamic = family is not sequences.graph
    proto = torch_export.export(net, inputs, training, dynamic=dynamic)
    return net, inputs, gg.from_onnx(proto), training


@pytest.mark.parametrize("family", [*map(_case, FAMILIES)])
def test_families_in_onnxruntime(family, tmp_path):
    net, inputs, model, training = exported(family)
    names = [name for name, _ in net.named_parameters()]
    path = tmp_path / "gradient.onnx"
    gg.gradient_to_onnx(model, path, wrt=names, training=training)
    onnx.checker.check_model(str(path), full_check=True)
    cotangent = families.cotangent_of(net, inputs).float().numpy()
    arrays = {name: tensor.detach().numpy() for name, tensor in inputs.items()}
    outputs, gradients = gg.value_and_grad(model, wrt=names, training=training)(arrays, cotangent)
    (output,) = model.outputs
    given = run(path, {**arrays, f"{output}.cotangent": cotangent})
    np.testing.assert_allclose(given[output], outputs[output], rtol=1e-4, atol=1e-5)
    error = {name: given[f"{name}.grad"] - gradients[name] for name in names}
    assert families.norm(error) <= 1e-5 * families.norm(gradients)


def test_loss_any_batch_and_weights_that_are_given(tmp_path):
    model = gg.from_onnx(models.mlp((4, 8, 3)))
    path = tmp_path / "gradient.onnx"
    gg.gradient_to_onnx(model, path, wrt=["input", "fc1.weight"], loss="cross_entropy")
    runner = session(path)
    assert [x.name for x in runner.get_outputs()] == [
        "loss",
        "logits",
        "input.grad",
        "fc1.weight.grad",
    ]
    assert runner.get_inputs()[0].shape == ["N", 4]
    f = gg.value_and_grad(model, wrt=["input", "fc1.weight"], loss="cross_entropy")
    for count in (1, 5):
        inputs = {"input": random(count, 4), "targets": np.arange(count) % 3}
        outputs, gradients = f(inputs)
        given = run(path, inputs)
        np.testing.assert_allclose(given["loss"], outputs["loss"], rtol=1e-5)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(given[f"{name}.grad"], gradient, rtol=1e-4, atol=1e-6)
    doubled = 2 * model.params["fc1.weight"]
    given = run(path, {**inputs, "fc1.weight": doubled})
    model.params["fc1.weight"] = doubled
    np.testing.assert_allclose(given["loss"], f(inputs)[0]["loss"], rtol=1e-5)


IN_EVALUATOR = "binary_cross_entropy_with_logits"
"""Of whose Softplus onnxruntime has none in float64."""


@pytest.mark.parametrize("rows", [4, tirx.Var("n", "int64")], ids=str)
@pytest.mark.parametrize("loss, targets, name, settings", SETTINGS, ids=range(len(SETTINGS)))
def test_losses_follow_torch(loss, targets, name, settings, rows, tmp_path):
    torch = peer("torch")
    path = tmp_path / "gradient.onnx"
    proto = gg.gradient_to_onnx(identity([rows, 3]), path, wrt="x", loss=loss)
    x = np.random.default_rng(0).uniform(0.1, 0.9, (4, 3))
    runner = ReferenceEvaluator(proto) if name == IN_EVALUATOR else session(path)
    value, _, gradient = runner.run(None, {"x": x, "targets": targets})
    given = torch.tensor(x, requires_grad=True)
    if "weight" in settings:
        settings = {**settings, "weight": torch.tensor(settings["weight"], dtype=torch.float64)}
    theirs = getattr(torch.nn.functional, name)(given, torch.tensor(targets), **settings)
    theirs.backward()
    assert value == pytest.approx(theirs.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, given.grad.numpy(), rtol=1e-10, atol=1e-15)


def test_dropouts_drop_what_ours_drop(tmp_path):
    path, model = tmp_path / "gradient.onnx", network()
    gg.gradient_to_onnx(model, path, wrt=["x", "weight"], loss="mse", training=True)
    f = gg.value_and_grad(model, wrt=["x", "weight"], loss="mse", training=True)
    inputs = {"x": random(8, 6), "targets": random(8, 3)}
    for seed in (0, 9, 2**31 - 1):
        outputs, gradients = f(inputs, seed=seed)
        given = run(path, {**inputs, "seed": np.array(seed << 32)})
        np.testing.assert_allclose(given["y"], outputs["y"], rtol=1e-5)
        for name, gradient in gradients.items():
            np.testing.assert_array_equal(given[f"{name}.grad"] == 0, gradient == 0)
            np.testing.assert_allclose(given[f"{name}.grad"], gradient, rtol=1e-4, atol=1e-6)


# Bad input


def test_kernels_are_refused_by_name_and_nothing_is_written(tmp_path):
    path = tmp_path / "gradient.onnx"
    path.write_bytes(b"before")

    def next_one(x):
        return te.compute(x.shape, lambda n: tirx.nextafter(x[n], x[n] + 1), name="next_one")

    mod = function(lambda b, x: b.emit_te(next_one, x), ((4,), "float32"))
    with pytest.raises(gg.ModelError, match=r"next_one\) ×1: .* \(tirx.nextafter\)"):
        gg.gradient_to_onnx(gg.Model(mod, {}), path, wrt="x0")
    assert path.read_bytes() == b"before"


@pytest.mark.parametrize(
    "options",
    [{"wrt": "nothing"}, {"opset": 9}, {"loss": "nothing"}, {"rules": "none"}],
    ids=str,
)
def test_arguments(options, tmp_path):
    with pytest.raises(gg.ArgumentError):
        gg.gradient_to_onnx(gg.from_onnx(models.mlp((4, 3))), tmp_path / "g.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_folder_that_does_not_exist(tmp_path):
    with pytest.raises(gg.ArgumentError, match="folder"):
        gg.gradient_to_onnx(gg.from_onnx(models.mlp((4, 3))), tmp_path / "no" / "g.onnx")


def test_second_order_is_the_gradient_of_a_gradient(tmp_path):
    """Products with the Hessian, as onnxruntime computes them, are those of `gg.hvp`."""
    model = gg.from_onnx(models.mlp((4, 8, 3), activation="silu"))
    gg.gradient_to_onnx(model, tmp_path / "first.onnx", loss="cross_entropy")
    first = gg.from_onnx(tmp_path / "first.onnx")
    gg.gradient_to_onnx(first, tmp_path / "second.onnx", wrt=list(model.params))
    generator = np.random.default_rng(0)
    batch = {"input": generator.standard_normal((5, 4), "float32"), "targets": np.arange(5) % 3}
    vectors = {k: generator.standard_normal(p.shape, "float32") for k, p in model.params.items()}
    seeds = {f"{name}.grad.cotangent": vector for name, vector in vectors.items()}
    zeros = {
        "loss.cotangent": np.zeros((), "float32"),
        "logits.cotangent": np.zeros((5, 3), "float32"),
    }
    second = run(tmp_path / "second.onnx", batch | seeds | zeros)
    _, gradients, products = gg.hvp(model, loss="cross_entropy")(batch, vectors)
    for name, product in products.items():
        np.testing.assert_allclose(second[f"{name}.grad"], gradients[name], atol=1e-6)
        np.testing.assert_allclose(second[f"{name}.grad.grad"], product, atol=1e-6)


@pytest.mark.parametrize("family", [_case(family, [sequences.graph]) for family in FAMILIES])
def test_second_order_of_families(family, tmp_path):
    net, inputs, model, training = exported(family)
    names = [name for name, _ in net.named_parameters()]
    (output,) = model.outputs
    gg.gradient_to_onnx(model, tmp_path / "first.onnx", wrt=names, training=training)
    first = gg.from_onnx(tmp_path / "first.onnx")
    gg.gradient_to_onnx(first, tmp_path / "second.onnx", wrt=names)
    onnx.checker.check_model(str(tmp_path / "second.onnx"), full_check=True)
    cotangent = families.cotangent_of(net, inputs).float().numpy()
    arrays = {name: tensor.detach().numpy() for name, tensor in inputs.items()}
    generator = np.random.default_rng(0)
    vectors = {n: generator.standard_normal(model.params[n].shape, "float32") for n in names}
    feeds = {
        **arrays,
        f"{output}.cotangent": cotangent,
        f"{output}.cotangent.cotangent": np.zeros_like(cotangent),
        **{f"{name}.grad.cotangent": vector for name, vector in vectors.items()},
    }
    given = run(tmp_path / "second.onnx", feeds)
    products = gg.hvp(model, wrt=names, training=training)(arrays, vectors, cotangent)[2]
    error = {name: given[f"{name}.grad.grad"] - products[name] for name in names}
    assert families.norm(error) <= 1e-5 * families.norm(products)
