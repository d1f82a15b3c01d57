"""Normalizations: with the outputs, ranks and dtypes that TVM's importer does not serve."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto, helper
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Tensor, same_shape
from ...ops import functional as op
from ...ops.moments import moments, precise_mean
from ...ops.norm import inverse_deviation, normalize
from .node import Node, converter

_MICROSOFT = "com.microsoft"


@converter("LayerNormalization")
def layer_normalization(node: Node) -> tuple[Tensor, ...]:
    """γ (x − μ) / √(σ² + ε) + β over the axes from `axis` on; also μ and 1 / √(σ² + ε)."""
    x = node.tensor(0)
    first = int(node.attribute("axis", -1)) % x.ndim
    axes = list(range(first, x.ndim))
    epsilon = node.attribute("epsilon", 1e-5)
    beta = node.tensor(2) if node.has(2) else None
    y = _layer_norm(x, node.tensor(1), beta, axes, epsilon)
    if node.output_count == 1:
        return (y,)
    stash_dtype = _dtype(node.attribute("stash_type", TensorProto.FLOAT))
    return y, *(statistic.astype(stash_dtype) for statistic in _statistics(x, axes, epsilon))


@converter("RMSNormalization")
def rms_normalization(node: Node) -> Tensor:
    """γ x / √(mean x² + ε) over the axes from `axis` on."""
    x, gamma = node.tensor(0), node.tensor(1)
    axes = list(range(int(node.attribute("axis", -1)) % x.ndim, x.ndim))
    return _rms_norm(x, gamma, axes, node.attribute("epsilon", 1e-5))


@converter("SkipLayerNormalization", domain=_MICROSOFT)
def skip_layer_normalization(node: Node) -> tuple[Tensor, ...]:
    """Layer norm of input + skip + bias over the last axis; also the statistics and the sum."""
    total = node.tensor(0) + node.tensor(1)
    total = total + node.tensor(4) if node.has(4) else total
    beta = node.tensor(3) if node.has(3) else None
    epsilon = node.attribute("epsilon", 1e-12)
    y = _layer_norm(total, node.tensor(2), beta, [total.ndim - 1], epsilon)
    if node.output_count == 1:
        return (y,)
    statistics = _statistics(total, [total.ndim - 1], epsilon)
    return y, *(statistic.astype("float32") for statistic in statistics), total


@converter("GroupNormalization")
def group_normalization(node: Node) -> Tensor:
    """Group norm; until opset 21 γ and β have one value per group, then one per channel."""
    x, gamma, beta = (node.tensor(index) for index in range(3))
    groups = int(node.attribute("num_groups"))
    channels = x.shape[1]
    if isinstance(channels, int) and (groups < 1 or channels % groups):
        raise ModelError(f"its {channels} channels do not divide into {groups} groups")
    if node.opset < 21:
        gamma, beta = (
            _per_channel(scale_or_shift, groups, channels // groups)
            for scale_or_shift in (gamma, beta)
        )
    # The op takes no bfloat16, and its statistics are float32 for half precision in any case.
    y = relax.op.nn.group_norm(
        op.widen(x),
        op.widen(gamma),
        op.widen(beta),
        num_groups=groups,
        channel_axis=1,
        axes=list(range(2, x.ndim)),
        epsilon=node.attribute("epsilon", 1e-5),
    )
    return node.emitter.emit(y).astype(x.dtype)


@converter("InstanceNormalization")
def instance_normalization(node: Node) -> Tensor:
    """γ (x − μ) / √(σ² + ε) + β with the statistics of each channel of each instance."""
    x = node.tensor(0)
    axes = list(range(2, x.ndim))
    epsilon = node.attribute("epsilon", 1e-5)
    gamma, beta = node.tensor(1), node.tensor(2)
    return node.emitter.emit(relax.op.nn.instance_norm(x, gamma, beta, 1, axes, epsilon))


@converter("MeanVarianceNormalization")
def mean_variance_normalization(node: Node) -> Tensor:
    """(x − μ) / (σ + 1e-9); where σ is zero, so are the output and its derivative by σ."""
    x = node.tensor(0)
    axes = op.normalize_axes(node.attribute("axes", (0, 2, 3)), x.ndim)
    wide = op.widen(x)
    centered = wide - precise_mean(wide, axes)
    deviation = _root(precise_mean(centered * centered, axes))
    return (centered / (deviation + 1e-9)).astype(x.dtype)


@converter("LpNormalization")
def lp_normalization(node: Node) -> Tensor:
    """x / ‖x‖ₚ along an axis for p of 1 or 2; zero, with a zero derivative, where the norm is."""
    x = node.tensor(0)
    axis, p = int(node.attribute("axis", -1)) % x.ndim, node.attribute("p", 2)
    if p not in (1, 2):
        raise ModelError(f"its p is {p}; 1 and 2 exist")
    wide = op.widen(x)
    if p == 1:
        norm = op.reduce_sum(op.abs(wide), [axis], keepdims=True)
    else:
        norm = _root(op.reduce_sum(wide * wide, [axis], keepdims=True))
    is_zero = op.equal(norm, 0.0)
    y = wide / op.where(is_zero, 1.0, norm)
    return op.where(is_zero, 0.0, y).astype(x.dtype)


@converter("LRN")
def local_response_normalization(node: Node) -> Tensor:
    """x / (bias + α/n · Σ x²)^β over a window of n channels."""
    x = node.tensor(0)
    size = int(node.attribute("size"))
    wide = op.widen(x)
    total = _windows_sum(wide * wide, size)
    alpha, beta = node.attribute("alpha", 1e-4), node.attribute("beta", 0.75)
    base = node.attribute("bias", 1.0) + alpha / size * total
    return (wide * op.power(base, -beta)).astype(x.dtype)


@converter("EmbedLayerNormalization", domain=_MICROSOFT)
def embed_layer_normalization(node: Node) -> tuple[Tensor, ...]:
    """Layer norm of the sum of word, position and segment embeddings; also lengths and the sum.

    The lengths are those of the mask; 0 without one.
    """
    ids = node.tensor(0)
    total = _embedded(node.tensor(2), ids)
    if node.has(8):
        total = total + _embedded(node.tensor(3), node.tensor(8))
    else:
        positions = op.indices(node.emitter, ids.shape[1])
        total = total + _embedded(node.tensor(3), positions)
    if node.has(1):
        total = total + _embedded(node.tensor(4), node.tensor(1))
    y = _layer_norm(total, node.tensor(5), node.tensor(6), [2], node.attribute("epsilon", 1e-12))
    lengths = (
        _lengths(node.tensor(7)) if node.has(7) else node.emitter.full(0.0, [ids.shape[0]], "int32")
    )
    return y, lengths, total


def _layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor | None, axes: Sequence[int], epsilon: float
) -> Tensor:
    """A layer norm as one op, or with γ and β apart where they must be broadcast."""
    extents = [x.shape[axis] for axis in axes]
    if same_shape(gamma.shape, extents) and (beta is None or same_shape(beta.shape, extents)):
        center = beta is not None
        beta = beta if beta is not None else x.emitter.full(0.0, extents, x.dtype)
        call = relax.op.nn.layer_norm(x, gamma, beta, list(axes), epsilon, center=center)
        return x.emitter.emit(call)
    y = normalize(op.widen(x), axes, epsilon) * op.widen(gamma)
    y = y + op.widen(beta) if beta is not None else y
    return y.astype(x.dtype)


def _rms_norm(x: Tensor, gamma: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    """An RMS norm as one op, or with γ apart where it must be broadcast."""
    if same_shape(gamma.shape, [x.shape[axis] for axis in axes]):
        return x.emitter.emit(relax.op.nn.rms_norm(x, gamma, list(axes), epsilon))
    y = normalize(op.widen(x), axes, epsilon, center=False) * op.widen(gamma)
    return y.astype(x.dtype)


def _statistics(x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """The mean and the inverse standard deviation, in the dtype in which they are computed."""
    wide = op.widen(x)
    average, variance = moments(wide, axes)
    return average, inverse_deviation(variance, epsilon)


def _per_channel(x: Tensor, groups: int, members: int) -> Tensor:
    """A vector of one value per group as one of a value per channel."""
    repeated = op.broadcast_to(op.reshape(x, [groups, 1]), [groups, members])
    return op.reshape(repeated, [groups * members])


def _root(square: Tensor) -> Tensor:
    """√square; at zero with the derivative zero, where that of the root is infinite."""
    is_zero = op.equal(square, 0.0)
    return op.where(is_zero, 0.0, op.sqrt(op.where(is_zero, 1.0, square)))


def _windows_sum(x: Tensor, size: int) -> Tensor:
    """For each channel the sum over the window of channels around it."""
    before = (size - 1) // 2  # a window of even size has one channel more behind
    widths = [0, 0, before, size - 1 - before] + [0, 0] * (x.ndim - 2)
    padded = op.pad(x, widths)
    channels = x.shape[1]
    shifted = [
        op.strided_slice(padded, [1], [offset], [offset + channels]) for offset in range(size)
    ]
    return sum(shifted[1:], start=shifted[0])


def _embedded(table: Tensor, ids: Tensor) -> Tensor:
    return table.emitter.emit(relax.op.take(table, ids, axis=0))


def _lengths(mask: Tensor) -> Tensor:
    """How many leading positions of each row of a mask are one."""
    return op.reduce_sum(mask, [1]).astype("int32")


def _dtype(element_type: int) -> str:
    return str(helper.tensor_dtype_to_np_dtype(element_type))
