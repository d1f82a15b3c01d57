"""Models as modules of PyTorch: values, gradients to order two, forms, memory, bad input."""

import copy
import pickle
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.errors import ArgumentError, InputError
from graphgrad.train.staging import Staging
from tests.bridges.smooth import smooth_model
from tests.frontend.graphs import model_of
from tests.peers import peer
from tests.promoted_models import promoted
from tests.train.nets import module, normalized

torch = peer("torch")
F64 = torch.float64


@pytest.fixture(scope="module")
def smooth():
    return gg.as_torch(smooth_model())


def draw(*shape, dtype=F64, **options):
    return torch.randn(*shape, dtype=dtype, generator=torch.manual_seed(0), **options)


def twin(module):
    """What `normalized` is, in PyTorch, with the values of a module."""

    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = torch.nn.Conv2d(2, 4, 3, bias=False), torch.nn.BatchNorm2d(4)

        def forward(self, x):
            return torch.relu(self.bn(self.conv(x))).mean((2, 3))

    values = module.state_dict()
    values["bn.running_mean"], values["bn.running_var"] = (values.pop(f"bn.{s}") for s in MOMENTS)
    net = Twin().double()
    net.load_state_dict(values, strict=False)
    return net


MOMENTS = ("mean", "var")


@pytest.mark.parametrize("training", [True, False])
def test_training_form_and_inference_form_follow_pytorch(training):
    ours = gg.as_torch(promoted(normalized())).train(training)
    theirs = twin(ours).train(training)
    inputs = [draw(5, 2, 5, 5, requires_grad=True) for _ in range(2)]
    results = [net(x) for net, x in zip((ours, theirs), inputs, strict=True)]
    for result in results:
        result.pow(2).sum().backward()
    pairs = [results, [x.grad for x in inputs], (ours.bn.mean, theirs.bn.running_mean)]
    pairs += [(ours.get_parameter(k).grad, p.grad) for k, p in theirs.named_parameters()]
    for given, expected in pairs:
        torch.testing.assert_close(given, expected, rtol=1e-8, atol=1e-10)
    # ONNX's running variance is that of the population, PyTorch's the unbiased one.
    count = 5 * 3 * 3
    population = 0.9 + (theirs.bn.running_var - 0.9) * (count - 1) / count
    torch.testing.assert_close(ours.bn.var, population if training else theirs.bn.running_var)


def test_gradcheck_gradgradcheck_and_opcheck(smooth):
    x = draw(2, 4, requires_grad=True)

    def call(x, weight):
        return torch.func.functional_call(smooth, {"layer.weight": weight}, (x,))

    arguments = x, smooth.layer.weight
    assert torch.autograd.gradcheck(call, arguments)
    assert torch.autograd.gradgradcheck(call, arguments)
    torch.library.opcheck(torch.ops.graphgrad.call.default, smooth.call_arguments(x))


@pytest.mark.slow
def test_third_order(smooth):
    x = draw(1, 4, requires_grad=True)
    expected = torch.tanh(x @ smooth.layer.weight).sum()
    given = smooth(x)[1]
    for _ in range(3):
        given, expected = (
            torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]
            for y in (given, expected)
        )
        given, expected = given.sum(), expected.sum()
        torch.testing.assert_close(given, expected, rtol=1e-8, atol=1e-8)


def test_each_batch_size_is_compiled_once(smooth):
    form = smooth._forms[True]
    with mock.patch.object(form, "_compile_program", wraps=form._compile_program) as compiled:
        for size in (7, 8, 7, 8):
            smooth(draw(size, 4))
    assert compiled.call_count == 2


