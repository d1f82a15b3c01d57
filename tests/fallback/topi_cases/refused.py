"""Functions of topi without a gradient, each for a reason that is final."""

from collections.abc import Callable
from typing import Any

from tvm import te, topi

NO_FLOATS = (
    "isnan", "isinf", "isfinite",
    "greater", "less", "equal", "not_equal", "greater_equal", "less_equal",
    "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    "argmax", "argmin", "all", "any", "searchsorted",
    "eye", "unravel_index", "shape", "nn.bitpack",
)  # fmt: skip
"""What returns no float, or takes none."""

DATA_DEPENDENT_SHAPE = ("unique",)
"""In TVM 0.27 `topi.unique` is a module without a function."""


def _batch_to_space_nd() -> Any:
    return topi.nn.batch_to_space_nd(te.placeholder((4, 2, 2, 2)), [2, 2], [0, 0], [0, 0])


def _winograd_weight_transform() -> Any:
    return topi.nn.conv2d_winograd_weight_transform(te.placeholder((2, 2, 3, 3)), 2)


UNBUILDABLE: dict[str, Callable[[], Any]] = {
    "nn.batch_to_space_nd": _batch_to_space_nd,
    "nn.conv2d_winograd_weight_transform": _winograd_weight_transform,
}
"""What TVM cannot build: the call raises, or ends the process."""

REASONS: dict[str, str] = {
    **dict.fromkeys(NO_FLOATS, "no float path"),
    **dict.fromkeys(DATA_DEPENDENT_SHAPE, "data-dependent shape"),
    **dict.fromkeys(UNBUILDABLE, "TVM cannot build the forward"),
}
