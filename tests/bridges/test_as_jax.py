"""Models and kernels as functions of JAX: values, gradients to order two, threads, bad input."""

import threading

import numpy as np
import pytest
from onnx import helper
from tvm import te

import graphgrad as gg
from graphgrad import models
from graphgrad.errors import ArgumentError, InputError
from tests.bridges.smooth import smooth_model
from tests.bridges.test_torch_op import moments, softsign
from tests.frontend.graphs import model_of
from tests.peers import peer
from tests.promoted_models import promoted
from tests.train.nets import module, normalized

jax = peer("jax")
peer("jax_tvm_ffi")
jnp = jax.numpy


@pytest.fixture(scope="module", autouse=True)
def _double():
    jax.config.update("jax_enable_x64", True)  # in all threads
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="module")
def smooth():
    return gg.as_jax(smooth_model())


def draw(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def test_values_and_gradients(smooth):
    x, (w,) = draw(5, 4), smooth.params.values()
    expected = jnp.tanh(x @ w)
    for call in (smooth, jax.jit(smooth)):
        y, total = call(smooth.params, x)
        np.testing.assert_allclose(y, expected, rtol=1e-12)
        np.testing.assert_allclose(total, expected.sum(), rtol=1e-12)
    given = jax.jit(jax.grad(lambda p, x: smooth(p, x)[1], argnums=(0, 1)))(smooth.params, x)
    right = jax.grad(lambda w, x: jnp.tanh(x @ w).sum(), argnums=(0, 1))(w, x)
    np.testing.assert_allclose(given[0]["layer.weight"], right[0], rtol=1e-10)
    np.testing.assert_allclose(given[1], right[1], rtol=1e-10)


def test_check_grads_to_order_two(smooth):
    from jax.test_util import check_grads

    check_grads(smooth, (smooth.params, draw(2, 4)), order=2, modes=["rev"])


@pytest.mark.parametrize("loss, part", [
    (lambda outputs: outputs[0].sum(), ((((0,), (0,)),), "whole")),
    (lambda outputs: outputs[0].sum() + outputs[1], ((((0,), (0, 1)),), "backward")),
], ids=["an output", "all outputs"])  # fmt: skip
def test_only_what_is_differentiated_is_computed_and_not_twice(smooth, loss, part):
    smooth._calls._calls.clear()
    jax.jit(jax.grad(lambda x: loss(smooth(smooth.params, x))))(draw(2, 4))
    foreseen = ((((0,), (0, 1)),), "forward")
    assert set(smooth._calls._calls) == {((), "whole"), foreseen, part}


def test_many_calls_at_once(smooth):
    """In one program XLA runs calls side by side, and so do threads: none may disturb another."""
    x, (w,) = draw(64, 4), smooth.params.values()
    scales = [1.0 + k for k in range(16)]
    several = jax.jit(lambda x: [smooth(smooth.params, s * x)[0] for s in scales])
    expected = [np.tanh(s * np.asarray(x) @ np.asarray(w)) for s in scales]
    agreed = []

    def work():
        for _ in range(20):
            results = zip(several(x), expected, strict=True)
            agreed.append(all(np.allclose(y, right, rtol=1e-10) for y, right in results))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agreed == [True] * 80


def test_training_form_returns_new_statistics():
    model = promoted(normalized())
    f, x, ct = gg.as_jax(model, training=True), draw(5, 2, 5, 5), draw(5, 4, seed=2)
    _, state = jax.jit(f)(f.params, x, state=f.state)
    images = np.asarray(jax.lax.conv(x, f.params["conv.weight"], (1, 1), "VALID"))
    np.testing.assert_allclose(state["bn.mean"], 0.1 * images.mean((0, 2, 3)), rtol=1e-8)
    gradients = jax.grad(lambda p: jnp.sum(f(p, x)[0] * ct))(f.params)
    _, expected = gg.value_and_grad(model, training=True)(np.asarray(x), np.asarray(ct))
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-8, atol=1e-12)


def test_dropouts_take_a_seed():
    nodes = [helper.make_node("Dropout", ["x", "rate"], ["y"])]
    file = model_of(nodes, {"x": [64]}, {"y": [64]}, {"rate": np.array(0.5, "float32")})
    f = jax.jit(gg.as_jax(gg.from_onnx(file), training=True))
    x = jnp.ones(64, "float32")
    first, second, again = (np.asarray(f({}, x, seed=seed)) for seed in (1, 2, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, second)


def test_results_are_nobody_elses_memory():
    """A model that returns an argument, twice, and a view of it."""
    mod = module(lambda b, x, w: (x, w, w), x=([4], "float32"), w=([4], "float32"))
    f = gg.as_jax(gg.Model(mod, {"w": np.ones(4, "float32")}))
    x = jnp.zeros(4, "float32")
    for result, expected in zip(jax.jit(f)(f.params, x), (0, 1, 1), strict=True):
        np.testing.assert_array_equal(result, np.full(4, expected))


@pytest.mark.parametrize("kernel, shapes, right", [
    (softsign, [(3, 2), (2,)], lambda x, s: x / (1 + jnp.abs(x * s))),
    (moments, [(3, 4)], lambda x: (x.sum(1), (x * x).sum(1))),
], ids=["expressions", "script"])  # fmt: skip
def test_kernels(kernel, shapes, right):
    from jax.test_util import check_grads

    arguments = [draw(*shape) for shape in shapes]
    op = gg.jax_op(kernel, outputs=2 if kernel is moments else 1)
    for given, expected in zip(jax.jit(op)(*arguments), right(*arguments), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-12)
    check_grads(op, arguments, order=2, modes=["rev"])


@pytest.mark.parametrize("call, message", [
    (lambda f, x: f(f.params, x.astype("float32")), "input 'x': expected dtype float64, given"),
    (lambda f, x: f(f.params, x[:, :3]), r"input 'x': expected shape \(N, 4\)"),
    (lambda f, x: f({"layer.w": x}, x), "params: the model has no 'layer.w'; close names"),
    (lambda f, x: f({"layer.weight": x}, x), "parameter 'layer.weight': expected shape"),
    (lambda f, x: f([x], x), "params is a list; give a dict"),
    (lambda f, x: f(f.params), r"missing input\(s\) \['x'\]"),
    (lambda f, x: f(f.params, x, x=x), "give each once"),
])  # fmt: skip
def test_bad_input(smooth, call, message):
    with pytest.raises(InputError, match=message):
        jax.jit(lambda x: call(smooth, x))(draw(2, 4))


def test_what_jax_has_no_dtype_for_is_refused():
    model = promoted(gg.from_onnx(models.mlp((4, 3))))
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(InputError, match="is float64, which JAX makes float32 of"):
            gg.as_jax(model)
    finally:
        jax.config.update("jax_enable_x64", True)


def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"expected a graphgrad\.Model"):
        gg.as_jax(3)
    with pytest.raises(InputError, match=r"takes \['x'\]; 2 were given"):
        gg.jax_op(lambda x: te.compute(x.shape, lambda i: x[i]))(draw(2), draw(2))


def test_old_releases_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.4.30")
    with pytest.raises(ArgumentError, match=r"needs jax 0\.\d+ or later, but this is 0\.4\.30"):
        gg.as_jax(gg.from_onnx(models.mlp((4, 3))))
