"""Derived gradients in a program: each kernel once, and the same as by rules."""

import numpy as np
import pytest
from tvm import relax, te, tirx
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import graphgrad as gg
import models
from graphgrad.autodiff import written_out
from graphgrad.fallback import intrinsics
from graphgrad.fallback.kernels import gradient
from graphgrad.fallback.memo import DERIVED
from graphgrad.frontend.mode import specialize
from graphgrad.ir.provenance import read
from graphgrad.models.resnet import basic_block, resnet
from tests import torch_export
from tests.peers import peer
from tests.promoted_models import promoted
from tests.running import F64, function, run


@pytest.fixture
def derivations(monkeypatch):
    """What is derived, from the kernels' outputs on, and what is lowered, by op."""
    derived, lowered = [], []
    derive, lower = gradient.gradient_expressions, written_out._written_out

    def counted(outputs, *rest, **keywords):
        derived.append(outputs)
        return derive(outputs, *rest, **keywords)

    def written(rule, *rest):
        lowered.append(rule.op)
        return lower(rule, *rest)

    monkeypatch.setattr(gradient, "gradient_expressions", counted)
    monkeypatch.setattr(written_out, "_written_out", written)
    DERIVED.clear()
    written_out._WRITTEN_OUT.clear()
    yield derived, lowered
    DERIVED.clear()
    written_out._WRITTEN_OUT.clear()


def layers(depth, rows):
    """Return `depth` times tanh and softmax of a matrix, one after another."""

    def build(builder, x):
        for _ in range(depth):
            x = builder.emit(relax.op.tanh(x))
            x = builder.emit(relax.op.nn.softmax(x))
        return x

    return function(build, ((rows, 3), F64))


@pytest.mark.parametrize("rows", [2, tirx.Var("n", "int64")], ids=["static", "symbolic"])
def test_layers_that_are_alike_are_derived_once(derivations, rows):
    derived, lowered = derivations
    mod = gg.vjp(layers(12, rows), rules="derived")
    assert sorted(lowered) == ["relax.call_tir(softmax)", "relax.nn.softmax", "relax.tanh"]
    assert len(derived) == 2
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 4, "two kernels and their gradients, each called twelve times"


def test_repeated_layers_keep_their_own_names_and_nodes(derivations):
    mod = gg.vjp(layers(2, 2), rules="derived")
    names = [b.var.name for block in mod["main_vjp"].body.blocks for b in block.bindings]
    assert len({name.removesuffix("_ct") for name in names}) >= 4
    origins = {
        read(b.value.span).origin
        for block in mod["main_vjp"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call)
    }
    assert origins == {"derived"}


def test_gradient_of_repeated_layers(derivations):
    x, ct = np.random.default_rng(0).uniform(-1, 1, (2, 4, 3))
    mod = layers(3, tirx.Var("n", "int64"))
    hand, derived = (run(gg.vjp(mod, rules=r), "main_vjp", x, ct)[1] for r in ("auto", "derived"))
    np.testing.assert_allclose(derived, hand, rtol=1e-12)


def test_new_derivative_of_an_intrinsic_counts_at_once():
    mod = function(lambda builder, x: builder.emit(relax.op.erf(x)), ((3,), F64))
    x, ct = np.ones(3), np.ones(3)
    before = run(gg.vjp(mod, rules="derived"), "main_vjp", x, ct)[1]
    known = intrinsics.find("tirx.erf")
    try:
        gg.register_intrinsic_gradient("tirx.erf", lambda x, y: 7.0 * x)
        after = run(gg.vjp(mod, rules="derived"), "main_vjp", x, ct)[1]
    finally:
        gg.register_intrinsic_gradient("tirx.erf", known.partials, singular=known.singular)
    np.testing.assert_allclose(before, 2 / np.sqrt(np.pi) * np.exp(-1), rtol=1e-12)
    np.testing.assert_allclose(after, 7.0)


def row_shares(x):
    """Return the sine of each element over the sum of its row's exponentials."""
    k = te.reduce_axis((0, x.shape[1]), name="k")
    total = te.compute((x.shape[0],), lambda i: te.sum(te.exp(x(i, k)), axis=k), name="total")
    return te.compute(x.shape, lambda i, j: te.sin(x(i, j)) / total(i), name="shares")


def with_shares(rows, columns, dtype=F64):
    def build(builder, x):
        return builder.emit(gg.call_te(row_shares, x))

    return function(build, ((rows, columns), dtype))


