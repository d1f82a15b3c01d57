"""What a forward pass keeps for its gradient, and that gradients are those of the whole."""

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.bridges.derivative import ITSELF, differentiate, from_text
from graphgrad.bridges.differentiable import differentiable
from graphgrad.bridges.residuals import split
from tests.peers import peer
from tests.promoted_models import promoted
from tests.train.nets import deep, normalized, perceptron

torch = peer("torch")


def test_contractions_and_moments_are_kept_and_maps_are_computed_again():
    program = differentiable(deep(2), True)._program_of(ITSELF, ((2, 3, 8, 8),))
    trained = tuple(n for n, param in enumerate(program.params) if param.name == "0.weight")
    parts = split(program, (trained, (0,)))
    names = [parts.forward.result.fields[position].name for position in parts.kept]
    assert {"0.conv", "1.conv"} <= set(names)
    assert not {"0.relu", "1.relu", "0.weight", "x"} & set(names)
    ops = {getattr(value.op, "name", "") for _, value in parts.backward.bindings if _is_call(value)}
    assert "graphgrad.conv_weight_gradient" in ops and "relax.nn.conv2d" not in ops
    whole = differentiate(program, (trained, (0,)))
    assert "relax.nn.conv2d" in {value.op.name for _, value in whole.bindings if _is_call(value)}


def _is_call(value):
    return hasattr(value, "op") and hasattr(value.op, "name")


def test_gradients_are_those_of_the_whole_and_nothing_is_computed_twice():
    module = gg.as_torch(promoted(normalized()))
    form = module._forms[True]
    x = torch.randn(3, 2, 5, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    number, text, arguments = module.call_arguments(x)
    keeping = module._keeping(arguments)
    assert from_text(keeping)[0] == "forward"
    outputs = [torch.ops.graphgrad.call(number, t, arguments)[0] for t in (text, keeping)]
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    params = list(module.parameters())
    gradients = [torch.autograd.grad(y.square().sum(), params) for y in outputs]
    for whole, kept in zip(*gradients, strict=True):
        torch.testing.assert_close(kept, whole, rtol=1e-9, atol=1e-12)
    compiled = form._compiled.keys()
    assert {part for _, part, _ in compiled} == {"whole", "forward", "backward"}
    module(x).sum().backward()
    assert set(form._compiled.keys()) == set(compiled)


@pytest.mark.parametrize("chosen", [["fc1.weight"], ["fc2.bias", "input"]], ids=str)
def test_gradients_of_a_part(chosen):
    """Other arguments than those that a call foresees, and a result without a cotangent."""
    module = gg.as_torch(promoted(perceptron()))
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    values = {**dict(module.named_parameters()), "input": x}
    y = module(x)
    given = torch.autograd.grad(y[:, 1].sum(), [values[name] for name in chosen])
    cotangent = np.zeros((6, 3))
    cotangent[:, 1] = 1
    _, expected = gg.value_and_grad(promoted(perceptron()), wrt=chosen)(
        x.detach().numpy(), cotangent
    )
    for name, gradient in zip(chosen, given, strict=True):
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-9, atol=1e-12)


def test_opcheck_of_what_a_module_calls():
    module = gg.as_torch(promoted(perceptron()))
    number, _, arguments = module.call_arguments(torch.randn(2, 4, dtype=torch.float64))
    call = number, module._keeping(arguments), arguments
    torch.library.opcheck(torch.ops.graphgrad.call.default, call)
