"""Which calls of a program become calls of the library, and what is told where none can."""

import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.lower.cuda.library import select
from graphgrad.lower.cuda.library.select import absence, call_libraries
from graphgrad.runtime.cudnn.plans import NO_PLAN, Plan
from tests.running import function

GPU = gg.target({"kind": "cuda", "arch": "sm_90"})
HALF = "bfloat16"


@pytest.fixture
def answers(monkeypatch):
    """What planning answers, by the op; the library is there, and pays."""
    by_op = {}

    def plan_all(problems, properties):
        made = {each: Plan(each, 96, 0, (), 0, 90, "") for each in problems}
        return {each: by_op.get(each.op, plan) for each, plan in made.items()}

    monkeypatch.delenv(select.SWITCH)
    monkeypatch.setattr(select, "is_installed", lambda: True)
    monkeypatch.setattr(select, "library_pays", lambda plan: True)
    monkeypatch.setattr(select, "plan_all", plan_all)
    return by_op


def program():
    """A convolution, and a product by a matrix that is transposed before."""

    def build(b, x, w, m):
        y = b.emit(relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI"))
        return b.emit(relax.op.matmul(y, b.emit(relax.op.permute_dims(m))))

    return function(build, ((2, 4, 4, 8), HALF), ((6, 3, 3, 8), HALF), ((5, 6), HALF))


def names(mod):
    values = [binding.value for binding in mod["main"].body.blocks[0].bindings]
    return [str(v.op.name) for v in values if isinstance(v, relax.Call)]


def test_calls_and_their_permutations_become_calls_of_the_library(answers):
    found = call_libraries(program(), GPU)
    assert names(found) == ["relax.call_dps_packed"] * 2  # the product reads the matrix as it is
    relax.analysis.well_formed(found)  # raises
    first = found["main"].body.blocks[0].bindings[0].value
    assert [str(ty.dtype) for ty in first.ty.fields] == [HALF, "uint8"]
    assert [int(n) for n in first.ty.fields[1].shape] == [select.LEAST_WORKSPACE]


def test_what_has_no_plan_stays(answers):
    answers["matmul"] = f"{NO_PLAN} for matmul: TENSOR_CORE (3×)"
    assert names(call_libraries(program(), GPU)) == [
        "relax.call_dps_packed", "relax.permute_dims", "relax.matmul"
    ]  # fmt: skip


def test_a_library_that_fails_is_told(answers):
    answers |= dict.fromkeys(("matmul", "conv_forward"), "cuDNN does not load: no such file")
    mod = program()
    with pytest.warns(UserWarning, match="fails to plan 2 of 2 contractions.*does not load"):
        assert call_libraries(mod, GPU).same_as(mod)


def test_a_permutation_that_others_read_stays(answers):
    def build(b, x, m):
        turned = b.emit(relax.op.permute_dims(m))
        return b.emit(relax.op.add(b.emit(relax.op.matmul(x, turned)), turned))

    mod = function(build, ((6, 6), HALF), ((6, 6), HALF))
    assert names(call_libraries(mod, GPU)) == ["relax.permute_dims", "relax.call_dps_packed"]


def test_why_there_is_none(monkeypatch):
    assert "GRAPHGRAD_LIBRARIES=0" in absence(GPU)
    monkeypatch.delenv(select.SWITCH)
    monkeypatch.setattr(select, "is_installed", lambda: False)
    assert "graphgrad[cuda-libs]" in absence(GPU)
    assert "sm_75" in absence(tvm.target.Target({"kind": "cuda", "arch": "sm_75"}))
    assert "no GPU" in absence(tvm.target.Target("llvm"))


def test_the_switch_of_an_argument():
    with pytest.raises(gg.errors.ArgumentError, match="libraries='yes' must be True or False"):
        gg.value_and_grad(None, libraries="yes")
