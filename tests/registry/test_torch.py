"""Every sample of every op that torch has: gradients equal torch's in float64."""

import numpy as np
import pytest

from graphgrad.check import sample_inputs
from graphgrad.registry import all_rules
from graphgrad.registry.sample import Static, TensorArgument
from tests.peers import peer
from tests.registry.checkers import checker
from tests.registry.torch_functions import functions

RULES = {rule.op: rule for rule in all_rules()}
CASES = [
    (rule, index)
    for rule in RULES.values()
    if rule.op.startswith("relax.")
    for index in range(len(rule.samples))
]

NOT_IN_TORCH = {"relax.nn.batch_norm", "relax.nn.nll_loss"}
"""torch has no derivative by running statistics and class weights; differences check ours."""


def _torch_arguments(sample, tensors):
    remaining = iter(tensors)

    def build(argument):
        if isinstance(argument, TensorArgument):
            return next(remaining)
        if isinstance(argument, list):
            return [build(item) for item in argument]
        return argument.value if isinstance(argument, Static) else argument

    return [build(argument) for argument in sample.arguments]


@pytest.mark.parametrize(("rule", "index"), CASES, ids=str)
def test_gradient_equals_torch(rule, index, record_property):
    function = functions().get(rule.op)
    if function is None:
        assert rule.op in {
            "relax.astype",
            "relax.broadcast_to",
            "relax.collapse_sum_to",
            "relax.expand_dims",
            "relax.flatten",
            "relax.squeeze",
        }
        return
    torch = peer("torch")
    sample = rule.samples[index]
    generator = np.random.default_rng(index)
    inputs = sample_inputs(sample, generator)
    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in inputs]
    y = function(*_torch_arguments(sample, tensors), **sample.attributes)
    if y is None:
        return
    outputs = list(y) if isinstance(y, tuple | list) else [y]
    built = checker(rule.op)
    values = built.run(f"case{index}", inputs)
    cotangents = [np.zeros_like(v) for v in values]
    for position, output in enumerate(outputs):
        np.testing.assert_allclose(values[position], output.detach().numpy(), rtol=1e-9, atol=1e-9)
        cotangents[position] = generator.uniform(-1, 1, values[position].shape)
    torch.autograd.backward(outputs, [torch.tensor(c) for c in cotangents[: len(outputs)]])
    gradients = built.gradients(index, inputs, cotangents)
    leaves = [t for t in tensors if t.requires_grad]
    for ours, leaf in zip(gradients, leaves, strict=True):
        if leaf.grad is None and rule.op in NOT_IN_TORCH:
            continue
        theirs = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-8, atol=1e-9)
    record_property("op", rule.op)
    record_property("compared", ["torch"])
