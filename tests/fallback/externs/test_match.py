"""Whether two extern stages do the same with the same tensors."""

import pytest
from tvm import te, tirx, topi

from graphgrad.fallback.externs.match import nodes, same_stage
from tests.labels import label

X = te.placeholder((3, 4), "float32", name="x")
Z = te.placeholder((3, 4), "float32", name="z")


def added(tensor, amount):
    """Return an extern stage with loops of its own."""

    def body(inputs, outputs):
        i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
        value = tirx.BufferLoad(inputs[0], [i, j]) + tirx.const(amount, "float32")
        store = tirx.BufferStore(outputs[0], value, [i, j])
        inner = tirx.For(j, 0, 4, tirx.ForKind.SERIAL, store)
        return tirx.For(i, 0, 3, tirx.ForKind.SERIAL, inner)

    return te.extern([tensor.shape], [tensor], body, dtype=["float32"], name="added")


@pytest.mark.parametrize(
    "build",
    [
        lambda x: added(x, 1.0), lambda x: topi.sort(x, axis=1), lambda x: topi.cumsum(x, axis=0),
        lambda x: topi.argsort(x, axis=1),
    ],
    ids=["loops", "sort", "cumsum", "argsort"],
)  # fmt: skip
def test_a_stage_that_is_made_again_is_the_same(build):
    assert same_stage(build(X).op, build(X))


@pytest.mark.parametrize(
    "build",
    [
        lambda: added(X, 2.0), lambda: added(Z, 1.0), lambda: topi.sort(X, axis=1),
        lambda: topi.cumsum(X, axis=1),
    ],
    ids=["constant", "tensor", "function", "scan"],
)  # fmt: skip
def test_a_stage_that_does_something_else_is_another(build):
    assert not same_stage(added(X, 1.0).op, build())


def test_directions_of_a_sort_and_axes_of_a_sum_count():
    assert not same_stage(topi.sort(X, axis=1).op, topi.sort(X, axis=1, is_ascend=False))
    assert not same_stage(topi.cumsum(X, axis=0).op, topi.cumsum(X, axis=1))


def test_the_first_of_several_outputs_stands_for_all():
    first, second = topi.topk(X, 2, axis=1), topi.topk(X, 2, axis=1)
    assert same_stage(first[0].op, list(second))
    assert not same_stage(first[0].op, list(topi.topk(X, 3, axis=1)))


@pytest.mark.parametrize("kind", [tirx.For, tirx.BufferStore], ids=label)
def test_nodes_are_found_outside_in(kind):
    found = nodes(added(X, 1.0).op.body, kind)
    names = [node.loop_var.name for node in found if isinstance(node, tirx.For)]
    assert names == (["i", "j"] if kind is tirx.For else [])
    assert len(found) == (2 if kind is tirx.For else 1)
