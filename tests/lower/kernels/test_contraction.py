"""What counts as a contraction, and what is known of its reads."""

import pytest
import tvm
from tvm import te, topi

from graphgrad.fallback import create_prim_func
from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.contraction import blocks_of
from graphgrad.lower.kernels.contraction import contraction_of, operands
from tests.lower.cpu.contraction.stages import Kernel, convolution, product
from tests.lower.kernel_programs import tensor


def first_stage(inputs, output):
    func = create_prim_func([*inputs, output])
    stage = stages(func)[0]
    return stage, blocks_of(func.body)[stage.name]


def test_factors_under_casts():
    a, b = (tensor(20, 20, dtype="bfloat16", name=name) for name in "ab")
    stage, realize = first_stage([a, b], topi.matmul(a, b))
    contraction = contraction_of(stage, realize)
    assert contraction.dtype == "float32"
    assert {str(load.source.name) for load in contraction.loads} == {"a", "b"}
    assert all(isinstance(factor, tvm.tirx.Cast) for factor in contraction.factors)


def of_three(a, b):
    k = te.reduce_axis((0, 20), "k")
    return te.compute((20, 20), lambda i, j: te.sum(a[i, k] * b[k, j] * b[j, k], axis=k))


@pytest.mark.parametrize(
    "build",
    [of_three, lambda a, b: topi.sum(a, 0), lambda a, b: topi.max(a, 0), topi.add],
    ids=["three factors", "one factor", "maximum", "no sum"],
)
def test_what_is_no_contraction(build):
    a, b = tensor(20, 20, name="a"), tensor(20, 20, name="b")
    stage, realize = first_stage([a, b], build(a, b))
    assert operands(stage) is None
    assert contraction_of(stage, realize) is None


def test_symbolic_extents_are_known_by_their_expression():
    n = te.var("n", "int64")
    x, w = te.placeholder((n, 16), "float32", "x"), tensor(16, 32, name="w")
    stage, realize = first_stage([x, w], topi.matmul(x, w))
    contraction = contraction_of(stage, realize)
    assert [str(contraction.extent(axis)) for axis in contraction.spatial] == ["n", "32"]


def test_steps_and_dependence():
    kernel = Kernel(convolution(2, 9, 4, 8, 3, step=2))
    contraction = kernel.contraction
    steps = {name: contraction.step(0, kernel.axis(name)) for name in "nhvkrsc"}
    line = 19 * 4  # elements of a row of the padded image
    assert steps == {"n": 19 * line, "h": 2 * line, "v": 8, "k": 0, "r": line, "s": 4, "c": 1}
    assert [str(a.var.name) for a in contraction.used_by(1, contraction.spatial)] == ["v_k"]
    assert contraction.share_index(0, [kernel.axis("h"), kernel.axis("r")])
    assert not contraction.share_index(0, [kernel.axis("h"), kernel.axis("s")])


def test_copies_are_not_larger_than_their_source():
    kernel = Kernel(convolution(2, 9, 4, 8, 3))
    assert not kernel.contraction.can_be_copied(0)
    assert kernel.contraction.can_be_copied(1)
    huge = Kernel(product(1 << 16, 16, 1 << 14))
    assert not huge.contraction.can_be_copied(0)
