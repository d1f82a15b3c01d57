"""Attention and rotary embeddings from ONNX, against torch or the definition; their gradients."""

import ml_dtypes
import numpy as np
import pytest

import graphgrad as gg
from tests.frontend.converters.nodes import drawn, forward, node_model
from tests.peers import peer
from tests.running import run

BATCH, HEADS, SHARED, QUERIES, KEYS, FEATURES = 2, 4, 2, 3, 5, 4
NAMES = ("q", "k", "v", "mask", "past_key", "past_value", "lengths")


def inputs_of(heads=HEADS, shared=SHARED, **others):
    given = {
        "q": drawn((BATCH, heads, QUERIES, FEATURES)),
        "k": drawn((BATCH, shared, KEYS, FEATURES), seed=1),
        "v": drawn((BATCH, shared, KEYS, FEATURES), seed=2),
        **others,
    }
    return {name: given.get(name) for name in NAMES}


def attention(inputs, outputs=("y",), **options):
    options = {"opset": 24, **options}
    return node_model("Attention", inputs, outputs, **options)


def given(inputs):
    return {name: array for name, array in inputs.items() if array is not None}


def distances(offset=0):
    return np.arange(KEYS)[None] - np.arange(QUERIES)[:, None] - offset


CONDITION = np.random.default_rng(3).random((QUERIES, KEYS)) < 0.6
CONDITION[:, 0] = True
CACHE = {
    "past_key": drawn((BATCH, SHARED, 2, FEATURES), seed=4),
    "past_value": drawn((BATCH, SHARED, 2, FEATURES), seed=5),
}
LENGTHS = np.array([5, 3], "int64")
LATE = np.arange(KEYS)[None, None, None] - (LENGTHS - QUERIES)[:, None, None, None]

TORCH = {
    "plain": (inputs_of(), {}, None),
    "scaled": (inputs_of(), {"scale": 0.3}, None),
    "causal": (inputs_of(), {"is_causal": 1}, distances() <= 0),
    "condition": (inputs_of(mask=CONDITION), {}, CONDITION),
    "added": (inputs_of(mask=drawn((2, 1, 3, 5), seed=6)), {}, drawn((2, 1, 3, 5), seed=6)),
    "short": (inputs_of(mask=CONDITION[:, :4]), {}, CONDITION & (np.arange(KEYS) < 4)),
    "causal_condition": (
        inputs_of(mask=CONDITION),
        {"is_causal": 1},
        CONDITION & (distances() <= 0),
    ),
    "padded": (inputs_of(lengths=LENGTHS), {}, np.arange(KEYS) < LENGTHS[:, None, None, None]),
    "causal_padded": (
        inputs_of(lengths=LENGTHS),
        {"is_causal": 1},
        np.arange(QUERIES)[:, None] >= LATE,
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_outputs_equal_those_of_torch(name):
    torch = peer("torch")
    inputs, attributes, mask = TORCH[name]
    q, k, v = (torch.tensor(inputs[n]) for n in "qkv")
    expected = torch.nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        None if mask is None else torch.tensor(mask),
        scale=attributes.get("scale"),
        enable_gqa=True,
    )
    (y,) = forward(attention(inputs, **attributes), inputs)
    np.testing.assert_allclose(y, expected.numpy(), atol=1e-5)


def test_the_cache_goes_before_the_keys_and_values():
    inputs = inputs_of(**CACHE)
    outputs = ("y", "present_key", "present_value")
    y, key, value = forward(attention(inputs, outputs, is_causal=1, opset=23), inputs)
    np.testing.assert_array_equal(key, np.concatenate([CACHE["past_key"], inputs["k"]], 2))
    np.testing.assert_array_equal(value, np.concatenate([CACHE["past_value"], inputs["v"]], 2))
    mask = np.arange(KEYS + 2)[None] - np.arange(QUERIES)[:, None] <= 2
    whole = inputs_of(k=key, v=value, mask=mask)
    np.testing.assert_allclose(y, forward(attention(whole), whole)[0], atol=1e-6)


def test_flat_inputs_are_split_into_heads():
    inputs = inputs_of()
    flat = {
        name: array.transpose(0, 2, 1, 3).reshape(BATCH, array.shape[2], -1)
        for name, array in given(inputs).items()
    }
    (y,) = forward(attention(flat, q_num_heads=HEADS, kv_num_heads=SHARED), flat)
    expected = forward(attention(inputs), inputs)[0]
    expected = expected.transpose(0, 2, 1, 3).reshape(BATCH, QUERIES, -1)
    np.testing.assert_allclose(y, expected, atol=1e-6)


@pytest.mark.parametrize("mode", range(4))
def test_what_the_fourth_output_shows(mode):
    inputs = inputs_of(mask=CONDITION)
    proto = attention(
        inputs, ("y", "", "", "shown"), qk_matmul_output_mode=mode, softcap=0.5, opset=23
    )
    shown = forward(proto, inputs)[-1]
    key = np.repeat(inputs["k"], HEADS // SHARED, axis=1)
    raw = inputs["q"] @ key.transpose(0, 1, 3, 2) / np.sqrt(FEATURES)
    capped = 0.5 * np.tanh(raw / 0.5)
    biased = np.where(CONDITION, capped, -np.inf)
    weights = np.exp(biased) / np.exp(biased).sum(-1, keepdims=True)
    np.testing.assert_allclose(shown, (raw, capped, biased, weights)[mode], atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (inputs_of(mask=drawn((QUERIES, KEYS), seed=6), **CACHE), {"is_causal": 1, "softcap": 2.0}),
        (inputs_of(lengths=LENGTHS), {"is_causal": 1}),
        (inputs_of(shared=1, mask=CONDITION), {}),
    ],
    ids=["cache", "padded", "condition"],
)
def test_gradients_equal_differences(inputs, attributes):
    if inputs["mask"] is not None and inputs["past_key"] is not None:
        inputs = {**inputs, "mask": drawn((QUERIES, KEYS + 2), seed=6)}
    gg.check_grads(gg.from_onnx(attention(inputs, **attributes)), given(inputs))


def test_a_query_without_a_key_gives_zeros_and_finite_gradients():
    forbidden = CONDITION.copy()
    forbidden[1] = False
    inputs = inputs_of(mask=forbidden)
    module = gg.vjp(gg.from_onnx(attention(inputs)).mod, wrt=["q", "k", "v"])
    ct = np.ones((BATCH, HEADS, QUERIES, FEATURES), "float32")
    y, *gradients = run(module, "main_vjp", *given(inputs).values(), ct)
    assert not y[:, :, 1].any() and y[:, :, 0].any()
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][:, :, 1].any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision(dtype):
    half = {n: a.astype(dtype) for n, a in given(inputs_of()).items()}
    single = {n: a.astype("float32") for n, a in half.items()}
    (y,) = forward(attention(half), half)
    assert y.dtype == dtype
    expected = forward(attention(single), single)[0].astype(dtype)
    np.testing.assert_array_equal(y, expected)


