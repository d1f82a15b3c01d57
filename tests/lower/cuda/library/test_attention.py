"""Attention by a library: what becomes a call of it, in which order, and what that computes."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.lower.cuda.library import attention, select
from graphgrad.lower.cuda.library.attention import call_attention_library, serves_attention
from graphgrad.lower.cuda.library.devices import PROFILES
from graphgrad.lower.cuda.library.offline import plan_all
from graphgrad.ops.define import call_op
from graphgrad.ops.fused_attention import ATTENTION, GRADIENT
from graphgrad.runtime.cudnn.backend import library_path
from graphgrad.runtime.cudnn.plans import WORKSPACE_LIMIT, Plan
from graphgrad.runtime.cudnn.problem import Problem, TensorForm, strides_of
from tests.emulator.library import Library
from tests.peers import required
from tests.running import function, run

GPU = gg.target({"kind": "cuda", "arch": "sm_90"})
HALF, SINGLE = "bfloat16", "float32"
B, S, H, D = 2, 6, 4, 8
LAST = [0, 2, 1, 3]


@pytest.fixture
def library(monkeypatch):
    """A library that has a plan for all."""
    monkeypatch.delenv(select.SWITCH)
    monkeypatch.setattr(select, "is_installed", lambda: True)
    monkeypatch.setattr(
        attention,
        "plan_all",
        lambda problems, _: {p: Plan(p, 96, 0, (), 0, 90, "") for p in problems},
    )


def emit(b, name, *operands, **attrs):
    return b.emit(call_op(tvm.ir.Op.get(name), list(operands), **attrs))


def permute(b, x, axes=LAST):
    return b.emit(relax.op.permute_dims(x, axes))


def cast(b, x, dtype):
    return x if str(x.ty.dtype) == dtype else b.emit(relax.op.astype(x, dtype))


def program(heads=H, causal="", wide=False, extent=S):
    """Attention with positions in front of heads, and its gradient; in float32, if `wide`."""

    def build(b, query, key, value, ct):
        dtype = SINGLE if wide else HALF
        q, k, v, c = (cast(b, permute(b, x), dtype) for x in (query, key, value, ct))
        attrs = {"scale": 0.3, "causal": causal}
        both = emit(b, ATTENTION, q, k, v, **attrs)
        y, sums = (b.emit(relax.TupleGetItem(both, place)) for place in range(2))
        slopes = emit(b, GRADIENT, q, k, v, y, sums, c, **attrs)
        results = [y, *(b.emit(relax.TupleGetItem(slopes, place)) for place in range(3))]
        results = [permute(b, cast(b, x, HALF)) for x in results]
        return b.emit(relax.Tuple([*results, sums]))

    of_query, of_key = ((B, extent, H, D), HALF), ((B, S, heads, D), HALF)
    return function(build, of_query, of_key, of_key, of_query)


def ops(mod, name="main"):
    values = [binding.value for block in mod[name].body.blocks for binding in block.bindings]
    return [str(v.op.name) for v in values if isinstance(v, relax.Call)]


# Each pair of heads, mask and width: conversions around the call know of neither heads nor masks.
@pytest.mark.parametrize(
    ("heads", "causal", "wide"),
    [
        pytest.param(heads, causal, wide, id=f"{heads}-{causal}-{'wide' if wide else 'half'}")
        for i, heads in enumerate([H, 2, 1])
        for j, causal in enumerate(["", "TopLeft", "BottomRight"])
        for wide in [(i + j) % 2 == 1]
    ],
)
def test_attention_and_its_gradient(library, heads, causal, wide):
    mod = program(heads, causal, wide)
    changed = call_attention_library(mod, GPU)
    relax.analysis.well_formed(changed)  # raises
    # Nothing is permuted or cast: the library reads and writes what is around it.
    assert ops(changed) == ["relax.call_dps_packed"] * 2
    rng = np.random.default_rng(0)
    shapes = [[int(n) for n in p.ty.shape] for p in mod["main"].params]
    arrays = [rng.standard_normal(shape).astype(HALF) for shape in shapes]
    with Library() as counting:
        found = run(changed, "main", *arrays)
    assert [each.causal for each in counting.computed] == [causal != ""] * 2
    for result, expected in zip(found, run(mod, "main", *arrays), strict=True):
        np.testing.assert_allclose(
            result.astype(SINGLE), expected.astype(SINGLE), rtol=0.04, atol=0.04
        )


def of_five_axes(b, whole, heads):
    """Queries, keys and values of one tensor, as modules of torch take them apart."""
    apart = b.emit(relax.op.reshape(whole, (B, S, 3, heads, D)))
    split = b.emit(relax.op.split(permute(b, apart, [2, 0, 3, 1, 4]), 3, axis=0))
    parts = [b.emit(relax.TupleGetItem(split, place)) for place in range(3)]
    return [b.emit(relax.op.reshape(part, (B, heads, S, D))) for part in parts]


def of_features(b, whole, heads):
    """Queries, keys and values of one tensor, whose heads are split apart later."""
    split = b.emit(relax.op.split(whole, [H * D, (H + heads) * D], axis=2))
    parts = [b.emit(relax.TupleGetItem(split, place)) for place in range(3)]
    counts = (H, heads, heads)
    rows = [b.emit(relax.op.reshape(x, (B, S, n, D))) for x, n in zip(parts, counts, strict=True)]
    return [permute(b, each) for each in rows]


def packed(taken_apart, heads=H, wide=True, read=lambda b, whole, parts: []):
    """The gradient of attention whose queries, keys and values are parts of one tensor.

    `read` emits what else is a result.
    """

    def build(b, whole):
        parts = taken_apart(b, whole, heads)
        others = read(b, whole, parts)
        both = emit(
            b,
            ATTENTION,
            *(cast(b, part, SINGLE if wide else HALF) for part in parts),
            scale=0.3,
            causal="TopLeft",
        )
        y = permute(b, cast(b, b.emit(relax.TupleGetItem(both, 0)), HALF))
        return b.emit(relax.Tuple([y, *others]) if others else y)

    return function(build, ((B, S, (H + 2 * heads) * D), HALF))


def check_packed(mod):
    """Compare with what kernels of ours compute; return the ops that stay, and the problems."""
    name = "main_vjp"
    mod = gg.vjp(mod)
    changed = call_attention_library(mod, GPU)
    relax.analysis.well_formed(changed)  # raises
    rng = np.random.default_rng(0)
    shapes = [[int(n) for n in param.ty.shape] for param in mod[name].params]
    arrays = [rng.standard_normal(shape).astype(HALF) for shape in shapes]
    with Library() as counting:
        found = run(changed, name, *arrays)
    for result, expected in zip(found, run(mod, name, *arrays), strict=True):
        np.testing.assert_allclose(
            result.astype(SINGLE), expected.astype(SINGLE), rtol=0.04, atol=0.04
        )
    stay = {"relax.split", "relax.concat", "relax.permute_dims"}
    return [each for each in ops(changed, name) if each in stay], counting.computed


PACKINGS = {
    "five axes": (of_five_axes, H),
    "features": (of_features, H),
    "fewer heads of keys": (of_features, 2),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_parts_of_one_tensor_are_read_and_written_where_they_are(library, packing):
    stay, (forward, backward) = check_packed(packed(*PACKINGS[packing]))
    assert stay == []
    heads = PACKINGS[packing][1]
    begins, every = [0, H * D, (H + heads) * D], B * S * (H + 2 * heads) * D
    assert [form.offset for form in forward.inputs] == begins and not forward.joined
    assert [form.offset for form in backward.outputs] == begins and backward.joined
    assert {form.elements for form in (*forward.inputs, *backward.outputs)} == {every}
    assert Problem.from_json(backward.to_json()) == backward


OTHER_READERS = {
    "of the whole": (lambda b, whole, parts: [whole], False),
    "of a part": (lambda b, whole, parts: [b.emit(relax.op.sin(parts[1]))], True),
    "of a part outside": (lambda b, whole, parts: [parts[2]], True),
}


@pytest.mark.parametrize("case", OTHER_READERS)
def test_parts_that_others_read_are_computed(library, case):
    read, is_split = OTHER_READERS[case]
    stay, (forward, backward) = check_packed(packed(of_five_axes, wide=False, read=read))
    assert ("relax.split" in stay) == is_split
    assert any(form.offset for form in forward.inputs) != is_split
    # What others read has a gradient of its own, to which that of attention is added.
    assert backward.joined != is_split and ("relax.concat" in stay) == is_split


def test_parts_that_begin_at_no_multiple_of_16_bytes_are_computed(library, monkeypatch):
    for name, value in (("D", 4), ("H", 1)):
        monkeypatch.setitem(globals(), name, value)
    stay, (forward, backward) = check_packed(packed(of_features, 1))
    assert "relax.split" in stay and "relax.concat" in stay
    assert [form.offset for form in forward.inputs] == [0, 0, 2 * D] and not backward.joined


@pytest.mark.parametrize(
    "join",
    [
        lambda b, q, k, v: b.emit(relax.op.concat([q, k, v, v], 2)),
        lambda b, q, k, v: b.emit(relax.op.concat([q, k], 2)),
        lambda b, q, k, v: b.emit(relax.op.concat([q, b.emit(relax.op.sin(k)), v], 2)),
        lambda b, q, k, v: b.emit(relax.op.concat([v, q, k], 1)),
        lambda b, q, k, v: b.emit(relax.op.concat([v, q, k], -1)),
    ],
    ids=["one twice", "two of three", "a map", "positions", "another order"],
)
def test_what_gradients_are_joined_to(library, join):
    def build(b, query, key, value, ct):
        operands = [permute(b, x) for x in (query, key, value)]
        both = emit(b, ATTENTION, *operands, scale=0.3, causal="")
        y, sums = (b.emit(relax.TupleGetItem(both, place)) for place in range(2))
        slopes = emit(b, GRADIENT, *operands, y, sums, permute(b, ct), scale=0.3, causal="")
        parts = [permute(b, b.emit(relax.TupleGetItem(slopes, place))) for place in range(3)]
        return join(b, *parts)

    mod = function(build, *[((B, S, H, D), HALF)] * 4)
    changed = call_attention_library(mod, GPU)
    relax.analysis.well_formed(changed)  # raises
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((B, S, H, D)).astype(HALF) for _ in range(4)]
    with Library() as counting:
        found = run(changed, "main", *arrays)
    for result, expected in zip(found, run(mod, "main", *arrays), strict=True):
        np.testing.assert_allclose(
            result.astype(SINGLE), expected.astype(SINGLE), rtol=0.04, atol=0.04
        )
    assert counting.computed[1].joined == ("relax.concat" not in ops(changed))


def test_what_others_read_in_the_order_of_heads_is_written_in_that(library):
    def build(b, query, key, value):
        both = emit(b, ATTENTION, query, permute(b, key), value, scale=1.0, causal="")
        y = b.emit(relax.TupleGetItem(both, 0))
        return b.emit(relax.Tuple([permute(b, y), b.emit(relax.op.negative(y))]))

    plain = ((B, H, S, D), HALF)
    mod = call_attention_library(function(build, plain, ((B, S, H, D), HALF), plain), GPU)
    assert ops(mod) == ["relax.call_dps_packed", "relax.permute_dims", "relax.negative"]


@pytest.mark.parametrize(
    "changes",
    [{"causal": "BottomRight", "extent": 9}, {"causal": "TopLeft", "extent": 4}],
    ids=["rows that attend nothing", "fewer queries"],
)
def test_what_is_left_to_kernels_of_ours(library, changes):
    mod = program(**changes)
    assert call_attention_library(mod, GPU).same_as(mod)


@pytest.mark.parametrize("packing", PACKINGS)
def test_batches_of_any_size_are_left_to_kernels_of_ours(library, monkeypatch, packing):
    monkeypatch.setitem(globals(), "B", tvm.tirx.Var("batch", "int64"))
    mod = gg.vjp(packed(*PACKINGS[packing]))
    assert call_attention_library(mod, GPU).same_as(mod)


def test_biases_and_wide_types_are_left_to_kernels_of_ours(library):
    types = [relax.TensorType([B, H, S, D], HALF)] * 3
    serves = serves_attention(GPU)
    assert serves(types, 1.0, "") and serves(types, 1.0, "TopLeft")
    assert not serves([*types, relax.TensorType([B, 1, 1, S], SINGLE)], 1.0, "")
    assert not serves([relax.TensorType([B, H, S, D], SINGLE)] * 3, 1.0, "")


def test_products_take_the_place_of_attention_without_plans(library, monkeypatch):
    monkeypatch.setattr(attention, "plan_all", lambda problems, _: dict.fromkeys(problems, "none"))
    mod = program()
    assert call_attention_library(mod, GPU).same_as(mod)
    assert not serves_attention(GPU)([relax.TensorType([B, H, S, D], HALF)] * 3, 1.0, "")


@pytest.mark.parametrize("device", PROFILES)
def test_plans(device):
    required("cuDNN", library_path() is not None)

    def problems(heads, keys, causal):
        query, key = (2, 4, 64, 64), (2, heads, keys, 64)
        last = TensorForm(query, (64 * 256, 64, 256, 1), HALF)
        key_form = TensorForm(key, strides_of(key), HALF)
        sums = TensorForm((2, 4, 64, 1), (256, 64, 1, 1), SINGLE)
        inputs = (last, key_form, key_form)
        forward = Problem("attention", inputs, (last, sums), scale=0.125, causal=causal)
        inputs = (*inputs, last, sums, last)
        outputs = (last, key_form, key_form)
        return forward, Problem("attention_gradient", inputs, outputs, scale=0.1, causal=causal)

    def parts():
        """The problems whose queries, keys and values are parts of one tensor."""
        forward, backward = problems(4, 64, True)
        strides, every = (64 * 768, 64, 768, 1), 2 * 64 * 768
        packed = [
            TensorForm((2, 4, 64, 64), strides, HALF, begin, every) for begin in (0, 256, 512)
        ]
        yield replace(forward, inputs=tuple(packed))
        inputs = (*packed, *backward.inputs[3:])
        yield replace(backward, inputs=inputs, outputs=tuple(packed), joined=True)

    cases = [*problems(4, 64, False), *problems(2, 64, True), *problems(4, 50, False), *parts()]
    for problem, plan in plan_all(cases, PROFILES[device]).items():
        assert isinstance(plan, Plan), f"{problem}: {plan}"
        assert plan.workspace <= WORKSPACE_LIMIT and Plan.from_json(plan.to_json()) == plan
        # The gradient has the cotangents of the scores in its workspace, not sums by atomics.
        scores = 2 * 2 * 4 * 64 * 64
        is_gradient = problem.op == "attention_gradient"
        assert (plan.workspace >= plan.scratch_bytes + scores) == is_gradient
        assert bool(plan.scratches) == is_gradient
