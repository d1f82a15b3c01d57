"""Modules and exported programs of PyTorch: what is kept, names, forms, refusals.

Each repair has a test of what TVM's importer does instead.
"""

import copy
import importlib

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.errors import ArgumentError, ModelError
from graphgrad.frontend.mode import is_seeded, specialize
from tests.models import test_exported_families as families
from tests.models.test_second_order import build
from tests.peers import peer
from tests.torch_export import NETWORKS

torch = peer("torch")
nn, export = torch.nn, torch.export.export
from_exported_program = importlib.import_module("tvm.relax.frontend.torch").from_exported_program


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(0))


class Small(nn.Module):
    """A convolution, a batch norm, a dropout and a linear layer, with a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.4)
        self.fc = nn.Linear(3, 2)
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))
        self.fc.bias.requires_grad_(False)

    def forward(self, x):
        return self.scale * self.fc(self.drop(torch.relu(self.bn(self.conv(x))).mean((2, 3))))


def small(training):
    torch.manual_seed(0)
    return Small().double().train(training)


def outputs_of(model, x, training=None):
    f = gg.value_and_grad(model, wrt=model.trainable()[0], training=training)
    return f(x.numpy(), np.ones((len(x), 2)))[0]["output"]


def test_names_roles_and_values_are_those_of_the_module():
    net = small(True)
    model = gg.from_torch(net, draw(4, 2, 5, 5))
    assert model.inputs == ["x"]
    assert list(model.params) == [*(name for name, _ in net.named_parameters()), "scale"]
    assert list(model.state) == ["bn.running_mean", "bn.running_var"]
    assert model.frozen == {"fc.bias"} and model.constants == {"scale"}
    for name, value in {**model.params, **model.state}.items():
        np.testing.assert_array_equal(value, net.state_dict()[name])
    assert [str(op) for op in gg.coverage(model).missing] == []


@pytest.mark.parametrize(
    "exported_in_training", [pytest.param(True, marks=pytest.mark.slow), False]
)
def test_both_forms_are_there_whichever_was_exported(exported_in_training):
    net, x = small(exported_in_training), draw(4, 2, 5, 5)
    dropping = gg.from_torch(net, x)
    forms = {form: is_seeded(specialize(dropping, form)) for form in (True, False, None)}
    assert forms == {True: True, False: False, None: exported_in_training}
    net.drop.p = 0.0
    state = copy.deepcopy(net.state_dict())
    model = gg.from_torch(net, x)
    for training in (True, False):
        net.load_state_dict(state)
        expected = net.train(training)(x).detach()
        np.testing.assert_allclose(outputs_of(model, x, training), expected, rtol=1e-8)


def test_tvm_alone_has_no_training_form():
    """Its dropouts are gone, and its batch norms train on constants."""
    net = small(True).float()
    program = export(net, (draw(4, 2, 5, 5).float(),))
    text = from_exported_program(program, keep_params_as_input=True).script()
    assert "dropout" not in text and "bn_running_mean" not in text


@pytest.mark.parametrize("statement, error", [
    (lambda x, w: x @ w, "float32"),
    pytest.param(
        lambda x, w: torch.conv1d(x[None], w[:, :, None]), "float32", marks=pytest.mark.slow
    ),
    pytest.param(lambda x, w: torch.add(x, x, alpha=3.0), None, marks=pytest.mark.slow),
    (lambda x, w: x.detach() * x, None),
    pytest.param(lambda x, w: ((x > 0).long() + 0.5) * x, None, marks=pytest.mark.slow),
], ids=["product", "convolution", "alpha", "detach", "integers"])  # fmt: skip
def test_what_tvm_alone_gets_wrong(statement, error):
    class Statement(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(draw(3, 3))

        def forward(self, x):
            return statement(x, self.w).sum()

    net, x = Statement(), draw(3, 3).requires_grad_()
    net(x).backward()
    _, gradients = gg.value_and_grad(gg.from_torch(net, x), wrt="x")(x.detach().numpy())
    np.testing.assert_allclose(gradients["x"], x.grad, rtol=1e-8)
    theirs = _by_tvm(net, x)
    if error is None:
        _, gradients = gg.value_and_grad(theirs, wrt="x")(x.detach().numpy())
        assert not np.allclose(gradients["x"], x.grad)
    else:
        assert str(theirs.mod["main"].ret_ty.dtype) == error  # of operands in float64


def _by_tvm(net, x):
    """Return what TVM's importer makes of a module, as a model."""
    mod = from_exported_program(
        export(net, (x,)), keep_params_as_input=True, unwrap_unit_return_tuple=True
    )
    return gg.Model(mod, dict(zip(["p_w"], mod["main"].attrs["params"], strict=True)))


