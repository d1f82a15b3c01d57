"""The kernels of attention against its definition in float64."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.tensor import Emitter
from graphgrad.lower.cpu.attention.calls import problem_of
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.lower.pipeline import lower
from graphgrad.ops.fused_attention import fused_attention
from tests.running import function

HOST = gg.target("llvm")


def program(shapes, causal, scale, dtype="float32"):
    """A module with a function of operands and ȳ that returns y and the gradients."""

    def build(builder, *operands):
        emitter = Emitter(builder)
        y, _ = fused_attention(*map(emitter.lift, operands), scale=scale, causal=causal)
        return y.expr

    mod = function(build, *((shape, dtype) for shape in shapes))
    mod = gg.vjp(mod, "main", wrt=["x0", "x1", "x2"])
    del mod["main"]
    return mod


def compiled(shapes, *options):
    """The function of `program`, which calls our kernels."""
    types = [relax.TensorType(shape, "float32") for shape in shapes]
    assert problem_of(types, 1.0, "", processor_of(HOST)) is not None
    return relax.VirtualMachine(gg.compile(program(shapes, *options), HOST), tvm.cpu())["main_vjp"]


def reference(q, k, v, bias, ct, causal, scale):
    """y and the gradients; rows in which nothing is attended are zero."""
    q, k, v, bias, ct = (np.asarray(x, np.float64) for x in (q, k, v, bias, ct))
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = scale * q @ keys.swapaxes(2, 3) + bias
    if causal:
        offset = 0 if causal == "TopLeft" else k.shape[2] - q.shape[2]
        scores = np.where(np.tri(*scores.shape[2:], offset, dtype=bool), scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    y = weights @ values
    slopes = ct @ values.swapaxes(2, 3) - (ct * y).sum(-1, keepdims=True)
    slopes = scale * weights * slopes

    def over_groups(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(axis=2)

    return (
        y,
        slopes @ keys,
        over_groups(slopes.swapaxes(2, 3) @ q),
        over_groups(weights.swapaxes(2, 3) @ ct),
    )


CASES = {
    # Blocks that are not whole, several of them, and tiles of other heights than those of scores.
    "plain": ((2, 2, 70, 32), (2, 2, 150, 32), (2, 2, 150, 16), None, ""),
    "causal": ((1, 2, 150, 32), (1, 2, 150, 32), (1, 2, 150, 32), None, "TopLeft"),
    "groups": ((1, 4, 65, 16), (1, 2, 130, 16), (1, 2, 130, 64), None, "BottomRight"),
    # The first queries may attend no key.
    "empty rows": ((1, 2, 150, 16), (1, 1, 100, 16), (1, 1, 100, 80), None, "BottomRight"),
    "bias": ((2, 2, 20, 16), (2, 2, 101, 16), (2, 2, 101, 16), (1, 2, 20, 101), "TopLeft"),
    "padding": ((2, 2, 64, 16), (2, 2, 90, 16), (2, 2, 90, 16), (2, 1, 1, 90), ""),
    "one key": ((1, 1, 3, 16), (1, 1, 1, 16), (1, 1, 1, 16), None, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_follow_the_definition(case):
    q, k, v, bias, causal = CASES[case]
    generator = np.random.default_rng(0)
    shapes = [q, k, v, *([] if bias is None else [bias])]
    operands = [generator.standard_normal(shape).astype("float32") for shape in shapes]
    if bias is not None:
        operands[3][generator.uniform(size=bias) < 0.3] = -np.inf
        operands[3][-1, -1, -1] = -np.inf  # a row in which nothing is attended
    ct = generator.standard_normal((*q[:3], v[3])).astype("float32")
    call = compiled(shapes, causal, 0.3)
    # What threads keep for blocks is full of NaN then, and none of it may count.
    call(*(tvm.runtime.tensor(np.full_like(x, np.nan)) for x in [*operands, ct]))
    y, gradients = call(*map(tvm.runtime.tensor, [*operands, ct]))
    expected = reference(*operands[:3], operands[3] if bias else 0.0, ct, causal, 0.3)
    for result, truth in zip([y, *gradients], expected, strict=True):
        np.testing.assert_allclose(result.numpy(), truth, rtol=2e-5, atol=2e-5)


def test_scores_that_differ_much_and_are_large():
    shape = (1, 1, 40, 16)
    q = np.linspace(-60, 60, 40 * 16, dtype="float32").reshape(shape)
    ct = np.ones(shape, "float32")
    call = compiled([shape] * 3, "", 1.0)
    y, gradients = call(*map(tvm.runtime.tensor, (q, q, q, ct)))
    expected = reference(q, q, q, 0.0, ct, "", 1.0)
    assert np.isfinite(expected[0]).all()
    for result, truth in zip([y, *gradients], expected, strict=True):
        np.testing.assert_allclose(result.numpy(), truth, rtol=1e-6, atol=1e-6)


def test_large_scores_that_differ_little():
    """All near 256: what float32 keeps of a logsumexp there bounds the error of the gradients."""
    shape = (1, 2, 40, 16)
    generator = np.random.default_rng(0)
    q, k, v, ct = (generator.standard_normal(shape).astype("float32") for _ in range(4))
    q[..., 0] = k[..., 0] = 16.0
    y, gradients = compiled([shape] * 3, "", 1.0)(*map(tvm.runtime.tensor, (q, k, v, ct)))
    expected = reference(q, k, v, 0.0, ct, "", 1.0)
    for result, truth in zip([y, *gradients], expected, strict=True):
        error = np.abs(result.numpy() - truth).max() / np.abs(truth).max()
        assert error <= 1e-4


def test_a_key_that_is_nan_makes_all_gradients_nan():
    shape = (1, 1, 40, 16)
    generator = np.random.default_rng(0)
    q, k, v, ct = (generator.standard_normal(shape).astype("float32") for _ in range(4))
    k[0, 0, 7, 3] = np.nan
    y, gradients = compiled([shape] * 3, "", 1.0)(*map(tvm.runtime.tensor, (q, k, v, ct)))
    for result in (y, *gradients):
        assert np.isnan(result.numpy()).all()


def test_half_precision_is_computed_in_float32():
    shape = (1, 2, 20, 16)
    generator = np.random.default_rng(0)
    operands = [generator.standard_normal(shape).astype("float16") for _ in range(4)]
    y, gradients = compiled([shape] * 3, "TopLeft", 0.25, "float16")(
        *map(tvm.runtime.tensor, operands)
    )
    expected = reference(*operands[:3], 0.0, operands[3], "TopLeft", 0.25)
    for result, truth in zip([y, *gradients], expected, strict=True):
        assert result.dtype == "float16"
        np.testing.assert_allclose(result.numpy(), truth, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512", "x86-64"])
def test_kernels_are_made_for_other_processors(mcpu):
    shape = (1, 1, 70, 32)
    target = gg.target({"kind": "llvm", "mcpu": mcpu})
    lowered = lower(program([shape] * 3, "", 1.0), target)
    kernels = [variable.name_hint for variable in lowered.get_global_vars()]
    assert {"graphgrad_attention", "graphgrad_attention_gradient"} <= {*kernels}


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 1, 8, 20), "float32"), ((1, 1, 8, 16), "float64"), ((1, 1, "n", 16), "float32")],
)
def test_what_no_kernel_serves(shape, dtype):
    extents = [tvm.tirx.Var(n, "int64") if isinstance(n, str) else n for n in shape]
    types = [relax.TensorType(extents, dtype)] * 3
    assert problem_of(types, 1.0, "", processor_of(HOST)) is None
