"""The precision policy of each op: whether fewer bits serve it.

The classes are those of automatic mixed precision (Micikevicius et al., *Mixed Precision Training*,
2018, section 3; `torch.autocast` has the same). What contracts is bound by arithmetic and loses
little, as its sums are float32; what adds up many values, or spreads them over many orders of
magnitude, loses digits or overflows. An op that has no entry here computes as the model has it,
so that an op nobody thought of is right.
"""

from __future__ import annotations

from enum import Enum


class Policy(Enum):
    """The precision in which an op computes.

    Attributes
    ----------
    LOW
        Operands are rounded, sums are float32, and the result is rounded.
    HIGH
        All operands are as the model has them. So is every op that has no policy, but a node that
        the user names does not change its precision.
    INNER
        As `HIGH`, but for ops whose result has the range of what goes in, whatever happens between:
        who follows its operands takes the result as rounded if the first operand is.
    FOLLOW
        In the widest precision among the operands that depend on an input of the model; those that
        do not, such as a bias, are rounded to it.
    """

    LOW = "low"
    HIGH = "high"
    INNER = "inner"
    FOLLOW = "follow"


# fmt: off
_LOW = [
    "einsum", "matmul", "nn.attention", "nn.attention_bias", "nn.conv1d", "nn.conv1d_transpose",
    "nn.conv2d", "nn.conv2d_transpose", "nn.conv3d", "nn.conv3d_transpose", "outer",
]
_HIGH = [
    "cumprod", "cumsum", "exp", "log", "log_add_exp", "mean", "nn.cross_entropy_with_logits",
    "nn.log_softmax", "nn.nll_loss", "nn.softplus", "power", "prod", "rsqrt", "sqrt", "square",
    "std", "sum", "variance",
]
_INNER = [
    "nn.batch_norm", "nn.group_norm", "nn.instance_norm", "nn.layer_norm", "nn.rms_norm",
    "nn.softmax",
]
_ARITHMETIC = [
    "abs", "add", "ceil", "clip", "divide", "erf", "ewise_fma", "floor", "maximum", "minimum",
    "multiply", "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.prelu", "nn.relu",
    "nn.selu", "nn.silu", "round", "sigmoid", "sign", "subtract", "tanh", "trunc", "where",
]
_COMPARISONS = [
    "argmax", "argmin", "argsort", "equal", "greater", "greater_equal", "isfinite", "isinf",
    "isnan", "less", "less_equal", "max", "min", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d",
    "not_equal", "sort", "topk",
]
_AVERAGES_OF_WINDOWS = [  # their sums are float32 whatever they read
    "nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d", "nn.avg_pool1d",
    "nn.avg_pool2d", "nn.avg_pool3d",
]
_MOVEMENT = [
    "broadcast_to", "concat", "dynamic_strided_slice", "expand_dims", "flatten", "flip",
    "full_like", "gather_elements", "gather_nd", "grad.end_checkpoint", "grad.no_grad",
    "grad.start_checkpoint", "index_tensor", "layout_transform", "meshgrid", "nn.batch_flatten",
    "nn.pad", "nn.pixel_shuffle", "ones_like", "permute_dims", "repeat", "reshape",
    "reverse_sequence", "split", "squeeze", "stack", "strided_slice", "take", "tile", "tril",
    "triu", "zeros_like",
]
_FOLLOW = [*_ARITHMETIC, *_COMPARISONS, *_AVERAGES_OF_WINDOWS, *_MOVEMENT]
_OURS = {
    "conv_data_gradient": Policy.LOW,  # a transposed convolution
    "dropout": Policy.FOLLOW,
    "max_pool_gather": Policy.FOLLOW,
    "resample": Policy.INNER,
}
# fmt: on

POLICIES: dict[str, Policy] = {
    **{f"relax.{name}": Policy.LOW for name in _LOW},
    **{f"relax.{name}": Policy.HIGH for name in _HIGH},
    **{f"relax.{name}": Policy.INNER for name in _INNER},
    **{f"relax.{name}": Policy.FOLLOW for name in _FOLLOW},
    **{f"graphgrad.{name}": policy for name, policy in _OURS.items()},
}
"""The policies by the names of ops; what has none computes as the model has it."""
