"""Gradients through branches: those of what the branch that is taken reads, and zeros."""

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import graphgrad as gg
from graphgrad.frontend.onnx_import import from_onnx
from tests.differences import assert_gradients
from tests.frontend.graphs import model_of
from tests.frontend.test_branches import branch
from tests.promoted_models import promoted


@I.ir_module
class Chosen:
    """Each branch reads a parameter of its own; one of them reads a value from outside."""

    @R.function(private=True)
    def square(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
        y = R.multiply(x, x)
        return y

    @R.function
    def main(
        x: R.Tensor((3,), "float64"),
        v: R.Tensor((3,), "float64"),
        w: R.Tensor((3,), "float64"),
        flag: R.Tensor((), "bool"),
    ) -> R.Tensor((3,), "float64"):
        cls = Chosen
        h = R.exp(x)
        if flag:
            a = R.multiply(h, v)
            y = cls.square(a)
        else:
            b = R.nn.gelu(R.add(x, w))
            y = R.square(b)
        z = R.multiply(y, h)
        return z


@I.ir_module
class Twice:
    """Two choices in a row: the second one's memory is not that of the first one's branches."""

    @R.function
    def main(
        x: R.Tensor((3,), "float64"),
        first: R.Tensor((), "bool"),
        second: R.Tensor((), "bool"),
    ) -> R.Tensor((3,), "float64"):
        if first:
            a = R.exp(x)
            b = R.sin(a)
            y = R.multiply(a, b)
        else:
            c = R.sin(x)
            d = R.exp(c)
            y = R.multiply(c, d)
        if second:
            e = R.cos(y)
            f = R.multiply(e, y)
            z = R.add(f, x)
        else:
            z = R.multiply(y, x)
        return z


def values(*shapes):
    generator = np.random.default_rng(0)
    return [generator.uniform(-1, 1, shape) for shape in shapes]


@pytest.mark.parametrize("flag", [True, False])
def test_gradients_are_those_of_the_branch_taken(flag):
    assert_gradients(Chosen, *values(3, 3, 3), np.array(flag))


@pytest.mark.parametrize("flag", [True, False])
def test_what_the_other_branch_reads_gets_zeros(flag):
    machine = relax.VirtualMachine(gg.compile(gg.vjp(Chosen)), tvm.cpu())
    given = [tvm.runtime.tensor(a) for a in (*values(3, 3, 3), np.array(flag), np.ones(3))]
    _, v, w = (gradient.numpy() for gradient in machine["main_vjp"](*given)[1])
    assert v.any() == flag
    assert w.any() != flag


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_a_choice_behind_another(first, second):
    assert_gradients(Twice, *values(3), np.array(first), np.array(second))


@pytest.mark.parametrize("flag", [True, False])
def test_second_order(flag):
    first = gg.vjp(Chosen)
    x, v, w, ct = values(3, 3, 3, 3)
    assert_gradients(first, x, v, w, np.array(flag), ct, name="main_vjp")


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_imported_branches_of_several_outputs_and_a_branch_in_a_branch(outer, inner):
    nested = helper.make_node(
        "If", ["d"], ["t"],
        then_branch=branch(helper.make_node("Mul", ["h", "w"], ["a"])),
        else_branch=branch(helper.make_node("Elu", ["h"], ["b"])),
    )  # fmt: skip
    then_branch = branch(helper.make_node("Tanh", ["x"], ["h"]), nested)
    else_branch = branch(helper.make_node("Softmax", ["x"], ["r"]))
    for graph, name in ((then_branch, "h"), (else_branch, "r")):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]))
    nodes = [
        helper.make_node("If", ["c"], ["y", "z"], then_branch=then_branch, else_branch=else_branch),
        helper.make_node("Mul", ["y", "x"], ["product"]),
    ]
    proto = model_of(nodes, {"x": [3], "w": [3]}, {"product": [3], "z": [3]})
    for name in "cd":
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, []))
    model = promoted(from_onnx(proto))
    assert_gradients(model.mod, *values(3, 3), np.array(outer), np.array(inner))


@I.ir_module
class Unknown:
    @R.function
    def main(x: R.Tensor((3,), "float64"), flag: R.Tensor((), "bool")) -> R.Tensor((3,), "float64"):
        if flag:
            y = R.call_dps_packed("tests.unknown", (x,), out_ty=R.Tensor((3,), "float64"))
        else:
            y = R.exp(x)
        return y


def test_an_op_without_a_gradient_in_a_branch_is_named():
    with pytest.raises(
        gg.MissingGradientError, match=r"in a branch, relax.call_dps_packed\(tests.unknown\)"
    ):
        gg.vjp(Unknown)


def test_a_model_with_branches_is_trained():
    """By steps of gradient descent, in the branch that the input asks for."""
    nodes = [
        helper.make_node(
            "If", ["c"], ["y"],
            then_branch=branch(helper.make_node("Mul", ["x", "w"], ["a"])),
            else_branch=branch(helper.make_node("Add", ["x", "w"], ["b"])),
        )
    ]  # fmt: skip
    proto = model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": np.float32([1, 2, 3])})
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    x, cotangent = np.float32([4, 5, 6]), np.float32([1, 1, 2])
    f = gg.value_and_grad(from_onnx(proto))
    for flag, expected in ((True, x * cotangent), (False, cotangent)):
        _, gradients = f({"x": x, "c": np.array(flag)}, cotangent)
        np.testing.assert_array_equal(gradients["w"], expected)
