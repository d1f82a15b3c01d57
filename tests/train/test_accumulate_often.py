"""Windows of what is used often, or consist of many: where accumulation was wrong in MXNet."""

import functools
import itertools

import numpy as np
import pytest
from onnx import helper

import graphgrad as gg
from graphgrad import models
from tests.frontend.graphs import random
from tests.peers import peer
from tests.train.test_accumulate import parts, promoted, wide, window


def torch_layers(count):
    """Apply one layer `count` times over."""
    return lambda x, w, b: functools.reduce(lambda h, _: (h @ w + b).tanh(), range(count), x)


def layers(count):
    """Return what `torch_layers` applies, as nodes."""
    names = ["x", *(f"h{index}" for index in range(count - 1)), "y"]
    return [
        helper.make_node(operator, [given, *others], [made])
        for before, after in itertools.pairwise(names)
        for operator, given, others, made in [
            ("MatMul", before, ["w"], f"{after}.product"),
            ("Add", f"{after}.product", ["b"], f"{after}.sum"),
            ("Tanh", f"{after}.sum", [], after),
        ]
    ]


def torch_branches(count):
    """Sum `count` times the same node, and as many results of one layer."""

    def forward(x, w, b):
        heads = [((index + 1) * x) @ w + b for index in range(count)]
        return sum(head.tanh() for head in heads) + sum([heads[0]] * count)

    return forward


def branches(count):
    """Return what `torch_branches` sums up, as nodes."""
    scales = [
        helper.make_node("Constant", [], [f"scale{index}"], value_float=index + 1.0)
        for index in range(count)
    ]
    heads = [
        helper.make_node(operator, given, [f"{made}{index}"])
        for index in range(count)
        for operator, given, made in [
            ("Mul", ["x", f"scale{index}"], "scaled"),
            ("MatMul", [f"scaled{index}", "w"], "product"),
            ("Add", [f"product{index}", "b"], "head"),
            ("Tanh", [f"head{index}"], "bounded"),
        ]
    ]
    terms = [*(f"bounded{index}" for index in range(count)), *["head0"] * count]
    return [*scales, *heads, helper.make_node("Sum", terms, ["y"])]


TIED = [
    helper.make_node("MatMul", ["x", "w"], ["product"]),
    helper.make_node("Add", ["product", "b"], ["hidden"]),
    helper.make_node("Tanh", ["hidden"], ["bounded"]),
    helper.make_node("Transpose", ["w"], ["transposed"]),
    helper.make_node("MatMul", ["bounded", "transposed"], ["y"]),
]


OFTEN_USED = {
    # apache/mxnet#17989: weight and bias of a layer that is applied more than four times
    **{f"{n} layers": (layers(n), torch_layers(n)) for n in (5, 12, 24)},
    # apache/mxnet#16708: wrong for five to seven uses, and right for fewer and for more
    **{f"{n} branches": (branches(n), torch_branches(n)) for n in (4, 5, 6, 7, 8)},
    "tied": (TIED, lambda x, w, b: (x @ w + b).tanh() @ w.T),
}


@pytest.mark.parametrize("nodes, forward", OFTEN_USED.values(), ids=OFTEN_USED)
def test_gradients_of_what_is_used_often(nodes, forward):
    torch = peer("torch")
    start = np.eye(4) + 0.1 * random(4, 4, dtype="float64")
    given = {"w": start.astype("float32"), "b": random(4)}
    model = wide(nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, given)
    weights = {name: torch.from_numpy(a).requires_grad_() for name, a in model.params.items()}
    step = gg.train_step(model, "mse", gg.optim.SGD(1.0), accumulate=2)
    arrays = random(4, 4, dtype="float64"), random(4, 4, seed=1, dtype="float64")
    losses = window(step, arrays, [2, 2])
    x, y = map(torch.from_numpy, arrays)
    loss = torch.nn.functional.mse_loss(forward(x, weights["w"], weights["b"]), y)
    loss.backward()
    assert np.mean(losses) == pytest.approx(loss.item(), rel=1e-12)
    for name, weight in weights.items():
        moved = model.params[name] - step.params[name]
        np.testing.assert_allclose(moved, weight.grad, rtol=1e-11, atol=1e-13, err_msg=name)


def test_many_micro_batches_of_a_transformer_add_up():
    """apache/mxnet#16686: from 16 to 32 of them, sums drifted away from those made by hand.

    The number is no part of what is compiled, and the error of a sum grows with it.
    """
    count = 32
    sizes = {"layers": 1, "width": 8, "heads": 2, "feed_forward": 16, "sequence": 5, "classes": 3}
    model = promoted(gg.from_onnx(models.transformer_encoder(**sizes)))
    step = gg.train_step(model, optimizer=gg.optim.SGD(1.0), accumulate=count)
    gradient = gg.value_and_grad(model, loss="cross_entropy")
    arrays = random(2 * count, 5, 8, dtype="float64"), np.arange(2 * count) % 3
    window(step, arrays, [2] * count)
    by_hand = {name: np.zeros_like(array) for name, array in model.params.items()}
    for x, y in parts(arrays, [2] * count):
        for name, array in gradient({"input": x, "targets": y})[1].items():
            by_hand[name] += array
    for name, total in by_hand.items():
        moved = model.params[name] - step.params[name]
        np.testing.assert_allclose(moved, total / count, rtol=1e-9, atol=1e-13, err_msg=name)
