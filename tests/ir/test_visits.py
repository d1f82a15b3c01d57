"""Walks find and replace what TVM's public ones do."""

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.ir.visits import replace_nodes, visit_nodes


@pytest.fixture
def body():
    x = te.placeholder((4, 8), "float32", "x")
    y = te.compute((4,), lambda i: x[i, 2] * x[i, 3] + x[i, 2], "y")
    return te.create_prim_func([x, y]).body


@pytest.mark.parametrize("outer_first", [False, True])
@pytest.mark.parametrize(
    "classes", [tvm.ir.Var, tirx.Mul, (tirx.Add, tirx.Mul, tvm.ir.TensorLoad), tirx.Stmt], ids=str
)
def test_nodes_are_visited_in_the_order_of_tvm(body, classes, outer_first):
    ours, theirs = [], []
    visit_nodes(body, classes, ours.append, outer_first)
    order = "pre" if outer_first else "post"
    tvm_ffi.structural_walk(body, (classes, theirs.append), order=order)
    assert len(ours) == len(theirs) > 0
    assert all(one.same_as(other) for one, other in zip(ours, theirs, strict=True))


def test_nodes_may_be_skipped(body):
    found = []

    def visit(node):
        found.append(node)
        return tvm_ffi.WalkResult.SKIP

    visit_nodes(body, (tirx.Add, tirx.Mul), visit, outer_first=True)
    assert [type(node) for node in found] == [tirx.Add]


def test_nodes_are_replaced_as_tvm_does(body):
    def smaller(node):
        return tirx.Sub(node.a, node.b)

    ours = replace_nodes(body, (tirx.Add, tirx.Mul), smaller)
    theirs = tvm_ffi.structural_map(body, ((tirx.Add, tirx.Mul), smaller))
    assert tvm_ffi.structural_equal(ours, theirs) and not tvm_ffi.structural_equal(ours, body)


def test_without_replacement_it_is_the_same_object(body):
    assert replace_nodes(body, tvm.ir.Var, lambda var: var).same_as(body)


def test_an_error_of_a_callback_is_raised(body):
    def visit(_):
        raise ValueError("of ours")

    with pytest.raises(ValueError, match="of ours"):
        visit_nodes(body, tvm.ir.Var, visit)


def test_a_class_that_tvm_does_not_know_is_refused(body):
    class Unknown:
        pass

    with pytest.raises(TypeError, match="class"):
        visit_nodes(body, Unknown, lambda node: None)