@pytest.mark.parametrize("rows", [3, tirx.Var("n", "int64")], ids=["static", "symbolic"])
def test_sums_are_returned_to_be_read_by_the_gradient(rows):
    mod = gg.vjp(with_shares(rows, 5))
    calls = [
        binding.value
        for block in mod["main_vjp"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    forward, backward = calls
    assert len(forward.ty_args[0].fields) == 2, "the sums are behind the result"
    assert len(backward.args[1].fields) == 4, "a cotangent, the result, x and the sums"
    x, ct = np.random.default_rng(0).uniform(-1, 1, (2, 3, 5))
    gradient = run(mod, "main_vjp", x, ct)[1]
    total = np.exp(x).sum(1, keepdims=True)
    through_total = (ct * np.sin(x)).sum(1, keepdims=True) / total**2
    np.testing.assert_allclose(
        gradient, ct * np.cos(x) / total - through_total * np.exp(x), rtol=1e-12
    )


def test_second_order_through_what_was_saved():
    gg.check_grads(with_shares(3, 5), order=2)


def unread_carry(builder, x, w):
    """The first of two states of a recurrence; the loop backwards carries the cotangent of both."""

    def step(carry, x):
        h, c = carry
        c = builder.emit(
            relax.op.add(relax.op.multiply(c, x), relax.op.tanh(relax.op.matmul(h, w)))
        )
        h = builder.emit(relax.op.tanh(c))
        return (h, c), h

    start = relax.op.zeros((2, w.ty.shape[0]), "float64")
    return builder.emit(gg.scan(step, (start, start), x)[1])


# Of the wider one the products of all steps are saved.
@pytest.mark.parametrize("width", [3, 8])
def test_no_zeros_are_handed_over_as_the_cotangent_of_what_nothing_reads(width):
    mod = function(unread_carry, ((5, 2, width), F64), ((width, width), F64))
    gg.check_grads(mod, order=2)
    text = gg.vjp(mod)["main_vjp"].script()
    assert ("scan_saving" in text) == (width == 8)
    assert "R.zeros(R.shape([2," in text  # the first states
    assert "R.zeros(R.shape([6," not in text


def test_sum_of_halves_is_not_cut_short():
    """Added up in float16, ones would stop at 2,048."""
    n = 4096

    def mean(x):
        k = te.reduce_axis((0, n), name="k")
        total = te.compute((1,), lambda i: te.sum(x(i, k), axis=k), name="total")
        return te.compute((1, n), lambda i, j: x(i, j) * x(i, j) / total(i), name="mean")

    mod = function(lambda builder, x: builder.emit(gg.call_te(mean, x)), ((1, n), "float16"))
    ones = np.ones((1, n), "float16")
    ct = np.zeros((1, n), "float16")
    ct[0, 0] = 4096
    gradient = run(gg.vjp(mod), "main_vjp", ones, ct)[1]
    assert abs(gradient[0, 0] - 2) < 0.01 and gradient.dtype == "float16"


def in_place(factor):
    @I.ir_module(s_tir=True)
    class Module:
        @T.prim_func(s_tir=True)
        def scaled(x: T.Buffer((4,), "float64")):
            for i in range(4):
                with T.sblock("scaled"):
                    at = T.axis.spatial(4, i)
                    x[at] = x[at] * T.float64(factor)

        @R.function
        def main(x: R.Tensor((4,), "float64")) -> R.Tensor((4,), "float64"):
            cls = Module
            y = R.multiply(x, R.const(1.0, "float64"))
            z = R.call_tir_inplace(
                cls.scaled, (y,), out_ty=R.Tensor((4,), "float64"), inplace_indices=[0]
            )
            return z

    return Module


def test_kernels_of_one_name_in_two_modules_have_gradients_of_their_own():
    for factor in (2.0, 3.0):
        gradient = run(gg.vjp(in_place(factor)), "main_vjp", np.ones(4), np.ones(4))[1]
        np.testing.assert_array_equal(gradient, factor)


def gradients(model, rules, inputs):
    """Return the gradients of a model's weights, by name, for a fixed cotangent."""
    mod = specialize(model, True)
    names = [p.name for p in mod["main"].params if p.name in model.trainable()]
    mod = gg.vjp(mod, wrt=names, rules=rules)
    known = {**model.params, **model.state, **inputs}
    generator, arrays = np.random.default_rng(0), []
    batch = len(next(iter(inputs.values())))
    for param in mod["main_vjp"].params:
        shape = [batch if isinstance(d, tirx.Var) else int(d) for d in param.ty.shape]
        arrays.append(np.asarray(known.get(param.name, generator.standard_normal(shape))))
    results = run(mod, "main_vjp", *arrays)
    return dict(zip(names, results[-len(names) :], strict=True))


def assert_same_gradients(model, **inputs):
    model = promoted(model)
    hand, derived = (gradients(model, rules, inputs) for rules in ("auto", "derived"))
    whole = np.sqrt(sum(np.sum(g**2) for g in hand.values()))
    for name, expected in hand.items():
        scale = max(np.linalg.norm(expected), 1e-6 * whole)
        assert np.linalg.norm(derived[name] - expected) <= 1e-8 * scale, name


def images(*shape):
    return np.random.default_rng(1).standard_normal(shape)


def test_residual_network_differentiates_to_the_same_gradients():
    options = {"width": 0.25, "stem": "cifar", "classes": 10, "channels": 1, "size": 8}
    # The third block of `resnet_digits` is as the second.
    model = gg.from_onnx(resnet("two blocks", basic_block, (1, 1), **options))
    (name,) = model.inputs
    assert_same_gradients(model, **{name: images(2, 1, 8, 8)})


@pytest.mark.slow
@pytest.mark.parametrize("width", [0.125, 1.0], ids=["narrow", "full"])
def test_resnet18_differentiates_to_the_same_gradients(width):
    model = gg.from_onnx(models.resnet18(width=width, size=32, classes=10))
    (name,) = model.inputs
    assert_same_gradients(model, **{name: images(2, 3, 32, 32)})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "bert"])
def test_transformer_differentiates_to_the_same_gradients(name):
    inputs, _ = torch_export.inputs_of(name, peer("torch").float64, batch=2)
    model = gg.from_onnx(torch_export.export(torch_export.build(name), inputs, training=False))
    assert_same_gradients(model, **{key: value.numpy() for key, value in inputs.items()})
