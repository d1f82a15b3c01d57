"""Deformable convolution from ONNX: outputs by its definition, gradients by differences."""

import itertools

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.nodes import drawn, forward, node_model
from tests.frontend.converters.sampling import assert_samples
from tests.running import F64


def interpolated(image, place):
    """Return an image, linear between its elements and 0 outside, at a place."""
    low = np.floor(place).astype(int)
    total = 0.0
    for corner in itertools.product((0, 1), repeat=image.ndim):
        at = low + corner
        if np.all(at >= 0) and np.all(at < image.shape):
            total += image[tuple(at)] * np.prod(1 - abs(place - at))
    return total


def defined(x, w, offset, b=None, mask=None, *, strides, pads, dilations, group, offset_group):
    """Return what the definition of the operator says, element by element."""
    rank, taps = w.ndim - 2, w.shape[2:]
    points = offset.shape[2:]
    offset = offset.reshape(len(x), offset_group, *taps, rank, *points)
    mask = np.ones((len(x), offset_group, *taps, *points)) if mask is None else mask
    mask = mask.reshape(len(x), offset_group, *taps, *points)
    y = np.zeros((len(x), len(w), *points))
    per_group, outputs = w.shape[1], len(w) // group
    for n, k, c in itertools.product(range(len(x)), range(len(w)), range(per_group)):
        channel = k // outputs * per_group + c
        g = channel // (x.shape[1] // offset_group)
        for p, r in itertools.product(np.ndindex(*points), np.ndindex(*taps)):
            regular = np.array(p) * strides + np.array(r) * dilations - pads[:rank]
            place = regular + offset[(n, g, *r, slice(None), *p)]
            value = interpolated(x[n, channel], place)
            y[(n, k, *p)] += value * w[(k, c, *r)] * mask[(n, g, *r, *p)]
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def deformed(shape, weights, *, extras=False, group=1, offset_group=1, **settings):
    """Return a model, its inputs and its output by the definition."""
    rank = len(shape) - 2
    how = {"strides": [1] * rank, "pads": [0] * 2 * rank, "dilations": [1] * rank} | settings
    points = [
        (shape[2 + k] + how["pads"][k] + how["pads"][rank + k] - how["dilations"][k] * (r - 1) - 1)
        // how["strides"][k]
        + 1
        for k, r in enumerate(weights[2:])
    ]
    taps = int(np.prod(weights[2:]))
    arrays = {
        "x": drawn(shape, seed=1, dtype=F64),
        "w": drawn(weights, seed=2, dtype=F64),
        "offset": drawn((shape[0], offset_group * taps * rank, *points), -1.8, 1.8, 3, F64),
        "b": drawn(weights[:1], seed=4, dtype=F64) if extras else None,
        "mask": drawn((shape[0], offset_group * taps, *points), seed=5, dtype=F64)
        if extras
        else None,
    }
    how |= {"group": group, "offset_group": offset_group}
    proto = node_model("DeformConv", arrays, opset=22, **how)
    return proto, [a for a in arrays.values() if a is not None], defined(*arrays.values(), **how)


@pytest.mark.parametrize(
    ("shape", "weights", "settings"),
    [
        (
            (2, 4, 4, 3),
            (2, 2, 2, 1),
            {
                "extras": True,
                "group": 2,
                "offset_group": 4,
                "strides": [2, 1],
                "pads": [1, 0, 2, 1],
                "dilations": [2, 1],
            },
        ),
        ((1, 2, 5), (3, 2, 3), {"extras": True, "pads": [1, 1]}),
        ((1, 1, 2, 3, 1), (1, 1, 1, 2, 1), {"extras": True}),
    ],
    ids=["everything", "a line", "space"],
)
def test_deformable_convolution(shape, weights, settings):
    proto, arrays, expected = deformed(shape, weights, **settings)
    assert_samples(proto, *arrays, expected=[expected])


def test_without_offsets_it_is_the_convolution():
    """Where a network begins to train: the slope towards the next element, as in PyTorch."""
    proto, (x, w, offset), _ = deformed((1, 2, 4, 5), (3, 2, 3, 2))
    conv = node_model("Conv", {"x": x, "w": w})
    (expected,) = forward(conv, {"x": x, "w": w})
    offset = np.zeros_like(offset)
    ct = drawn(expected.shape, seed=6, dtype=F64)
    inputs = {"x": x, "w": w, "offset": offset}
    ours, grads = gg.value_and_grad(gg.from_onnx(proto), wrt=list(inputs))(inputs, ct)
    np.testing.assert_allclose(ours["y"], expected, rtol=1e-12)
    _, theirs = gg.value_and_grad(gg.from_onnx(conv), wrt=["x", "w"])({"x": x, "w": w}, ct)
    for name in "xw":
        np.testing.assert_allclose(grads[name], theirs[name], rtol=1e-12)
    how = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1, "offset_group": 1}
    moved = defined(x, w, offset + 1e-6, **how)
    np.testing.assert_allclose(
        np.sum(grads["offset"]), np.sum(ct * (moved - expected)) / 1e-6, rtol=1e-4
    )


def test_half_precision_is_summed_in_float32():
    _, arrays, expected = deformed((1, 2, 4, 4), (2, 2, 3, 3), pads=[1] * 4)
    inputs = dict(zip(("x", "w", "offset"), [a.astype("float16") for a in arrays], strict=True))
    proto = node_model("DeformConv", inputs, opset=22, pads=[1] * 4)
    (ours,) = forward(proto, inputs)
    assert ours.dtype == np.float16
    np.testing.assert_allclose(ours, expected, atol=2e-2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offset": drawn((1, 4, 2, 2))}, "its offset has the shape"),
        ({"mask": drawn((1, 3, 2, 2))}, "its mask has the shape"),
        ({"x": drawn((1, 1, 1, 3))}, "do not fit into data"),
        ({"offset_group": 2}, "no multiple of offset_group = 2"),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(changed, message):
    arrays = {
        "x": drawn((1, 1, 3, 3)),
        "w": drawn((1, 1, 2, 2)),
        "offset": drawn((1, 8, 2, 2)),
        "b": None,
        "mask": None,
    }
    attributes = {k: v for k, v in changed.items() if k not in arrays}
    given = arrays | {k: v for k, v in changed.items() if k in arrays}
    with pytest.raises(ModelError, match=message):
        gg.from_onnx(node_model("DeformConv", given, opset=22, **attributes))


def test_symbolic_extents_are_refused():
    arrays = {"x": drawn((1, 1, 3, 3)), "w": drawn((1, 1, 2, 2)), "offset": drawn((1, 8, 2, 2))}
    proto = node_model("DeformConv", arrays, opset=22, shapes={"x": (1, 1, "h", 3)})
    with pytest.raises(ModelError, match="spatial extents that are numbers"):
        gg.from_onnx(proto)
