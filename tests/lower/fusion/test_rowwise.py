"""Kernels that go by the same rows become one; what they compute stays the same."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.lower.cpu.schedule import may_repeat
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.lower.fusion import fuse_rowwise, fuse_siblings
from graphgrad.lower.target import target
from tests.labels import label
from tests.lower.fusion.programs import called, fused, kernels, noted
from tests.lower.watching import around
from tests.running import function, run

op = relax.op
LARGE = ((64, 1024), "float32")
ROW = ((1024,), "float32")
UNIT = processor_of(target("llvm"))


def joined(build, *types):
    mod = fuse_siblings(fused(noted(kernels(build, *types))), may_repeat)
    return fuse_rowwise(mod, UNIT, may_repeat)


def row_sums(b, x):
    return b.emit(op.sum(x, axis=[1], keepdims=True))


def centered(b, x):
    """Return rows less their sums: a reduction, and a map that reads the same tensor."""
    return b.emit(op.subtract(x, row_sums(b, x)))


def test_a_reduction_and_the_map_behind_it_are_one_kernel():
    assert len(called(joined(centered, LARGE))) == 1


def test_results_that_others_read_are_kept():
    def build(b, x):
        sums = row_sums(b, x)
        y = b.emit(op.subtract(x, sums))
        return relax.Tuple([y, sums, b.emit(op.sum(y, axis=[0, 1]))])

    x = np.random.default_rng(0).standard_normal((64, 1024)).astype("f4")
    y, sums, total = run(function(build, LARGE), "main", x)
    wide = x.astype("f8")
    np.testing.assert_allclose(sums, wide.sum(1, keepdims=True), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(y, wide - wide.sum(1, keepdims=True), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(total, (wide - wide.sum(1, keepdims=True)).sum(), rtol=1e-5)


def test_sums_over_rows_join_what_reads_the_same_rows():
    def build(b, x, ct):
        sums = row_sums(b, b.emit(op.multiply(x, ct)))
        x_bar = b.emit(op.subtract(ct, b.emit(op.multiply(x, sums))))
        return relax.Tuple([x_bar, b.emit(op.sum(ct, axis=[0]))])

    assert len(called(joined(build, LARGE, LARGE))) == 1


def test_a_call_between_two_that_needs_the_first_and_is_needed_by_the_second_stays():
    def build(b, x, weight):
        sums = row_sums(b, x)
        product = b.emit(op.matmul(b.emit(op.permute_dims(sums)), x))
        return b.emit(op.multiply(x, product))

    types = (LARGE, ((1024, 1024), "float32"))
    names = called(joined(build, *types))
    assert len(names) > 1
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((64, 1024)).astype("f4"), np.zeros((1024, 1024), "f4")
    wide = x.astype("f8")
    expected = wide * (wide.sum(1) @ wide)
    (found,) = run(function(build, *types), "main", x, weight)
    # Terms of some hundreds cancel, in float32.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)


def test_other_rows_are_no_rows():
    """The map reads the sums of another order: all of them are needed first."""

    def build(b, x):
        sums = b.emit(op.sum(x, axis=[1]))
        return b.emit(op.subtract(x, sums))

    square = ((256, 256), "float32")
    assert len(called(joined(build, square))) == 2
    x = np.random.default_rng(0).standard_normal((256, 256)).astype("f4")
    (found,) = run(function(build, square), "main", x)
    np.testing.assert_allclose(found, x - x.astype("f8").sum(1), rtol=1e-5, atol=1e-4)


def test_small_tensors_and_few_rows_are_left_alone():
    assert len(called(joined(centered, ((8, 16), "float32")))) == 2
    assert len(called(joined(centered, ((4, 65536), "float32")))) == 2


def test_equal_chains_share_a_kernel():
    def build(b, x, y):
        return relax.Tuple([centered(b, x), centered(b, y)])

    names = called(joined(build, LARGE, LARGE))
    assert len(names) == 2
    assert len(set(names)) == 1


def layer_norm(b, x, gamma, beta):
    return b.emit(op.nn.layer_norm(x, gamma, beta, axes=[-1]))


def lowered_gradient(shape, dtype="float32"):
    row = (shape[-1:], dtype)
    return gg.vjp(function(layer_norm, (shape, dtype), row, row))


def test_a_norms_gradient_reads_its_tensors_once():
    """x̄, γ̄ and β̄ come of the kernel that computes the sums over rows."""
    _, mod = around("fuse_rowwise", lowered_gradient((64, 1024)), gg.target("llvm"))
    assert len(called(mod, "main_vjp")) <= 3  # the statistics, x̄ with the rest, γ in its shape


@pytest.mark.parametrize(
    "shape", [(64, 1024), (100, 768), (61, 1009), (17, 4099), (5, 7, 500), (16, 1030)], ids=label
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_values_of_a_norm_and_its_gradient(shape, dtype):
    rng = np.random.default_rng(0)
    x, ct = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    gamma, beta = (rng.standard_normal(shape[-1]).astype(dtype) for _ in range(2))
    y, x_bar, gamma_bar, beta_bar = run(
        lowered_gradient(shape, dtype), "main_vjp", x, gamma, beta, ct
    )
    x, ct, gamma, beta = (t.astype("f8") for t in (x, ct, gamma, beta))
    slope = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x_hat = (x - x.mean(-1, keepdims=True)) * slope
    inner = ct * gamma - (ct * gamma).mean(-1, keepdims=True)
    inner -= x_hat * (ct * gamma * x_hat).mean(-1, keepdims=True)
    axes = tuple(range(len(shape) - 1))
    expected = {
        "y": (y, x_hat * gamma + beta),
        "x": (x_bar, slope * inner),
        "gamma": (gamma_bar, (ct * x_hat).sum(axes)),
        "beta": (beta_bar, ct.sum(axes)),
    }
    bound = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 2e-6, "float64": 1e-13}[dtype]
    for name, (found, true) in expected.items():
        error = np.abs(found.astype("f8") - true).max() / np.abs(true).max()
        assert error < bound, (name, error)


def test_chains_of_equal_parts():
    """Their blocks have one name each until they are in one kernel."""

    def build(b, x, row):
        for _ in range(3):
            x = b.emit(op.nn.rms_norm(b.emit(op.add(b.emit(op.tanh(x)), x)), row, axes=[-1]))
        return x

    x, row = (np.random.default_rng(0).standard_normal(s).astype("f4") for s in ((64, 1024), 1024))
    found, x_bar, _ = run(gg.vjp(function(build, LARGE, ROW)), "main_vjp", x, row, x)
    exact = function(build, (x.shape, "float64"), (row.shape, "float64"))
    expected = run(gg.vjp(exact), "main_vjp", *(a.astype("f8") for a in (x, row, x)))
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(x_bar, expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [16, 64, 96, 128, 200])
def test_values_that_two_maps_read_in_one_loop(size, dtype):
    """Nothing else reads them, so they are never whole in memory."""

    def build(b, x, y, z):
        mean, largest = (b.emit(f(z, axis=[1], keepdims=True)) for f in (op.mean, op.max))
        scaled = b.emit(op.add(b.emit(op.multiply(x, mean)), largest))
        square = b.emit(op.multiply(scaled, scaled))
        return relax.Tuple([b.emit(op.add(y, scaled)), b.emit(op.add(y, square))])

    arrays = [np.sin(np.arange(size**2) + i).reshape(size, size).astype(dtype) for i in range(3)]
    results = run(function(build, *[((size, size), dtype)] * 3), "main", *arrays)
    x, y, z = (array.astype("float64") for array in arrays)
    scaled = x * z.mean(1, keepdims=True) + z.max(1, keepdims=True)
    for result, expected in zip(results, (y + scaled, y + scaled**2), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
