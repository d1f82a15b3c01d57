"""Batch norm over the channels of images in channels-last order, and what is like gradients."""

import math

from tvm import relax

op = relax.op


def batch_norm(x, gamma, beta, mean, variance):
    """Normalized activations, cut at 0, and the running statistics."""
    wide = op.astype(x, "float32")
    result = op.nn.batch_norm(wide, gamma, beta, mean, variance, axis=3, training=True)
    cut = op.astype(op.nn.relu(result[0]), str(x.ty.dtype))
    return relax.Tuple([cut, result[1], result[2]])


def gradient(g, x, gamma):
    """What depends on both sums of a gradient, for each channel."""
    g, wide = op.astype(g, "float32"), op.astype(x, "float32")
    share = relax.const(1 / math.prod(map(int, list(x.ty.shape)[:-1])), "float32")
    slope = op.multiply(op.sum(op.multiply(g, wide), [0, 1, 2]), share)
    offset = op.multiply(op.sum(g, [0, 1, 2]), share)
    scale = op.divide(gamma, op.sqrt(op.add(op.multiply(slope, slope), relax.const(1.0))))
    moved = op.subtract(op.subtract(g, offset), op.multiply(wide, slope))
    return op.astype(op.multiply(moved, scale), str(x.ty.dtype))


def gradients_of_sum(g, x, y, gamma):
    """Of two batch norms whose results are added: both read the same cotangent."""
    return relax.Tuple([gradient(g, x, gamma), gradient(g, y, gamma)])


def gradient_by_rows(g, x, gamma):
    """What depends on two sums of each row, and the sums over rows that a parameter has."""
    slope = op.multiply(op.astype(g, "float32"), gamma)
    wide = op.astype(x, "float32")
    share = relax.const(1 / int(x.ty.shape[-1]), "float32")
    along = op.multiply(op.sum(op.multiply(slope, wide), -1, keepdims=True), share)
    offset = op.multiply(op.sum(slope, -1, keepdims=True), share)
    moved = op.subtract(op.subtract(slope, offset), op.multiply(wide, along))
    return relax.Tuple([op.astype(moved, str(x.ty.dtype)), op.sum(op.multiply(slope, wide), 0)])
