"""Every operator of PyTorch that is imported: values and gradients beside PyTorch's, in float64."""

import importlib

import numpy as np
import pytest

import graphgrad as gg
from tests.frontend.exported.cases import FAMILIES, Calls, inputs
from tests.peers import peer

torch = peer("torch")
translation = importlib.import_module("graphgrad.frontend.exported.translation")

ELSEWHERE = {
    "_embedding_bag.default",  # test_torch_import.py
    "_native_batch_norm_legit_functional.default",  # test_torch_import.py
    "alias.default",  # what PyTorch makes of some views
    "as_strided.default",  # the family convnext
    "sym_size.int",  # test_torch_import.py
}


@pytest.mark.slow
def test_every_converter_has_a_case_and_results_have_types_of_pytorch(monkeypatch):
    """A result of another dtype or shape than PyTorch's is refused by `translation`."""
    translated = set()

    def checked(node, result):
        translated.add(node.target.__name__)
        return check(node, result)

    check = translation._check
    monkeypatch.setattr(translation, "_check", checked)
    for cases in FAMILIES.values():
        gg.from_torch(Calls(list(cases.values())), inputs())
    assert translation.CONVERTERS.keys() - translated == ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients(family):
    calls = Calls(list(FAMILIES[family].values()))
    model = gg.from_torch(calls, inputs())
    tensors = {name: inputs()[name] for name in model.inputs}
    wrt = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    for name in wrt:
        tensors[name].requires_grad_()
    expected = dict(zip(model.outputs, calls(**inputs() | tensors), strict=True))
    torch.manual_seed(1)
    cotangents = {n: torch.randn_like(y) for n, y in expected.items() if y.is_floating_point()}
    outputs, gradients = gg.value_and_grad(model, wrt=wrt)(
        {name: tensor.detach().numpy() for name, tensor in tensors.items()},
        {name: cotangent.numpy() for name, cotangent in cotangents.items()},
    )
    for name, output in expected.items():
        np.testing.assert_allclose(outputs[name], output.detach(), 1e-8, 1e-9, err_msg=name)
    reached = [name for name, output in expected.items() if output.requires_grad]
    theirs = torch.autograd.grad(
        [expected[name] for name in reached],
        [tensors[name] for name in wrt],
        [cotangents[name] for name in reached],
        allow_unused=True,
    )
    for name, gradient in zip(wrt, theirs, strict=True):
        right = np.zeros(tensors[name].shape) if gradient is None else gradient.numpy()
        error = np.linalg.norm(gradients[name] - right)
        assert error <= 1e-8 * np.linalg.norm(right) + 1e-12, name
