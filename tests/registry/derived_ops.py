"""Relax ops that no rule is written for: samples of their derived gradients."""

import numpy as np
from tvm import relax

from graphgrad.registry.rule import Rule
from graphgrad.registry.sample import sample, tensor

_POOL = {"pool_size": (2, 2), "strides": (2, 2)}
_PADDED = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}


def _integers(*values, dtype="int64"):
    return relax.const(np.array(values, dtype))


def _floats(values):
    return relax.const(np.array(values), "float64")


_BOXES = _floats([[0, 0.3, 0.2, 3.4, 3.1], [1, 1.2, 0.4, 3.3, 2.6]])
"""Of two images, one each: image, left, top, right, bottom."""

_ANCHORS = [[[0.1, 0.1, 0.5, 0.4], [0.3, 0.2, 0.8, 0.9], [0.2, 0.5, 0.6, 0.7]]]

DERIVED_SAMPLES = {
    "relax.grad.avg_pool2d_backward": [
        sample((1, 2, 2, 2), (1, 2, 4, 4), **_POOL),
        sample((1, 2, 2, 2), (1, 2, 4, 4), count_include_pad=True, **_PADDED),
    ],
    "relax.grad.max_pool2d_backward": [
        sample((1, 2, 2, 2), tensor((1, 2, 4, 4), distinct=True), **_POOL),
        sample((1, 2, 2, 2), tensor((1, 2, 4, 4), distinct=True), **_PADDED),
    ],
    "relax.grad.nll_loss_backward": [
        sample((), (3, 4), _integers(1, 3, 0), (4,)),
        sample((3,), (3, 4), _integers(1, 3, 0), (4,), reduction="none"),
    ],
    "relax.grad.take_backward": [
        sample((2, 3), (4, 3), _integers(1, 3, dtype="int32"), axis=0),
        sample((3, 2), (3, 4), _integers(2, 2, dtype="int32"), axis=1),
    ],
    "relax.nn.dropout": [sample((2, 3), rate=0.4)],
    "relax.vision.multibox_transform_loc": [
        sample((1, 2, 3), (1, 12), _floats(_ANCHORS)),
        sample((1, 2, 3), (1, 12), _floats(_ANCHORS), apply_softmax=False),
    ],
    "relax.vision.roi_align": [
        sample((2, 2, 4, 4), _BOXES, pooled_size=(2, 2), spatial_scale=1.0, sample_ratio=2),
        sample(
            (2, 2, 4, 4), _BOXES,
            pooled_size=(2, 2), spatial_scale=0.9, sample_ratio=2, aligned=True,
        ),
    ],
    "relax.vision.roi_pool": [
        sample(
            tensor((2, 2, 4, 4), distinct=True), _BOXES, pooled_size=(2, 2), spatial_scale=1.0
        ),
    ],
}  # fmt: skip
"""By op, as a rule has them."""


def derived_cases():
    """Return the pairs of a rule, which is to be derived, and a sample."""
    return [
        (Rule(op, "composite", None, origin="derived"), case)
        for op, cases in DERIVED_SAMPLES.items()
        for case in cases
    ]
