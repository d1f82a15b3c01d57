"""Attention that is found by structure, and what is no attention or may not be one."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.ir.inline import inline_calls
from graphgrad.ir.write import write_program
from graphgrad.ops.attention_pattern import fuse_attention
from graphgrad.ops.fused_attention import ATTENTION
from tests.running import function, run

B, H, S, T, D = 2, 4, 3, 5, 8
Q, K, V = (B, H, S, D), (B, H, T, D), (B, H, T, D)
op, nn = relax.op, relax.op.nn
LOWEST = float(np.finfo("float32").min)


def const(value, dtype="float32"):
    return relax.const(np.asarray(value, dtype))


def swapped(x):
    rank = len(x.ty.shape)
    return op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2])


def plain(q, k, v, change=lambda scores: scores, after=lambda weights: weights):
    """The usual form; every step is emitted, so that it has a variable and a type."""
    emit = relax.BlockBuilder.current().emit
    scores = emit(op.matmul(q, emit(swapped(k))))
    weights = emit(nn.softmax(emit(change(scores)), axis=-1))
    return op.matmul(emit(after(weights)), v)


def emitted(expr):
    return relax.BlockBuilder.current().emit(expr)


def causal_mask(fill, queries=S, keys=T):
    allowed = op.equal(emitted(op.tril(const(np.ones((queries, keys))), 0)), const(1.0))
    return op.where(emitted(allowed), const(0.0), const(fill))


def open_or_closed(mask):
    """A bias that is zero or −∞; the first key is open always."""
    condition = op.logical_or(emitted(op.greater(mask, const(0.0))), const([1, 0, 0, 0, 0], "bool"))
    return op.where(emitted(condition), const(0.0), const(-np.inf))


def repeated(x):
    batch, heads, length, features = map(int, x.ty.shape)
    narrow = emitted(op.reshape(x, (batch, heads, 1, length, features)))
    wide = emitted(op.broadcast_to(narrow, (batch, heads, 2, length, features)))
    return emitted(op.reshape(wide, (batch, heads * 2, length, features)))


def grouped(q, k, v):
    rows = emitted(op.reshape(q, (B, H // 2, 2 * S, D)))
    scores = emitted(op.reshape(emitted(op.matmul(rows, emitted(swapped(k)))), (B, H, S, T)))
    weights = emitted(op.reshape(emitted(nn.softmax(scores)), (B, H // 2, 2 * S, T)))
    return op.reshape(emitted(op.matmul(weights, v)), (B, H, S, D))


def guarded(q, k, v, mask):
    allowed = emitted(op.greater(mask, const(0.0)))
    return plain(
        q,
        k,
        v,
        lambda s: op.where(allowed, s, const(LOWEST)),
        lambda w: op.where(allowed, w, const(0.0)),
    )


def without_nan(q, k, v, mask):
    bias = emitted(op.where(emitted(op.greater(mask, const(0.0))), const(0.0), const(-np.inf)))

    def zeros(weights):
        return op.where(emitted(op.isnan(weights)), const(0.0), weights)

    return plain(q, k, v, lambda s: op.add(s, bias), zeros)


def without_heads(q, k, v):
    q, k, v = (emitted(op.reshape(x, (B * H, *list(x.ty.shape)[2:]))) for x in (q, k, v))
    return plain(q, k, v, lambda s: op.divide(s, const(2.0)))


def from_positions_first(q, k, v):
    q, v = (emitted(op.permute_dims(x, [0, 2, 1, 3])) for x in (q, v))
    transposed = emitted(op.permute_dims(k, [0, 2, 3, 1]))
    weights = emitted(nn.softmax(emitted(op.matmul(q, transposed))))
    return op.matmul(weights, v)


def heads_of(x, heads=H):
    """Heads of rows of features, in front of positions."""
    batch, length, width = map(int, x.ty.shape)
    rows = emitted(op.reshape(x, (batch, length, heads, width // heads)))
    return emitted(op.permute_dims(rows, [0, 2, 1, 3]))


def scaled_rows(factor):
    """Attention whose queries are scaled before heads are told apart."""
    return lambda q, k, v: plain(
        heads_of(emitted(op.multiply(q, const(factor)))), heads_of(k), heads_of(v)
    )


ROWS = [(B, S, H * D), (B, T, H * D), (B, T, H * D)]
HALF_K = (B, H // 2, T, D)
MASK = (B, 1, S, T)
FOUND = {
    "plain": (plain, [Q, K, V], ""),
    "scaled scores": (
        lambda *x: plain(*x, lambda s: op.multiply(s, const(0.5))),
        [Q, K, V],
        "",
    ),
    "scaled factors": (
        lambda q, k, v: plain(
            emitted(op.multiply(q, const(0.3))), emitted(op.divide(k, const(2.0))), v
        ),
        [Q, K, V],
        "",
    ),
    "scaled rows": (scaled_rows(0.5), ROWS, ""),
    "scaled rows, each feature by its own": (scaled_rows(np.arange(1.0, H * D + 1)), ROWS, ""),
    "causal": (
        lambda *x: plain(*x, lambda s: op.add(s, emitted(causal_mask(-np.inf)))),
        [Q, K, V],
        "TopLeft",
    ),
    "causal, finite": (
        lambda *x: plain(*x, lambda s: op.add(emitted(causal_mask(LOWEST)), s)),
        [Q, K, V],
        "TopLeft",
    ),
    "causal, chosen": (
        lambda *x: plain(
            *x, lambda s: op.where(const(np.tri(S, T, T - S), "bool"), s, const(LOWEST))
        ),
        [Q, K, V],
        "BottomRight",
    ),
    "constant mask": (
        lambda *x: plain(*x, lambda s: op.add(s, const([0, 0, -np.inf, 0, 0]))),
        [Q, K, V],
        "",
    ),
    "small bias": (lambda *x: plain(*x, lambda s: op.add(s, const(np.arange(5.0)))), [Q, K, V], ""),
    "bias of a condition": (
        lambda q, k, v, m: plain(q, k, v, lambda s: op.add(s, emitted(open_or_closed(m)))),
        [Q, K, V, MASK],
        "",
    ),
    "computed mask": (guarded, [Q, K, V, MASK], ""),
    "rows of NaN are zero": (without_nan, [Q, K, V, MASK], ""),
    "repeated heads": (
        lambda q, k, v: plain(q, repeated(k), repeated(v)),
        [Q, HALF_K, HALF_K],
        "",
    ),
    "rows of a group": (grouped, [Q, HALF_K, HALF_K], ""),
    "heads in the batch": (without_heads, [Q, K, V], ""),
    "positions first": (from_positions_first, [(B, S, H, D), (B, T, H, D), (B, T, H, D)], ""),
    "TVM's": (
        lambda q, k, v: nn.attention(q, k, v, causal_mask="BottomRight"),
        [(B, S, H, D), (B, T, 2, D), (B, T, 2, D)],
        "BottomRight",
    ),
    "TVM's with a bias": (
        lambda q, k, v, m: nn.attention_bias(q, k, v, emitted(open_or_closed(m))),
        [(B, S, H, D), (B, T, H, D), (B, T, H, D), MASK],
        "",
    ),
}


def module(form, shapes, dtype="float32"):
    return function(
        lambda builder, *x: builder.emit(form(*x)), *((shape, dtype) for shape in shapes)
    )


def fused(mod, trained=3, **options):
    program = inline_calls(mod, "main")
    result = fuse_attention(program, lambda *_: True, program.params[:trained], **options)
    calls = [
        v for _, v in result.bindings if getattr(getattr(v, "op", None), "name", "") == ATTENTION
    ]
    return result, calls


def arrays(shapes):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_computes_the_same(name):
    form, shapes, causal = FOUND[name]
    mod = module(form, shapes)
    program, calls = fused(mod)
    assert [str(call.attrs["causal"]) for call in calls] == [causal]
    assert not any("softmax" in str(value) for _, value in program.bindings)
    x = arrays(shapes)
    (expected,), (y,) = run(mod, "main", *x), run(write_program(program, "main"), "main", *x)
    if name in ("rows of NaN are zero", "computed mask"):  # where a row may be empty
        expected = np.nan_to_num(expected)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_heads_that_are_shared_are_not_repeated():
    _, (call,) = fused(module(*FOUND["repeated heads"][:2]))
    assert [int(n) for n in call.args[1].ty.shape] == list(HALF_K)


def test_the_scale_of_rows_is_that_of_attention():
    _, (call,) = fused(module(scaled_rows(0.5), ROWS))
    assert call.attrs["scale"] == 0.5
    _, (call,) = fused(module(scaled_rows(np.arange(1.0, H * D + 1)), ROWS))
    assert call.attrs["scale"] == 1.0


def read_twice(q, k, v):
    scores = emitted(op.matmul(q, emitted(swapped(k))))
    weights = emitted(nn.softmax(scores))
    return op.add(emitted(op.matmul(weights, v)), emitted(op.sum(weights)))


def with_bias(q, k, v, bias):
    return plain(q, k, v, lambda s: op.add(s, bias))


LEFT = {
    "softmax along queries": lambda q, k, v: op.matmul(
        emitted(nn.softmax(emitted(op.matmul(q, emitted(swapped(k)))), axis=2)), v
    ),
    "capped scores": lambda *x: plain(*x, op.tanh),
    "weights that are changed": lambda *x: plain(*x, after=lambda w: op.multiply(w, const(2.0))),
    "a softmax in float64": lambda *x: plain(
        *x, lambda s: op.astype(s, "float64"), lambda w: op.astype(w, "float32")
    ),
    "a factor of each key": lambda *x: plain(*x, lambda s: op.multiply(s, const(np.arange(1, 6)))),
    "a bias in front of the scale": lambda *x: plain(
        *x, lambda s: op.multiply(emitted(op.add(s, const(np.arange(5.0)))), const(0.5))
    ),
    "a mask that is not low": lambda *x: plain(
        *x, lambda s: op.where(const(np.tri(S, T), "bool"), s, const(-10000.0))
    ),
    "a finite mask of whole rows": lambda *x: plain(
        *x, lambda s: op.where(const(np.zeros((S, T)), "bool"), s, const(LOWEST))
    ),
    "two finite masks of a whole row": lambda *x: plain(
        *x,
        lambda s: op.add(
            emitted(op.where(const(np.tri(S, T), "bool"), s, const(LOWEST))),
            const([LOWEST, 0, 0, 0, 0]),
        ),
    ),
    "a mask of other rows of weights": lambda *x: plain(
        *x, after=lambda w: op.where(const(np.tri(S, T), "bool"), w, const(0.0))
    ),
    "rows that are mixed": lambda q, k, v: plain(
        q, k, v, lambda s: op.reshape(emitted(op.permute_dims(s, [0, 1, 3, 2])), (B, H, S, T))
    ),
    "shared keys by broadcasting": lambda q, k, v: plain(
        q, emitted(op.strided_slice(k, [1], [0], [1])), emitted(op.strided_slice(v, [1], [0], [1]))
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_in_doubt_stays(name):
    assert not fused(module(LEFT[name], [Q, K, V]))[1]


def test_weights_that_something_else_reads_stay():
    assert not fused(module(read_twice, [Q, K, V]))[1]


def test_a_computed_finite_mask_stays():
    def chosen(q, k, v, mask):
        allowed = emitted(op.greater(mask, const(0.0)))
        return plain(q, k, v, lambda s: op.where(allowed, s, const(LOWEST)))

    assert not fused(module(chosen, [Q, K, V, MASK]))[1]


def test_a_finite_mask_beside_a_bias_that_may_exclude_the_rest_stays():
    def chosen(q, k, v, bias):
        allowed = const(np.tri(S, T), "bool")
        return plain(q, k, v, lambda s: op.where(allowed, emitted(op.add(s, bias)), const(LOWEST)))

    assert not fused(module(chosen, [Q, K, V, MASK]))[1]


def test_a_bias_that_trains_stays():
    form, shapes, _ = FOUND["bias of a condition"]
    assert len(fused(module(form, shapes), trained=3)[1]) == 1
    assert not fused(module(form, shapes), trained=4)[1]


@pytest.mark.parametrize("form", [with_bias, nn.attention_bias])
def test_a_bias_of_any_size_stays(form):
    """It leaves no digits to the logarithm of a row's sum, if it is −1e9 in all of the row."""
    shapes = [(B, S, H, D), (B, T, H, D), (B, T, H, D)] if form is nn.attention_bias else [Q, K, V]
    assert not fused(module(form, [*shapes, MASK]))[1]