def test_symbolic_batch_and_lengths():
    inputs = inputs_of()
    shapes = {
        "q": ["n", HEADS, "s", FEATURES],
        "k": ["n", SHARED, "t", FEATURES],
        "v": ["n", SHARED, "t", FEATURES],
    }
    (y,) = forward(attention(inputs, shapes=shapes, is_causal=1), inputs)
    expected = forward(attention(inputs, is_causal=1), inputs)[0]
    np.testing.assert_allclose(y, expected, atol=1e-6)


@pytest.mark.parametrize(("opset", "reaches"), [(23, KEYS), (24, 1)])
def test_a_mask_over_one_key(opset, reaches):
    inputs = inputs_of(mask=np.zeros((QUERIES, 1), "float32"))
    (y,) = forward(attention(inputs, opset=opset), inputs)
    seen = inputs_of(k=inputs["k"][:, :, :reaches], v=inputs["v"][:, :, :reaches])
    np.testing.assert_allclose(y, forward(attention(seen), seen)[0], atol=1e-6)


def test_a_window_is_refused_that_has_no_size():
    inputs = inputs_of()
    with pytest.raises(gg.ModelError, match="left_window_size is -2"):
        gg.from_onnx(attention(inputs, opset=25, left_window_size=-2))


def rotated(x, cosine, sine, interleaved):
    """Rotate pairs of features as complex numbers."""
    half = cosine.shape[-1]
    first, second = (
        (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2])
        if interleaved
        else (x[..., :half], x[..., half : 2 * half])
    )
    turned = (first + 1j * second) * (cosine + 1j * sine)[:, None]
    y = x.copy()
    if interleaved:
        y[..., 0 : 2 * half : 2], y[..., 1 : 2 * half : 2] = turned.real, turned.imag
    else:
        y[..., :half], y[..., half : 2 * half] = turned.real, turned.imag
    return y


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("features", [6, 4])
@pytest.mark.parametrize("flat", [False, True])
def test_rotary_embedding(interleaved, features, flat):
    x = drawn((2, 3, 4, 6))
    angles = drawn((7, features // 2), seed=1, high=3.0)
    ids = np.array([[0, 1, 2, 3], [6, 5, 4, 3]], "int64")
    expected = rotated(x, np.cos(angles)[ids], np.sin(angles)[ids], interleaved)
    options = {"interleaved": interleaved}
    if features < 6:
        options["rotary_embedding_dim"] = features
    if flat:
        x, expected = (a.transpose(0, 2, 1, 3).reshape(2, 4, 18) for a in (x, expected))
        options["num_heads"] = 3
    inputs = {"x": x, "cos": np.cos(angles), "sin": np.sin(angles), "ids": ids}
    (y,) = forward(node_model("RotaryEmbedding", inputs, **options), inputs)
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_gradient_of_rotary_embedding():
    inputs = {"x": drawn((2, 2, 3, 6)), "cos": drawn((2, 3, 2)), "sin": drawn((2, 3, 2), seed=1)}
    proto = node_model("RotaryEmbedding", inputs, rotary_embedding_dim=4, interleaved=1)
    gg.check_grads(gg.from_onnx(proto), inputs)
