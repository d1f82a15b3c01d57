"""Convolutions in any number of spatial dimensions, and their two gradients as ops of our own.

With ``y = conv(x, w)`` the three maps ``conv``, `conv_data_gradient` and `conv_weight_gradient` are
bilinear and closed under differentiation: each one's gradients are the other two. So a rule for
each is one line, and derivatives exist to any order. A transposed convolution is a data gradient.

Data are N, C and the spatial axes, weights O, I (C / groups) and these, each in the order of a
layout. The cotangent of the output has the layout of the data. Derivation of both sums: Dumoulin
and Visin, *A guide to convolution arithmetic for deep learning* (2016), sections 4.3 to 4.6, with
dilation and groups added.

Each tensor expression is a sum of products of two affine reads, the form that lowering schedules as
a contraction; what would spoil it (padding, another order of the axes) is a stage before. Axes are
named by the letters of layouts, so that one expression serves all layouts in any number of spatial
dimensions. Half precision adds up in float32.
"""

from .forward import convolution
from .ops import check_output, conv, conv_data_gradient, conv_weight_gradient
from .stages import padded
from .transposed import data_gradient
from .weights import weight_gradient
from .window import SPATIAL, Layouts, Window, check_layout

__all__ = [
    "SPATIAL",
    "Layouts",
    "Window",
    "check_layout",
    "check_output",
    "conv",
    "conv_data_gradient",
    "conv_weight_gradient",
    "convolution",
    "data_gradient",
    "padded",
    "weight_gradient",
]
