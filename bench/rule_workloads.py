"""Calls of all ops that have rules, in sizes of small networks, for `derived_vs_hand.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvm import relax, tirx

from graphgrad.ops.resample import Table
from graphgrad.registry import all_rules
from graphgrad.registry.sample import Sample, TensorArgument, sample, static, tensor

_IMAGE = (4, 32, 28, 28)
_ROWS = (256, 512)
_PADDED = {"padding": (1, 1)}
_UNIT_STRIDES = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilation": [1, 1], "groups": 1}
_POOL = {
    "pool_size": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0), "dilation": (1, 1),
    "ceil_mode": False, "count_include_pad": False, "layout": "NCHW",
}  # fmt: skip
_TAKE = {"form": "take", "axis": 0, "mode": "fast"}


def _index(*shape: int, below: int) -> Any:
    return tensor(shape, 0, below, dtype="int64")


def _doubled(shape: tuple[int, int]) -> Sample:
    """A resampling of rows to twice their length, each element the mean of two."""
    length = shape[1]
    rows = [{i // 2: 0.5, min(i // 2 + 1, length - 1): 0.5} for i in range(2 * length - 2)]
    table = Table(rows, length)
    arrays = [*table.arrays(), *table.transposed().arrays()]
    return sample(shape, *(relax.const(a, str(a.dtype)) for a in arrays), axis=1)


_CHOSEN: dict[str, tuple[str, Sample]] = {
    "relu": ("relax.nn.relu", sample(_IMAGE)),
    "sigmoid": ("relax.sigmoid", sample(_IMAGE)),
    "gelu": ("relax.nn.gelu", sample(_IMAGE)),
    "power": ("relax.power", sample(tensor(_ROWS, 0.5, 2.0), (512,))),
    "divide, broadcast": ("relax.divide", sample(_ROWS, tensor((512,), 0.5, 2.0))),
    "where": ("relax.where", sample(tensor(_ROWS, 0, 2, dtype="bool"), _ROWS, (512,))),
    "sum of rows": ("relax.sum", sample(_ROWS, axis=[1])),
    "mean of channels": ("relax.mean", sample(_IMAGE, axis=[2, 3])),
    "variance": ("relax.variance", sample(_ROWS, axis=[1])),
    "max of rows": ("relax.max", sample(_ROWS, axis=[1])),
    "product of rows": ("relax.prod", sample(tensor((256, 64), 0.8, 1.2), axis=[1])),
    "softmax": ("relax.nn.softmax", sample(_ROWS)),
    "log_softmax": ("relax.nn.log_softmax", sample(_ROWS)),
    "layer_norm": ("relax.nn.layer_norm", sample(_ROWS, (512,), (512,), axes=[-1])),
    "batch_norm": (
        "relax.nn.batch_norm",
        sample(_IMAGE, (32,), (32,), (32,), tensor((32,), 0.5, 1.5), axis=1, training=True),
    ),
    "matmul": ("relax.matmul", sample((256, 256), (256, 128))),
    "matmul, batched": ("relax.matmul", sample((8, 64, 128), (8, 128, 64))),
    "attention": (
        "relax.nn.attention",
        sample((2, 64, 4, 32), (2, 64, 4, 32), (2, 64, 4, 32)),
    ),
    "conv2d 3×3": ("relax.nn.conv2d", sample(_IMAGE, (32, 32, 3, 3), **_PADDED)),
    "conv2d 3×3 s2": ("relax.nn.conv2d", sample(_IMAGE, (32, 32, 3, 3), strides=2, **_PADDED)),
    "conv2d 1×1 s2": ("relax.nn.conv2d", sample(_IMAGE, (64, 32, 1, 1), strides=2)),
    "depthwise 3×3": ("relax.nn.conv2d", sample(_IMAGE, (32, 1, 3, 3), groups=32, **_PADDED)),
    "conv2d_transpose 4×4 s2": (
        "relax.nn.conv2d_transpose",
        sample((2, 16, 14, 14), (16, 16, 4, 4), strides=2, **_PADDED),
    ),
    "max_pool 2×2": (
        "relax.nn.max_pool2d",
        sample(tensor(_IMAGE, distinct=True), pool_size=(2, 2), strides=(2, 2)),
    ),
    "max_pool 3×3 s2": (
        "relax.nn.max_pool2d",
        sample(tensor(_IMAGE, distinct=True), pool_size=(3, 3), strides=(2, 2), padding=(1, 1)),
    ),
    "avg_pool 2×2": (
        "relax.nn.avg_pool2d",
        sample(_IMAGE, pool_size=(2, 2), strides=(2, 2)),
    ),
    "resize2d ×2": (
        "relax.image.resize2d",
        sample((2, 8, 14, 14), static((28, 28)), method="linear"),
    ),
    "take": ("relax.take", sample((1000, 64), _index(256, below=1000), axis=0)),
    "scatter_elements": (
        "relax.scatter_elements",
        sample(_ROWS, _index(64, 512, below=256), (64, 512), axis=0, reduction="add"),
    ),
    "cumsum": ("relax.cumsum", sample(_ROWS, axis=1)),
    "cumprod": ("relax.cumprod", sample(tensor(_ROWS, 0.9, 1.1), axis=1)),
    "sort": ("relax.sort", sample(tensor((64, 256), distinct=True), axis=-1)),
    "concat": ("relax.concat", sample([_ROWS, _ROWS], axis=1)),
    "permute_dims": ("relax.permute_dims", sample(_IMAGE, axes=[0, 2, 3, 1])),
    "strided_slice": ("relax.strided_slice", sample(_ROWS, [1], [0], [512], [2])),
    "pad": ("relax.nn.pad", sample(_IMAGE, static((0, 0, 0, 0, 1, 1, 1, 1)))),
    "astype": ("relax.astype", sample(_ROWS, "float64")),
    "full": ("relax.full", sample(static(_ROWS), (), "float32")),
    "full_like": ("relax.full_like", sample(_ROWS, ())),
    "clip": ("relax.clip", sample(_ROWS, -0.5, 0.5)),
    "leakyrelu": ("relax.nn.leakyrelu", sample(_ROWS, alpha=0.2)),
    "prelu": ("relax.nn.prelu", sample(_IMAGE, (32,), axis=1)),
    "attention, bias": (
        "relax.nn.attention_bias",
        sample((2, 64, 4, 32), (2, 64, 4, 32), (2, 64, 4, 32), (2, 4, 64, 64)),
    ),
    "attention with its sums": (
        "graphgrad.attention",
        sample(*[(2, 4, 64, 32)] * 3, scale=0.2, causal=""),
    ),
    "attention_gradient": (
        "graphgrad.attention_gradient",
        sample(*[(2, 4, 64, 32)] * 4, (2, 4, 64), (2, 4, 64, 32), scale=0.2, causal=""),
    ),
    "conv1d": ("relax.nn.conv1d", sample((8, 64, 128), (64, 64, 3), padding=1)),
    "conv1d_transpose": (
        "relax.nn.conv1d_transpose", sample((4, 32, 64), (32, 32, 4), strides=2, padding=1)
    ),
    "conv3d": ("relax.nn.conv3d", sample((2, 16, 8, 14, 14), (16, 16, 3, 3, 3), padding=1)),
    "conv3d_transpose": (
        "relax.nn.conv3d_transpose", sample((1, 16, 4, 8, 8), (16, 8, 2, 2, 2), strides=2)
    ),
    "conv_data_gradient": (
        "graphgrad.conv_data_gradient",
        sample(_IMAGE, (32, 32, 3, 3), static(_IMAGE), **_UNIT_STRIDES),
    ),
    "conv_weight_gradient": (
        "graphgrad.conv_weight_gradient",
        sample(_IMAGE, _IMAGE, static((32, 32, 3, 3)), **_UNIT_STRIDES),
    ),
    "reverse_cumsum": (
        "graphgrad.reverse_cumsum", sample(_ROWS, axis=1, exclusive=False)
    ),
    "grid_sample": (
        "relax.image.grid_sample",
        sample(
            (2, 8, 28, 28), (2, 2, 28, 28),
            method="bilinear", padding_mode="zeros", align_corners=False,
        ),
    ),
    "affine_grid": (
        "relax.image.affine_grid", sample((4, 2, 3), static((28, 28)), align_corners=False)
    ),
    "resize3d": (
        "relax.image.resize3d", sample((1, 4, 4, 14, 14), static((8, 28, 28)), method="linear")
    ),
    "gather_elements": (
        "relax.gather_elements", sample(_ROWS, _index(64, 512, below=256), axis=0)
    ),
    "gather_nd": ("relax.gather_nd", sample(_ROWS, _index(4096, 2, below=256))),
    "index_tensor": ("relax.index_tensor", sample(_ROWS, [_index(512, below=256)])),
    "scatter_nd": (
        "relax.scatter_nd",
        sample(_ROWS, _index(4096, 2, below=256), (4096,), reduction="add"),
    ),
    "index_put": (
        "relax.index_put",
        sample(
            _ROWS, [_index(4096, below=256), _index(4096, below=512)], (4096,), accumulate=True
        ),
    ),
    "reverse_sequence": (
        "relax.reverse_sequence", sample((64, 64, 64), _index(64, below=64))
    ),
    "topk": ("relax.topk", sample(tensor((64, 256), distinct=True), k=8)),
    "einsum": ("relax.einsum", sample([(128, 256), (256, 128)], subscripts="ij,jk->ik")),
    "outer": ("relax.outer", sample((512,), (512,))),
    "cross_entropy_with_logits": (
        "relax.nn.cross_entropy_with_logits", sample(_ROWS, tensor(_ROWS, 0.0, 1.0))
    ),
    "nll_loss": (
        "relax.nn.nll_loss", sample(_ROWS, _index(256, below=512), reduction="mean")
    ),
    "moments": ("graphgrad.moments", sample(_ROWS, axes=[1])),
    "precise_sum": ("graphgrad.precise_sum", sample(_ROWS, axes=[1])),
    "group_norm": (
        "relax.nn.group_norm",
        sample(_IMAGE, (32,), (32,), num_groups=8, channel_axis=1, axes=[2, 3]),
    ),
    "instance_norm": (
        "relax.nn.instance_norm", sample(_IMAGE, (32,), (32,), channel_axis=1, axes=[2, 3])
    ),
    "rms_norm": ("relax.nn.rms_norm", sample(_ROWS, (512,), axes=[-1])),
    "fold_border": (
        "graphgrad.fold_border",
        sample((64, 514), axis=1, before=1, after=1, mode="reflect"),
    ),
    "avg_pool_gradient": (
        "graphgrad.avg_pool_gradient", sample((4, 32, 14, 14), static(_IMAGE), **_POOL)
    ),
    "max_pool_scatter": (
        "graphgrad.max_pool_scatter",
        sample(
            (4, 32, 14, 14), tensor((4, 32, 14, 14), 0, 4, dtype="int8"), static(_IMAGE), **_POOL
        ),
    ),
    "max_pool_gather": (
        "graphgrad.max_pool_gather",
        sample(_IMAGE, tensor((4, 32, 14, 14), 0, 4, dtype="int8"), **_POOL),
    ),
    "avg_pool1d": ("relax.nn.avg_pool1d", sample((8, 32, 256), pool_size=2, strides=2)),
    "max_pool1d": (
        "relax.nn.max_pool1d", sample(tensor((8, 32, 256), distinct=True), pool_size=2, strides=2)
    ),
    "avg_pool3d": ("relax.nn.avg_pool3d", sample((2, 16, 8, 14, 14), pool_size=2, strides=2)),
    "max_pool3d": (
        "relax.nn.max_pool3d",
        sample(tensor((2, 16, 8, 14, 14), distinct=True), pool_size=2, strides=2),
    ),
    "adaptive_avg_pool1d": ("relax.nn.adaptive_avg_pool1d", sample((8, 32, 256), output_size=16)),
    "adaptive_avg_pool2d": ("relax.nn.adaptive_avg_pool2d", sample(_IMAGE, output_size=7)),
    "adaptive_avg_pool3d": (
        "relax.nn.adaptive_avg_pool3d", sample((2, 16, 8, 14, 14), output_size=(2, 7, 7))
    ),
    "dropout": (
        "graphgrad.dropout",
        sample(_ROWS, tensor((), 0, 9, dtype="int64"), rate=0.5, stream=0, order=()),
    ),
    "collapse_sum_to": ("relax.collapse_sum_to", sample(_ROWS, static((512,)))),
    "collapse_sum_like": ("relax.collapse_sum_like", sample(_ROWS, (512,))),
    "min of rows": ("relax.min", sample(_ROWS, axis=[1])),
    "median": ("relax.median", sample(tensor((64, 256), distinct=True), axis=[1])),
    "std": ("relax.std", sample(_ROWS, axis=[1])),
    "flip": ("relax.flip", sample(_ROWS, axis=-1)),
    "meshgrid": ("relax.meshgrid", sample([(256,), (512,)])),
    "repeat": ("relax.repeat", sample(_ROWS, repeats=2, axis=0)),
    "tile": ("relax.tile", sample(_ROWS, repeats=2)),
    "broadcast_to": ("relax.broadcast_to", sample((512,), static(_ROWS))),
    "expand_dims": ("relax.expand_dims", sample(_ROWS, axis=[0, -1])),
    "layout_transform": (
        "relax.layout_transform", sample(_ROWS, index_map=lambda i, j: (i, j // 16, j % 16))
    ),
    "pixel_shuffle": ("relax.nn.pixel_shuffle", sample(_IMAGE, upscale_factor=2)),
    "reshape": ("relax.reshape", sample(_ROWS, static((512, 256)))),
    "squeeze": ("relax.squeeze", sample((1, *_ROWS, 1))),
    "slice_scatter": (
        "relax.slice_scatter", sample(_ROWS, (256, 256), static(0), static(256), static(1), axis=1)
    ),
    "split": ("relax.split", sample(_ROWS, indices_or_sections=4, axis=1)),
    "stack": ("relax.stack", sample([_ROWS, _ROWS], axis=0)),
    "tril": ("relax.tril", sample(_ROWS, 0)),
    "triu": ("relax.triu", sample(_ROWS, 0)),
    "resample": ("graphgrad.resample", _doubled((64, 128))),
    "gather": ("graphgrad.gather", sample(_ROWS, _index(256, below=256), **_TAKE)),
    "scatter_add": (
        "graphgrad.scatter_add",
        sample((512, 128), _index(512, below=256), static((256, 128)), **_TAKE),
    ),
    "scatter_swap": (
        "graphgrad.scatter_swap",
        sample((256, 128), (512, 128), _index(512, below=256), reverse=0, **_TAKE),
    ),
    "scatter_recurrence": (
        "graphgrad.scatter_recurrence",
        sample((256, 128), (512, 128), (512, 128), _index(512, below=256), reverse=0, **_TAKE),
    ),
    "unslice": (
        "graphgrad.unslice",
        sample((256, 256), static((0,)), static(_ROWS), axes=[1], strides=[2]),
    ),
    "untransform_layout": (
        "graphgrad.untransform_layout",
        sample(
            (32, 16, 512), static((512, 512)),
            index_map=tirx.IndexMap.from_func(lambda i, j: (i // 16, i % 16, j)),
        ),
    ),
}  # fmt: skip
"""Calls of ops whose arguments have shapes of their own."""


def _elementwise() -> Iterator[tuple[str, tuple[str, Sample]]]:
    """Yield a call for each further op whose first sample takes tensors of one shape alone."""
    chosen = {op for op, _ in _CHOSEN.values()}
    for rule in all_rules():
        if rule.op in chosen or rule.origin != "hand" or not rule.samples:
            continue
        first = rule.samples[0]
        if not first.attributes and all(isinstance(a, TensorArgument) for a in first.arguments):
            arguments = [replace(argument, shape=_ROWS) for argument in first.arguments]
            yield rule.op.removeprefix("relax."), (rule.op, sample(*arguments))


WORKLOADS: dict[str, tuple[str, Sample]] = {**_CHOSEN, **dict(_elementwise())}
"""A call, at least, of each op that has a rule."""
