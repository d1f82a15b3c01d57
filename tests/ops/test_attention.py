"""Attention against its definition."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from tests.running import F64, function, run

nn = relax.op.nn


def program(shapes, dtype=F64, **attributes):
    def build(builder, *x):
        return builder.emit(nn.attention(*x, **attributes))

    return function(build, *((shape, dtype) for shape in shapes))


def reference(q, k, v, bias=0.0, allowed=True):
    heads = q.shape[2]
    k, v = (np.repeat(t, heads // t.shape[2], axis=2) for t in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[3]) + bias
    scores = np.where(allowed, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    weights = np.where(allowed, np.exp(scores - np.where(np.isfinite(highest), highest, 0)), 0)
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return np.einsum("bhqk,bkhd->bqhd", weights, v)


def drawn(*shapes, dtype=F64):
    generator = np.random.default_rng(0)
    return [generator.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


GROUPED = ((1, 3, 4, 2), (1, 5, 2, 2), (1, 5, 2, 2))
FAR_BELOW = [np.full((1, 3, 1, 1), 40.0), np.full((1, 3, 1, 1), -40.0), np.ones((1, 3, 1, 1))]


def test_heads_share_keys_and_values_in_groups():
    arrays = drawn(*GROUPED)
    y = run(program(GROUPED), "main", *arrays)[0]
    np.testing.assert_allclose(y, reference(*arrays), atol=1e-12)


def test_scores_far_below_zero_survive_a_causal_mask():
    mod = program([a.shape for a in FAR_BELOW], causal_mask="TopLeft")
    np.testing.assert_allclose(run(mod, "main", *FAR_BELOW)[0], 1.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_half_precision_is_multiplied_and_added_in_float32(dtype, tolerance):
    numpy_dtype = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    shape = (1, 4, 2, 512)
    arrays = drawn(*[shape] * 3, dtype=numpy_dtype)
    y = run(program([shape] * 3, dtype), "main", *arrays)[0]
    assert y.dtype == numpy_dtype
    expected = reference(*(a.astype(F64) for a in arrays))
    np.testing.assert_allclose(y.astype(F64), expected, atol=tolerance)


def test_a_row_that_may_attend_nothing_is_zero_and_so_are_its_gradients():
    shapes = ((1, 2, 1, 2), (1, 3, 1, 2), (1, 3, 1, 2), (1, 1, 2, 3))
    q, k, v, bias = drawn(*shapes)
    bias[0, 0, 1] = -np.inf
    bias[0, 0, 0, 2] = -np.inf
    mod = program(shapes)
    y, *gradients = run(gg.vjp(mod), "main_vjp", q, k, v, bias, np.ones((1, 2, 1, 2)))
    np.testing.assert_allclose(y, reference(q, k, v, bias, np.isfinite(bias)), atol=1e-12)
    assert not y[0, 1].any()
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][0, 1].any()
    assert not gradients[3][np.isinf(bias)].any()


def test_attention_of_variable_length_has_no_forward():
    lengths = ((2,), "int32")
    types = [((1, 4, 1, 2), "float32")] * 3 + [lengths, lengths, ((), "int32"), ((), "int32")]
    mod = function(lambda builder, *x: builder.emit(nn.attention_var_len(*x)), *types)
    with pytest.raises(RuntimeError, match="attention_var_len op is not supported"):
        tvm.compile(mod, gg.target("llvm"))