def test_a_number_is_that_of_its_casts():
    def scaled(q, k, v):
        factor = emitted(op.astype(emitted(op.astype(const(2.9), "int64")), "float32"))
        return plain(q, k, v, lambda s: op.multiply(s, factor))

    _, (call,) = fused(module(scaled, [Q, K, V]))
    assert call.attrs["scale"] == 2.0


def test_weights_that_are_queries_of_another_attention():
    def twice(q, k, v):
        inner = emitted(plain(q, k, k))
        weights = emitted(
            nn.softmax(
                emitted(
                    op.matmul(emitted(nn.softmax(emitted(op.matmul(q, emitted(swapped(k)))))), v)
                )
            )
        )
        return op.add(emitted(op.matmul(weights, emitted(swapped(v)))), emitted(op.sum(inner)))

    mod = module(twice, [Q, K, V])
    program, calls = fused(mod)
    assert len(calls) == 2
    x = arrays([Q, K, V])
    (expected,), (y,) = run(mod, "main", *x), run(write_program(program, "main"), "main", *x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_what_somebody_has_a_rule_for_stays():
    program = inline_calls(module(plain, [Q, K, V]), "main")
    asked = []
    result = fuse_attention(program, lambda *_: True, is_custom=asked.append)
    assert result is not program and {"relax.matmul", "relax.nn.softmax"} <= set(asked)
    for name in ("relax.nn.softmax", "relax.matmul"):
        stays = fuse_attention(program, lambda *_: True, is_custom=lambda op, name=name: op == name)
        assert stays is program


def test_what_somebody_asks_for_by_name_stays():
    mod = module(plain, [Q, K, V])
    program = inline_calls(mod, "main")
    scores = next(var for var, value in program.bindings if "matmul" in str(value))
    result = fuse_attention(program, lambda *_: True, keep=[scores])
    assert result is program


def test_what_no_kernel_serves_stays():
    program = inline_calls(module(plain, [Q, K, V]), "main")
    asked = []
    assert fuse_attention(program, lambda *choice: asked.append(choice)) is program
    ((types, scale, causal),) = asked
    assert [list(map(int, ty.shape)) for ty in types] == [list(Q), list(K), list(V)]
    assert (scale, causal) == (1.0, "")


def test_gradients_are_those_of_the_plain_form():
    form, shapes, _ = FOUND["scaled scores"]
    mod = module(form, shapes)
    program, _ = fused(mod)
    x = [*arrays(shapes), arrays([Q])[0]]
    results = []
    for each in (mod, write_program(program, "main")):
        first = gg.vjp(each, "main")
        results.append([np.asarray(y) for y in run(first, "main_vjp", *x)])
    for y, expected in zip(*results, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
