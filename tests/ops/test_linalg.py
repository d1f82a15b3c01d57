"""Matrix products: half precision, sums of no terms, and einsum as matrix products."""

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.errors import ArgumentError
from graphgrad.ops.einsum import parse
from graphgrad.ops.legalize import LEGALIZATIONS
from tests.running import F64, function, run

op = relax.op

HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def einsum(equation, *types):
    return function(lambda builder, *x: builder.emit(op.einsum(x, equation)), *types)


def matmul(*types):
    return function(lambda builder, a, b: builder.emit(op.matmul(a, b)), *types)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("build", [matmul, lambda *types: einsum("ij,jk->ik", *types)])
def test_half_precision_adds_up_in_float32(build, dtype):
    a, b = np.ones((1, 4096), HALF[dtype]), np.ones((4096, 1), HALF[dtype])
    y = run(build((a.shape, dtype), (b.shape, dtype)), "main", a, b)[0]
    assert (y.dtype, float(y[0, 0])) == (HALF[dtype], 4096.0)


def test_a_sum_of_no_terms_is_zero():
    mod = matmul(((2, 0), F64), ((0, 3), F64))
    y = run(mod, "main", np.zeros((2, 0)), np.zeros((0, 3)))[0]
    np.testing.assert_array_equal(y, np.zeros((2, 3)))
    transposed = gg.vjp(mod)  # its sums of no terms have the shapes of empty operands
    gradients = run(transposed, "main_vjp", np.zeros((2, 0)), np.zeros((0, 3)), np.ones((2, 3)))
    assert [g.shape for g in gradients] == [(2, 3), (2, 0), (0, 3)]


def test_products_of_three_operands_are_taken_two_at_a_time():
    shapes = ((40, 50), (60, 40), (50, 60))
    generator = np.random.default_rng(0)
    arrays = [generator.uniform(-1, 1, shape) for shape in shapes]
    mod = einsum("ij,kl,jk->il", *((shape, F64) for shape in shapes))
    y = run(mod, "main", *arrays)[0]
    np.testing.assert_allclose(y, arrays[0] @ arrays[2] @ arrays[1], atol=1e-10)
    with gg.target("llvm"):
        lowered = relax.transform.LegalizeOps(LEGALIZATIONS)(mod)
    loops = [str(f).count("T.axis.reduce") for f in lowered.functions.values()]
    assert max(loops[:-1] or loops) <= 1


@pytest.mark.parametrize(
    ("equation", "ranks", "expected"),
    [
        ("ij,jk", [2, 2], ([["i", "j"], ["j", "k"]], ["i", "k"])),
        ("ba", [2], ([["b", "a"]], ["a", "b"])),
        ("ii", [2], ([["i", "i"]], [])),
        ("...i -> ...", [3], ([[".1", ".0", "i"]], [".1", ".0"])),
        ("a...,...", [1, 2], ([["a"], [".1", ".0"]], [".1", ".0", "a"])),
    ],
)
def test_parse(equation, ranks, expected):
    assert parse(equation, ranks) == expected


@pytest.mark.parametrize(
    ("equation", "ranks", "message"),
    [
        ("ij->i", [2, 2], "has 1 operand"),
        ("ij->i", [3], "does not fit an operand of 3 axes"),
        ("i1->i", [2], "malformed"),
        ("......i->i", [2], "malformed"),
        ("ij->ik", [2], "only labels of its operands"),
        ("ij->ii", [2], "each label once"),
    ],
)
def test_malformed_equations(equation, ranks, message):
    with pytest.raises(ArgumentError, match=message):
        parse(equation, ranks)
