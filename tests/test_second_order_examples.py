"""The examples of examples/second_order follow the same training in PyTorch, in float64."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.peers import peer
from tests.promoted_models import promoted

FOLDER = Path(__file__).parent.parent / "examples" / "second_order"
STEPS = 12


def example(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors(arrays):
    torch = peer("torch")
    return {name: torch.tensor(array) for name, array in arrays.items()}


def perceptron(params, x):
    torch = peer("torch")
    layers = len(params) // 2
    for number in range(1, layers + 1):
        x = x @ params[f"fc{number}.weight"].T + params[f"fc{number}.bias"]
        if number < layers:
            x = torch.nn.functional.silu(x)
    return x


def tracked(params):
    return {name: tensor.detach().requires_grad_() for name, tensor in params.items()}


def gradients(loss, params, **options):
    torch = peer("torch")
    return dict(
        zip(params, torch.autograd.grad(loss, list(params.values()), **options), strict=True)
    )


def descended(params, slopes, rate):
    return {name: params[name].detach() - rate * slopes[name].detach() for name in params}


def close(given, expected):
    np.testing.assert_allclose(given, expected, rtol=1e-6)


def test_gradient_penalty():
    torch = peer("torch")
    module = example("gradient_penalty")
    critic, generator = map(promoted, module.networks())
    d, g = tensors(critic.params), tensors(generator.params)
    losses = module.train(
        module.Critic(critic), module.Generator(generator), STEPS, dtype="float64"
    )
    expected = []
    for batch in module.batches(STEPS, "float64"):
        noise, real, mix = map(torch.tensor, batch)
        d = tracked(d)
        fake = perceptron(g, noise).detach()
        between = (mix * fake + (1 - mix) * real).requires_grad_()
        (slope,) = torch.autograd.grad(perceptron(d, between).sum(), between, create_graph=True)
        penalty = module.PENALTY * ((slope.norm(dim=1) - 1) ** 2).mean()
        loss = perceptron(d, fake).mean() - perceptron(d, real).mean() + penalty
        expected.append(float(loss.detach()))
        # The last bias is in no gradient of the penalty, and cancels in the rest.
        slopes = gradients(loss, d, materialize_grads=True)
        d = descended(d, slopes, module.RATE)
        g = tracked(g)
        g = descended(g, gradients(-perceptron(d, perceptron(g, noise)).mean(), g), module.RATE)
    close(losses, expected)


def test_sharpness_aware():
    torch = peer("torch")
    module = example("sharpness_aware")
    model = promoted(module.network())
    params = tensors(model.params)
    training = module.SharpnessAware(model)
    batches = list(module.batches(STEPS, "float64"))
    losses = [training.step(batch) for batch in batches]

    def loss_of(params, batch):
        scores = perceptron(params, torch.tensor(batch["input"]))
        return torch.nn.functional.cross_entropy(scores, torch.tensor(batch["targets"]))

    expected = []
    for batch in batches:
        params = tracked(params)
        loss = loss_of(params, batch)
        expected.append(float(loss.detach()))
        uphill = gradients(loss, params)
        norm = torch.sqrt(sum((slope**2).sum() for slope in uphill.values()))
        worst = tracked(descended(params, uphill, -module.RADIUS / norm))
        params = descended(params, gradients(loss_of(worst, batch), worst), module.RATE)
    close(losses, expected)
    names = list(params)
    shapes = [params[name].shape for name in names]
    flat = torch.cat([params[name].flatten() for name in names])

    def of_flat(vector):
        parts = torch.split(vector, [shape.numel() for shape in shapes])
        pairs = zip(names, parts, shapes, strict=True)
        return loss_of({name: part.reshape(shape) for name, part, shape in pairs}, batches[0])

    hessian = torch.autograd.functional.hessian(of_flat, flat)
    largest = torch.linalg.eigvalsh(hessian).abs().max()
    close(training.sharpness(batches[0], iterations=300), float(largest))


def test_meta_learning():
    torch = peer("torch")
    module = example("meta_learning")
    model = promoted(module.network())
    params = tensors(model.params)
    learner = module.MetaLearner(model)
    steps = list(module.draw_tasks(STEPS, "float64"))
    losses = [learner.step(tasks) for tasks in steps]

    def loss_of(params, batch):
        difference = perceptron(params, torch.tensor(batch["input"]))
        return ((difference - torch.tensor(batch["targets"])) ** 2).mean()

    expected = []
    for tasks in steps:
        params = tracked(params)
        total = 0.0
        for known, asked in tasks:
            slopes = gradients(loss_of(params, known), params, create_graph=True)
            adapted = {name: params[name] - module.INNER_RATE * slopes[name] for name in params}
            total = total + loss_of(adapted, asked) / len(tasks)
        expected.append(float(total.detach()))
        params = descended(params, gradients(total, params), module.OUTER_RATE)
    close(losses, expected)


@pytest.mark.parametrize("name", ["gradient_penalty", "sharpness_aware", "meta_learning"])
def test_examples_are_documented(name):
    guide = FOLDER.parent.parent / "docs" / "forward-mode.md"
    assert f"examples/second_order/{name}.py" in guide.read_text(encoding="utf-8")