def test_statistics_without_scale_and_without_momentum():
    """Without a scale; without statistics, those of the batch in either form."""
    x = draw(6, 3, 4)
    plain, untracked = (
        nn.BatchNorm1d(3, affine=False).double(),
        nn.BatchNorm1d(3, track_running_stats=False).double().eval(),
    )
    for net in (plain, untracked):
        model = gg.from_torch(nn.Sequential(net, nn.Linear(4, 2).double()), x)
        assert bool(model.state) == (net is plain)
    given = gg.value_and_grad(model)(x.numpy(), np.ones((6, 3, 2)))[0]["output"]
    assert given.std() > 0


def test_symbolic_batch():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 2)).double()
    model = gg.from_torch(net, draw(4, 2, 5, 5), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert isinstance(model.input_types()["input"][0][0], str)
    for batch in (1, 6):
        x = draw(batch, 2, 5, 5)
        np.testing.assert_allclose(outputs_of(model, x), net(x).detach(), rtol=1e-8)


def test_an_exported_program_and_names_of_values():
    net, x = small(False), draw(4, 2, 5, 5)
    model = gg.from_torch(export(net, (x,)))
    assert model.frozen == {"fc.bias"}
    _, gradients = gg.value_and_grad(model, wrt=["relu"])(x.numpy(), np.ones((4, 2)))
    expected = (net.scale @ net.fc.weight / 9).detach().numpy()
    np.testing.assert_allclose(gradients["relu"][0, :, 0, 0], expected, rtol=1e-8)


def test_a_module_that_came_in_goes_out():
    """There and back again: an imported model as a module of PyTorch."""
    net, x = small(False), draw(4, 2, 5, 5)
    back = gg.as_torch(gg.from_torch(net, x)).eval()
    torch.testing.assert_close(back(x), net(x), rtol=1e-8, atol=1e-10)
    assert back.state_dict().keys() | {"bn.num_batches_tracked"} == net.state_dict().keys()


def test_dropouts_that_are_left_out_are_told_of():
    (note,) = gg.from_torch(nn.Dropout2d(0.5).eval(), draw(2, 3, 4, 4)).notes
    assert "feature_dropout.default) never drops" in note


def test_bags_of_a_module():
    net = nn.EmbeddingBag(7, 3, mode="mean", padding_idx=2, dtype=torch.float64)
    index, offsets = torch.tensor([1, 2, 5, 5, 0]), torch.tensor([0, 3, 3])
    model = gg.from_torch(net, (index, offsets))
    ct = draw(3, 3)
    expected = net(index, offsets)
    (theirs,) = torch.autograd.grad(expected, [net.weight], ct)
    arrays = {"input": index.numpy(), "offsets": offsets.numpy()}
    outputs, gradients = gg.value_and_grad(model)(arrays, ct.numpy())
    np.testing.assert_allclose(outputs[model.outputs[0]], expected.detach(), rtol=1e-12)
    np.testing.assert_allclose(gradients["weight"], theirs, rtol=1e-12)


def test_a_division_by_the_number_zero():
    """TVM refuses to fold it."""

    class Divided(nn.Module):
        def forward(self, x):
            return torch.where(x > 0, x / 0, x)

    x = torch.tensor([-1.0, 0.0, 2.0])
    model = gg.from_torch(Divided(), x)
    f = gg.value_and_grad(model, wrt="x")
    outputs, gradients = f({"x": x.numpy()}, np.ones(3, "float32"))
    np.testing.assert_array_equal(outputs[model.outputs[0]], [-1.0, 0.0, np.inf])
    np.testing.assert_array_equal(gradients["x"], [1.0, 1.0, np.inf])


def test_half_precision():
    net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Linear(4, 2), nn.Tanh()).bfloat16()
    x = draw(3, 2, 5).bfloat16()
    back = gg.as_torch(gg.from_torch(net, x))
    torch.testing.assert_close(back(x), net(x), rtol=0.02, atol=0.02)


