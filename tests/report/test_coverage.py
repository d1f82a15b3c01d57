"""`coverage` tells each op's gradient and its places, and runs nothing."""

import json
import re

import pytest
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import graphgrad as gg
from graphgrad import models
from graphgrad.registry import unregister
from tests import unknown_ops
from tests.running import function

op = relax.op
FLOATS = ((2, 3), "float32")


def provenances(covered):
    return {row.op: row.provenance for row in covered.rows}


def covered(build, *types):
    return gg.coverage(function(build, *(types or (FLOATS,))))


def test_model():
    model = gg.from_onnx(models.resnet_digits())
    found = gg.coverage(model)
    assert found.complete
    assert set(provenances(found).values()) == {"hand"}
    convolutions = next(row for row in found.rows if row.op == "relax.nn.conv2d")
    nodes = [node.name for node in model.proto.graph.node if node.op_type == "Conv"]
    assert convolutions.count == len(nodes)
    assert convolutions.where == nodes


def test_text_and_json():
    found = covered(lambda b, x: b.emit(op.floor(b.emit(op.exp(x)))))
    facts = json.loads(found.to_json())
    assert facts["complete"]
    assert facts["rows"][0]["op"] == "relax.floor"
    assert facts["rows"][0]["provenance"] == "nondifferentiable"
    assert set(facts["rows"][0]) == {"op", "count", "provenance", "reason", "where", "precision"}
    assert "relax.floor" in str(found)
    assert "nothing is missing" in str(found)


def test_user_rules_are_told_from_ours():
    @gg.register_gradient("relax.tanh")
    def tanh(inputs, outputs, cotangents, attrs):
        return cotangents

    try:
        found = covered(lambda b, x: b.emit(op.exp(b.emit(op.tanh(x)))))
    finally:
        unregister("relax.tanh")
    assert provenances(found) == {"relax.tanh": "user", "relax.exp": "hand"}


def test_off_the_path():
    def build(builder, x, i):
        index = builder.emit(op.add(i, i))
        unread = builder.emit(op.argmax(x))
        value = builder.emit(op.take(x, index, axis=1))
        return builder.emit(relax.Tuple([value, unread]))

    found = covered(build, FLOATS, ((2,), "int64"))
    assert provenances(found) == {"relax.take": "hand"}
    assert {row.op for row in found.off_path} == {"relax.add", "relax.argmax"}
    assert {row.reason for row in found.off_path} == {"no gradient needed"}


def test_frozen_parameters_start_no_path():
    model = gg.from_onnx(models.mlp((4, 5, 3)))
    inputs = gg.Model(model.mod, model.params, frozen=model.params)
    transposed = next(row for row in gg.coverage(inputs).off_path if "permute" in row.op)
    assert transposed.count == 2
    assert "relax.permute_dims" in provenances(gg.coverage(model))


@pytest.mark.parametrize(
    ("build", "name", "reason"),
    [
        (lambda b, x: b.emit_te(unknown_ops.calls_out, x), "relax.call_tir(calls_out)", "block"),
        (
            lambda b, x: b.emit(
                relax.call_dps_packed("mine", x, out_ty=relax.TensorType((2, 3), "float32"))
            ),
            "relax.call_dps_packed(mine)",
            "packed function",
        ),
    ],
    ids=["kernel", "packed"],
)
def test_missing(build, name, reason):
    found = covered(lambda b, x: build(b, b.emit(op.exp(x))))
    assert not found.complete
    (row,) = found.missing
    assert row.op == name
    assert reason in row.reason
    assert found.rows[0] is row
    assert "missing: 1 op(s) in 1 call(s)" in str(found)
    assert provenances(found)["relax.exp"] == "hand"


