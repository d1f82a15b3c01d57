import numpy as np
import pytest

from tests.peers import peer


@pytest.fixture
def opinfo():
    torch = peer("torch")
    peer("expecttest")
    import opinfo

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield opinfo
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["tanh", "var", "native_layer_norm"])
def test_agrees(opinfo, name):
    verdict = opinfo.judge(name, samples=1)
    assert (verdict.status, verdict.reason) == ("agrees", "")


def test_without_translation(opinfo):
    verdict = opinfo.judge("i0", samples=1)
    assert verdict.status == "not exported"


def test_an_exporter_that_changes_the_meaning(opinfo):
    peer("onnxruntime")
    verdict = opinfo.judge("nn.functional.avg_pool2d", samples=1)  # it drops divisor_override
    assert verdict.status == "not exported"
    assert verdict.reason.endswith("the exported file computes something else")


class Square:
    """x², as a sample of an operator."""

    def __init__(self, torch):
        self.inputs = (torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True),)

    def __call__(self, x):
        return (x * x,)


@pytest.mark.parametrize(
    "outputs, gradient, reason",
    [
        ([1.0, 4.0, 9.0], lambda x, ct: 2 * x * ct, ""),
        ([1.0, 4.0, 9.1], lambda x, ct: 2 * x * ct, "output 0 differs"),
        ([1.0, 4.0, 9.0], lambda x, ct: x * ct, "gradient of x0 differs"),
        ([1.0, 4.0, 9.0], lambda x, ct: 0 * x, "gradient of x0 differs"),
    ],
)
def test_differences_are_found(opinfo, outputs, gradient, reason):
    module = Square(peer("torch"))
    expected = module(*module.inputs)
    x, (ct,) = module.inputs[0].detach().numpy(), opinfo._cotangents(expected)
    found = opinfo._difference([np.array(outputs)], {"x0": gradient(x, ct)}, module, expected)
    assert found.startswith(reason) and bool(found) == bool(reason)


@pytest.mark.slow
def test_json_form(bench):
    peer("torch")
    peer("expecttest")
    result = bench("opinfo.py", "--json", "--jobs", "1", "--samples", "1", "--match", "^(tanh|i0)$")
    assert result["counts"] == {"agrees": 1, "not exported": 1, "missing": 0, "wrong": 0}
    assert [operator["name"] for operator in result["operators"]] == ["i0", "tanh"]