class Mixing(nn.Module):
    """Attention over the rows of x, whose heads PyTorch joins by a view of its kernel's memory."""

    def forward(self, x):
        batch, positions, _ = x.shape
        heads = x.view(batch, positions, 2, 4).transpose(1, 2)
        mask = torch.ones(batch, 1, positions, positions, dtype=torch.bool).tril()
        y = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        y = y.transpose(1, 2).contiguous().reshape(batch, positions, -1).contiguous()
        return y.view(-1, 8)


class ChangingViews(nn.Module):
    """Views that change with what they are views of, and the other way around."""

    def forward(self, x):
        y, z, parts = 2 * x, 3 * x, 4 * x
        y.view(-1)[1:3].mul_(x[0, 0])
        flat = z.view(-1)
        z[0].add_(x[1])
        whole = parts.view(-1)
        parts.narrow(0, 1, 1).mul_(x[0])
        return torch.cat([y.view(-1), flat, whole])


@pytest.mark.parametrize("net", [Mixing(), ChangingViews()], ids=["attention", "in place"])
def test_views(net):
    x = draw(2, 3, 8) if isinstance(net, Mixing) else draw(2, 3)
    x.requires_grad_()
    expected = net(x)
    ct = torch.linspace(-1, 1, expected.numel(), dtype=x.dtype).reshape(expected.shape)
    model = gg.from_torch(net, x.detach())
    outputs, gradients = gg.value_and_grad(model, wrt="x")(x.detach().numpy(), ct.numpy())
    np.testing.assert_allclose(outputs[model.outputs[0]], expected.detach(), rtol=1e-6)
    (gradient,) = torch.autograd.grad(expected, x, ct)
    np.testing.assert_allclose(gradients["x"], gradient, rtol=1e-5, atol=1e-6)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return x * self.count


class Overwriting(nn.Module):
    def forward(self, x):
        y = 2 * x
        y.detach()[:1].add_(1.0)
        return y


class Random(nn.Module):
    def forward(self, x):
        return torch.rand_like(x) * torch.linalg.inv(x)


class Branches(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("arguments, error, message", [
    ((3, draw(2)), ArgumentError, "expected a torch.nn.Module or an ExportedProgram, given a int"),
    ((nn.ReLU(), None), ArgumentError, "example_inputs is a NoneType"),
    ((export(nn.ReLU(), (draw(2),)), draw(2)), ArgumentError, "leave example_inputs"),
    ((Counter(), draw(2)), ModelError, r"changes \['count'\]"),
    ((nn.Embedding(4, 3, max_norm=1.0), torch.arange(3)), ModelError, "embedding_renorm.*detached"),
    ((Overwriting(), draw(2)), ModelError, "add_.Tensor. changes a detached tensor"),
    ((Random(), draw(2, 2)), ModelError, "rand_like.default .rand_like.; .*linalg_inv"),
    ((Branches(), draw(2)), ModelError, "torch.export refuses Branches"),
    ((nn.LSTM, draw(2)), ArgumentError, "given a type"),
])  # fmt: skip
def test_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        gg.from_torch(*arguments)


def _case(family):
    name = family if isinstance(family, str) else family.__name__
    return pytest.param(family, id=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*map(_case, [*NETWORKS, *families.SHAPES])])
def test_families(family):
    """Every gradient is within 1e-8 of PyTorch's, in the form in which the family trains."""
    net, inputs, training = build(family)
    net.train(training)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = gg.from_torch(net, tuple(inputs.values()))
    cotangent = families.cotangent_of(net, inputs)
    net.load_state_dict(state)
    output = net(*inputs.values())
    names, params = zip(*net.named_parameters(), strict=True)
    reference = dict(zip(names, torch.autograd.grad(output, params, cotangent), strict=True))
    tensors = zip(model.inputs, inputs.values(), strict=True)  # a Sequential names its own
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors}
    outputs, gradients = gg.value_and_grad(model, wrt=list(names))(arrays, cotangent.numpy())
    np.testing.assert_allclose(outputs["output"], output.detach(), 1e-8, 1e-10)
    floor = 1e-6 * families.norm({name: g.numpy() for name, g in reference.items()})
    for name, expected in reference.items():
        error = np.linalg.norm(gradients[name] - expected.numpy())
        assert error <= 1e-8 * max(np.linalg.norm(expected), floor), name