@I.ir_module(s_tir=True)
class InPlace:
    @T.prim_func(s_tir=True)
    def halved(A: T.Buffer((3,), "float32")):
        with T.sblock("halved"):
            for i in range(3):
                A[i] = A[i] * T.float32(0.5)

    @R.function
    def differentiated(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        y = R.exp(x)
        z = R.call_tir_inplace(
            InPlace.halved, (y,), inplace_indices=[0], out_ty=R.Tensor((3,), "float32")
        )
        return z

    @R.function
    def beside(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        y = R.exp(x)
        view = R.reshape(R.reshape(y, (1, 3)), (3,))
        _ = R.call_tir_inplace(
            InPlace.halved, (view,), inplace_indices=[0], out_ty=R.Tensor((3,), "float32")
        )
        return y

    @R.function
    def in_a_branch(x: R.Tensor((3,), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor(
        (3,), "float32"
    ):
        y = R.exp(x)
        if flag:
            w = R.call_tir_inplace(
                InPlace.halved, (y,), inplace_indices=[0], out_ty=R.Tensor((3,), "float32")
            )
            z = R.multiply(w, w)
        else:
            z = R.sin(y)
        return z


def test_in_place_calls_are_differentiated_out_of_place():
    assert gg.coverage(InPlace, "differentiated").complete
    gg.vjp(InPlace, "differentiated")


@pytest.mark.parametrize(
    ("name", "op", "where"),
    [
        ("beside", "relax.call_tir_inplace(halved)", "view"),
        ("in_a_branch", "relax.If", "y"),
    ],
)
def test_what_overwrites_what_gradients_read_is_missing(name, op, where):
    """A view of y, which the rule of exp reads; y, from which a branch is computed again."""
    (row,) = gg.coverage(InPlace, name).missing
    assert (row.op, row.count) == (op, 1)
    reason = rf"relax\.call_tir_inplace\(halved\) overwrites {where}, .*out of place"
    assert re.match(reason, row.reason)
    with pytest.raises(gg.MissingGradientError, match=reason):
        gg.vjp(InPlace, name)


def test_op_of_someone_elses():
    found = covered(lambda b, x: b.emit(unknown_ops.erf(b.emit(unknown_ops.packed(x)))))
    assert provenances(found) == {
        "graphgrad.test_packed": "missing",
        "graphgrad.test_erf": "derived",
    }
    assert "packed function" in found.missing[0].reason


def test_chosen_values_and_rules():
    model = gg.from_onnx(models.mlp((4, 5, 3)))
    last = gg.coverage(model, wrt=["fc2.weight"])
    assert "relax.nn.relu" not in provenances(last)
    derived = gg.coverage(model, rules="derived")
    assert set(provenances(derived).values()) == {"derived"}
    with pytest.raises(gg.ArgumentError, match="no value 'fc9'"):
        gg.coverage(model, wrt=["fc9"])


def test_all_reasons_of_an_op_are_told():
    def build(builder, x):
        y = builder.emit(relax.Call(relax.ExternFunc("mine"), [x], ty_args=[x.ty]))
        return builder.emit(unknown_ops.unlowered(y))

    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], pure=False):
        builder.emit_func_output(build(builder, x))
    rows = {row.op: row.reason for row in gg.coverage(builder.get()).missing}
    assert "packed function" in rows["packed function mine"]
    assert "lowered to nothing" in rows["graphgrad.test_unlowered"]


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((3,), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((3,), "float32"):
        if flag:  # noqa: SIM108
            y = R.exp(x)
        else:
            y = R.sin(x)
        return y


def test_branches():
    assert provenances(gg.coverage(Branches)) == {"relax.If": "derived"}


@I.ir_module
class Calls:
    @R.function(private=True)
    def twice(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        return R.add(x, x)

    @R.function
    def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        cls = Calls
        y = cls.twice(x)
        z = cls.twice(y)
        return z


def test_what_is_inside_called_functions_counts():
    assert [(row.op, row.count) for row in gg.coverage(Calls).rows] == [("relax.add", 2)]


@pytest.mark.parametrize("subject", [None, "model.onnx", 3])
def test_other_subjects_are_refused(subject):
    with pytest.raises(gg.ArgumentError, match=r"expected a graphgrad\.Model or an IRModule"):
        gg.coverage(subject)


def test_unknown_function():
    with pytest.raises(gg.ArgumentError, match="no Relax function 'other'"):
        gg.coverage(Calls, "other")
