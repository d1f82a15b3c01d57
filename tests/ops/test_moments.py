"""Sums that lose no digits; mean and variance in one pass."""

import numpy as np
import pytest
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.ir.tensor import Emitter
from graphgrad.ir.visits import nodes_in
from graphgrad.lower import pipeline
from graphgrad.ops.moments import moments, precise_sum
from tests.peers import peer
from tests.running import function, run


def program(shape, axes, dtype="float32"):
    def build(builder, x):
        emitter = Emitter(builder)
        with emitter.at(None, "moments"):
            return relax.Tuple([t.expr for t in moments(emitter.lift(x), axes)])

    return function(build, (shape, dtype))


def of(x, axes):
    return run(program(x.shape, axes, str(x.dtype)), "main", x)


CASES = [((5, 7), [1]), ((5, 7), [0]), ((3, 4, 5), [0, 1]), ((2, 3, 4, 5), [0, 2, 3]), ((6,), [0])]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape, axes", CASES)
def test_against_numpy(shape, axes, dtype):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    mean, variance = of(x, axes)
    wide, bound = x.astype("f8"), 1e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(mean, wide.mean(tuple(axes), keepdims=True), atol=bound)
    np.testing.assert_allclose(variance, wide.var(tuple(axes), keepdims=True), atol=2 * bound)
    assert mean.dtype == variance.dtype == x.dtype


@pytest.mark.parametrize("dtype, mean", [("float32", 1e5), ("float64", 1e9)])
def test_large_means_lose_no_digits(dtype, mean):
    x = (np.random.default_rng(0).standard_normal((1000, 16)) + mean).astype(dtype)
    _, variance = of(x, [0])
    exact = (x.astype("f16" if dtype == "float64" else "f8")).var(0, keepdims=True)
    np.testing.assert_allclose(variance, exact.astype("f8"), rtol=3e-7)


def test_a_constant_has_no_negative_variance():
    _, variance = of(np.full((77, 3), 1 / 3, "float32"), [0])
    assert (variance >= 0).all()
    assert (variance < 1e-15).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_seen(bad):
    x = np.ones((4, 3), "float32")
    x[2, 1] = bad
    mean, variance = of(x, [0])
    assert not np.isfinite(mean[0, 1])
    assert np.isnan(variance[0, 1])
    assert np.isfinite(variance[0, [0, 2]]).all()


def test_of_nothing():
    for result in of(np.zeros((0, 3), "float32"), [0]):
        assert np.isnan(result).all()


def test_over_no_axis():
    x = np.ones((2, 3), "float32")
    mean, variance = of(x, [])
    np.testing.assert_array_equal(mean, x)
    np.testing.assert_array_equal(variance, 0 * x)


def sum_program(shape, axes, dtype="float32"):
    def build(builder, x):
        emitter = Emitter(builder)
        with emitter.at(None, "sum"):
            return precise_sum(emitter.lift(x), axes).expr

    return function(build, (shape, dtype))


@pytest.mark.parametrize("shape, axes", [((3, 4000), [1]), ((4000, 3), [0]), ((2, 3), [])])
def test_a_precise_sum_is_rounded_once(shape, axes):
    x = (np.random.default_rng(0).standard_normal(shape) * 1e3).astype("float32")
    exact = x.astype("f8").sum(tuple(axes), keepdims=True)
    (result,) = run(sum_program(shape, axes), "main", x)
    assert result.dtype == "float32"
    np.testing.assert_allclose(result, exact.astype("float32"), rtol=1e-7)


@pytest.mark.parametrize("kind, widens", [("cuda", False), ("llvm", True)])
def test_a_gpu_adds_up_in_float32(kind, widens):
    target = gg.target({"kind": "cuda", "arch": "sm_90"} if kind == "cuda" else kind)
    lowered = pipeline.lower(sum_program((64, 512), [1]), target)
    kernels = [each for each in lowered.functions.values() if isinstance(each, tirx.PrimFunc)]
    written = {str(s.buffer.dtype) for f in kernels for s in nodes_in(f.body, tirx.BufferStore)}
    assert ("float64" in written) == widens


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_derived_gradients_are_as_exact_as_those_of_torch(mean):
    torch = peer("torch")
    generator = np.random.default_rng(1)
    x = (generator.standard_normal((16, 256)) + mean).astype("float32")
    cts = [generator.standard_normal((16, 1)).astype("float32") for _ in range(2)]
    mod = gg.vjp(program(x.shape, [1]), rules="derived")
    *_, given = run(mod, "main_vjp", x, *cts)

    def by_torch(dtype):
        leaf = torch.tensor(x.astype(dtype), requires_grad=True)
        variance, average = torch.var_mean(leaf, 1, correction=0, keepdim=True)
        heads = [torch.tensor(ct.astype(dtype)) for ct in cts]
        torch.autograd.backward([average, variance], heads)
        return leaf.grad.numpy().astype("float64")

    exact = by_torch("float64")
    ours, theirs = (np.linalg.norm(g - exact) for g in (given, by_torch("float32")))
    assert ours <= 4 * theirs