def test_torch_compile_sees_one_op_for_any_batch(smooth):
    compiled = torch.compile(smooth, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (2, 7):
        x = draw(size, 4)
        torch.testing.assert_close(compiled(x)[0], torch.tanh(x @ smooth.layer.weight))
        compiled(x)[1].backward()


def test_names_are_those_of_the_file_and_frozen_ones_need_no_gradient():
    module = gg.as_torch(normalized().freeze("bn.bias"))
    names = ["conv.weight", "bn.weight", "bn.bias"]
    assert [name for name, _ in module.named_parameters()] == names
    assert [name for name, _ in module.named_buffers()] == ["bn.mean", "bn.var"]
    assert {name: name for name in module.state_dict()} == module.onnx_names
    assert [p.requires_grad for p in module.parameters()] == [True, True, False]


@pytest.mark.parametrize("name, key", [
    ("layer.0.weight", "layer.0.weight"),
    ("onnx::MatMul_3/w", "onnx::MatMul_3/w"),
    ("a..b", "a__b"),
    (".b", "_b"),
    ("half.weight", "half_weight"),  # modules have a method of that name
    ("forward", "forward_"),
    ("taken", "taken_"),  # is a submodule, of the next
])  # fmt: skip
def test_names_that_pytorch_refuses(name, key):
    def build(b, x, weight, other):
        return b.emit(relax.op.add(relax.op.add(x, weight), other))

    types = dict.fromkeys(("x", name, "taken.0"), ([2], "float32"))
    mod = module(build, **types)
    ones = np.ones(2, "float32")
    made = gg.as_torch(gg.Model(mod, {name: ones, "taken.0": ones}))
    assert made.onnx_names[key] == name
    assert key in dict(made.named_parameters())


def test_copies_and_pickles_compute_the_same_with_values_of_their_own(smooth):
    x = draw(2, 4)
    for other in (copy.deepcopy(smooth), pickle.loads(pickle.dumps(smooth))):
        torch.testing.assert_close(other(x), smooth(x), rtol=0, atol=0)
        assert other.layer.weight.data_ptr() != smooth.layer.weight.data_ptr()


def test_masks_come_of_pytorchs_generator():
    nodes = [helper.make_node("Dropout", ["x", "rate"], ["y"])]
    file = model_of(nodes, {"x": [64]}, {"y": [64]}, {"rate": np.array(0.5, "float32")})
    drop, x = gg.as_torch(gg.from_onnx(file)), torch.ones(64)
    first, second = drop(x), drop(x)
    torch.manual_seed(5)
    again = [drop(x)]
    torch.manual_seed(5)
    again.append(drop(x))
    assert not torch.equal(first, second) and torch.equal(*again)
    assert torch.equal(drop.eval()(x), x)


def test_aligned_tensors_are_read_where_they_are(smooth):
    expected = torch.tanh(draw(2, 4) @ smooth.layer.weight)
    with mock.patch.object(Staging, "copy", side_effect=AssertionError):
        torch.testing.assert_close(smooth(draw(2, 4))[0], expected)
    apart = torch.empty(9, dtype=F64)[1:].view(2, 4).copy_(draw(2, 4))
    torch.testing.assert_close(smooth(apart)[0], expected)
    torch.testing.assert_close(smooth(draw(2, 4).t().contiguous().t())[0], expected)


def test_results_are_nobody_elses_memory():
    """A model that returns an argument, twice."""
    types = {"x": ([4], "float32"), "w": ([4], "float32")}
    mod = module(lambda b, x, w: (x, w, w), **types)
    made, x = gg.as_torch(gg.Model(mod, {"w": np.ones(4, "float32")})), torch.zeros(4)
    results = made(x)
    for result in results:
        result.detach().add_(1)
    assert [float(value[0].detach()) for value in (x, made.w, *results)] == [0, 1, 1, 2, 2]
    (2 * made(x)[1] + made(x)[2]).sum().backward()
    assert torch.equal(made.w.grad, torch.full((4,), 3.0))


@pytest.mark.parametrize("call, message", [
    (lambda m, x: m(x.float()), "input 'x': expected dtype float64, given float32"),
    (lambda m, x: m(x[:, :3]), r"input 'x': expected shape \(N, 4\)"),
    (lambda m, x: m(x[0]), r"input 'x': expected shape \(N, 4\)"),
    (lambda m, x: m(x[:0]), "input 'x': shape .* is empty"),
    (lambda m, x: m(x.to("meta")), "'layer.weight' is on the device 'cpu', but input"),
    (lambda m, x: m(x.to_sparse()), "input 'x'.*Sparse"),
    (lambda m, x: m(x, x), "2 were given in order"),
    (lambda m, x: m(x, x=x), "give each once"),
    (lambda m, x: m(y=x), "no input 'y'"),
    (lambda m, x: m(), r"missing input\(s\) \['x'\]"),
    (lambda m, x: m(x.numpy()), "input 'x' is a ndarray"),
    (lambda m, x: copy.deepcopy(m).float()(x), "parameter 'layer.weight': expected dtype float64"),
])  # fmt: skip
def test_bad_input(smooth, call, message):
    with pytest.raises(InputError, match=message):
        call(smooth, draw(2, 4))


@pytest.mark.parametrize("arguments, message", [
    ({"model": 3}, "expected a graphgrad.Model"),
    ({"target": {"kind": "cuda", "arch": "sm_90"}}, "processors so far|no device"),
    ({"rules": "all"}, "rules='all'"),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    arguments = {"model": gg.from_onnx(models.mlp((4, 3))), **arguments}
    with pytest.raises(ArgumentError, match=message):
        gg.as_torch(**arguments)


def test_old_releases_are_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.1.0+cpu")
    with pytest.raises(ArgumentError, match=r"needs torch 2\.\d+ or later, but this is 2\.1\.0"):
        gg.as_torch(gg.from_onnx(models.mlp((4, 3))))


def test_graphgrad_is_imported_without_other_frameworks():
    program = """
import sys
sys.modules["torch"] = sys.modules["jax"] = None  # from here on their import fails
import graphgrad as gg, graphgrad.models as models
try:
    gg.as_torch(gg.from_onnx(models.mlp((4, 3))))
except gg.ArgumentError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "pip install 'graphgrad[torch]'" in done.stdout, done.stderr
