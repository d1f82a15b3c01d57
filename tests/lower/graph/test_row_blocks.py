"""Scores of a vocabulary by blocks of rows: the same steps, where nothing else reads the scores."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.lower.graph import row_blocks
from graphgrad.memory import donation
from tests.peers import peer

ROWS, INPUTS, CLASSES = 64, 5, 48


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of 16 rows, of small scores; returns those that were computed so."""
    monkeypatch.setenv("GRAPHGRAD_CACHE", "0")  # programs are kept by what they are made of alone
    monkeypatch.setattr(row_blocks, "_MIN_CLASSES", 32)
    monkeypatch.setattr(row_blocks, "_MIN_ELEMENTS", 1)
    monkeypatch.setattr(row_blocks, "_BLOCK_ELEMENTS", 16 * CLASSES)
    monkeypatch.setattr(row_blocks, "_MIN_BLOCK_ROWS", 2)
    monkeypatch.setattr(donation, "_LARGE", 1)
    written, bindings = [], row_blocks._Writer.bindings

    def counted(writer):
        written.append(writer)
        return bindings(writer)

    monkeypatch.setattr(row_blocks._Writer, "bindings", counted)
    return written


def head(width=7, bias=False, tied=False, after=None, rank=2):
    """Return a model of two products, float64; `after` is an operator on the scores."""
    rng = np.random.default_rng(0)
    arrays = {"first": rng.standard_normal((INPUTS, width)) / 3}
    arrays["weight"] = rng.standard_normal((CLASSES, width) if tied else (width, CLASSES)) / 3
    if bias:
        arrays["bias"] = rng.standard_normal(CLASSES)
    rows = [ROWS] if rank == 2 else [4, ROWS // 4]
    nodes, scores = [helper.make_node("MatMul", ["x", "first"], ["hidden"])], "weight"
    if tied:
        nodes.append(helper.make_node("Transpose", ["weight"], ["turned"], perm=[1, 0]))
        scores = "turned"
    nodes.append(helper.make_node("Tanh", ["hidden"], ["h"]))
    nodes.append(helper.make_node("MatMul", ["h", scores], ["s0"]))
    last = "s0"
    if bias:
        nodes.append(helper.make_node("Add", [last, "bias"], ["s1"]))
        last = "s1"
    if after is not None:
        nodes.append(helper.make_node(after, [last], ["s2"]))
        last = "s2"
    if rank == 3:
        arrays["shape"] = np.array([ROWS, CLASSES])
        nodes.append(helper.make_node("Reshape", [last, "shape"], ["s3"]))
        last = "s3"
    nodes.append(helper.make_node("Identity", [last], ["scores"]))
    outputs = [helper.make_tensor_value_info("scores", TensorProto.DOUBLE, [ROWS, CLASSES])]
    graph = helper.make_graph(
        nodes,
        "head",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [*rows, INPUTS])],
        outputs,
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto), arrays, rows


def batch(rows, ignored=()):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, CLASSES, ROWS)
    labels[list(ignored)] = -100
    return rng.standard_normal((*rows, INPUTS)), labels


def expected(arrays, x, labels, after, tied, loss):
    """Return the loss and the gradients, by torch."""
    torch = peer("torch")
    given = {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items() if n != "shape"}
    hidden = torch.tanh(torch.tensor(x) @ given["first"])
    scores = hidden @ (given["weight"].T if tied else given["weight"])
    scores = scores + given["bias"] if "bias" in given else scores
    scores = getattr(torch, after.lower())(scores) if after is not None else scores
    settings = dict(loss)
    if "weight" in settings:
        settings["weight"] = torch.tensor(settings["weight"], dtype=torch.float64)
    value = torch.nn.functional.cross_entropy(
        scores.reshape(ROWS, CLASSES), torch.tensor(labels), **settings
    )
    value.backward()
    return value.item(), {name: tensor.grad.numpy() for name, tensor in given.items()}


def stepped(model, x, labels, loss):
    step = gg.train_step(
        gg.from_onnx(model), loss=gg.loss.cross_entropy(**loss), optimizer=gg.optim.SGD(1.0)
    )
    return float(step(x, labels)), step.params


WEIGHT = tuple(np.linspace(0.2, 2, CLASSES).tolist())


@pytest.mark.parametrize(
    ("settings", "loss", "ignored"),
    [
        ({}, {}, ()),
        ({"tied": True, "bias": True}, {"ignore_index": -100}, range(10, 40)),
        ({"rank": 3, "after": "Tanh"}, {"label_smoothing": 0.2}, ()),
        ({"width": ROWS, "bias": True}, {}, ()),
        ({"rank": 3, "width": CLASSES}, {"weight": WEIGHT, "ignore_index": -100}, (3, 4)),
    ],
    ids=["plain", "tied", "smoothed", "as wide as rows", "weighted"],
)
def test_steps_are_those_of_torch(blocks, settings, loss, ignored):
    model, arrays, rows = head(**settings)
    x, labels = batch(rows, ignored)
    value, params = stepped(model, x, labels, loss)
    assert len(blocks) == 1
    after, tied = settings.get("after"), settings.get("tied", False)
    torch_value, gradients = expected(arrays, x, labels, after, tied, loss)
    assert abs(value - torch_value) < 1e-10
    for name, gradient in gradients.items():
        change = arrays[name] - params[name]
        assert np.linalg.norm(change - gradient) <= 1e-8 * np.linalg.norm(gradient)


def test_no_label_counts(blocks):
    """The mean of nothing is no number, and the step leaves the parameters as they are."""
    model, arrays, rows = head()
    x, labels = batch(rows, range(ROWS))
    value, params = stepped(model, x, labels, {"ignore_index": -100})
    assert len(blocks) == 1 and np.isnan(value)
    assert all((params[name] == array).all() for name, array in arrays.items())


@pytest.mark.parametrize("after", ["Softmax"])
def test_what_depends_on_rows_alone_may_stand_between(blocks, after):
    model, arrays, rows = head(after=after)
    x, labels = batch(rows)
    _, params = stepped(model, x, labels, {})
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(row_blocks, "_MIN_ELEMENTS", 1 << 60)
        _, whole = stepped(model, x, labels, {})
    assert len(blocks) == 1
    for name in arrays:
        assert np.allclose(params[name], whole[name], rtol=1e-10, atol=1e-12)


def test_gradients_that_accumulate(blocks):
    """Two halves of a batch make the step of the whole."""
    model, arrays, rows = head(bias=True)
    x, labels = batch(rows)
    step = gg.train_step(gg.from_onnx(model), optimizer=gg.optim.SGD(1.0), accumulate=2)
    for _ in range(2):
        step(x, labels)
    assert blocks
    _, gradients = expected(arrays, x, labels, None, False, {})
    for name, gradient in gradients.items():
        change = arrays[name] - step.params[name]
        assert np.linalg.norm(change - gradient) <= 1e-8 * np.linalg.norm(gradient)


def test_scores_that_are_read_along_rows_stay_whole(blocks):
    model, _, rows = head()
    x, labels = batch(rows)
    graph = model.graph
    graph.node[-1].op_type = "CumSum"
    graph.node[-1].input.append("axis")
    graph.initializer.append(numpy_helper.from_array(np.array(0), "axis"))
    stepped(model, x, labels, {})
    assert not blocks
