"""The choice of a precision: the argument ``precision=``, checked."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ArgumentError

FULL = "float32"
TF32 = "tf32"
HALVES = ("bfloat16", "float16")
"""The dtypes of fewer bits that values are held in."""

PRECISIONS = (FULL, TF32, *HALVES)


@dataclass(frozen=True)
class Precision:
    """The precision in which a model computes; ``precision="bfloat16"`` is short for one of these.

    Attributes
    ----------
    dtype : "float32", "tf32", "bfloat16" or "float16"
        With one of the last two, float32 convolutions and matrix products read operands that are
        rounded to it, add up in float32, and round the result; sums, means, exponentials,
        logarithms, powers, softmax, losses and the statistics of norms stay float32; other ops
        follow their operands. ``"tf32"`` lets convolutions and matrix products on a GPU round their
        operands to 10 bits of mantissa; elsewhere it is ``"float32"``.
    nodes : mapping of str to str
        By the name of an ONNX node: ``"float32"``, or the dtype of fewer bits, in which all of the
        node is computed, whatever the rest does.

    Raises
    ------
    ArgumentError
        A value is none of these.

    Examples
    --------
    >>> precision = gg.Precision("bfloat16", nodes={"/head/Gemm": "float32"})
    >>> step = gg.train_step(model, precision=precision)
    """

    dtype: str = FULL
    nodes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in PRECISIONS:
            raise ArgumentError(
                f"precision={self.dtype!r}: give one of {', '.join(map(repr, PRECISIONS))}"
            )
        if not isinstance(self.nodes, Mapping):
            raise ArgumentError(f"precision: nodes={self.nodes!r} is no mapping of names to dtypes")
        if self.nodes and not self.is_mixed:
            raise ArgumentError(
                f"precision: nodes has no effect with {self.dtype!r}, in which all nodes are alike"
            )
        for node, dtype in self.nodes.items():
            if dtype not in (FULL, self.dtype):
                raise ArgumentError(
                    f"precision of the node {node!r}: {dtype!r}; give {FULL!r} or {self.dtype!r}"
                )

    @property
    def is_mixed(self) -> bool:
        """Whether values are held in two precisions."""
        return self.dtype in HALVES

    @property
    def is_tf32(self) -> bool:
        """Whether contractions on a GPU may round operands of float32."""
        return self.dtype == TF32

    @property
    def scales_loss(self) -> bool:
        """Whether training scales its loss: float16 has no small gradients, it has zeros."""
        return self.dtype == "float16"

    def check_nodes(self, known: Collection[str]) -> None:
        """Raise `ArgumentError` if `nodes` names one that a model does not have."""
        for name in self.nodes:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=3)
                hint = f"; there are {near}" if near else f"; it has {len(known)} named nodes"
                raise ArgumentError(f"precision: the model has no node {name!r}{hint}")


def precision_of(choice: Any) -> Precision:
    """The precision that an argument says, its name or a `Precision`.

    Raises
    ------
    ArgumentError
        It is neither.
    """
    if isinstance(choice, Precision):
        return choice
    if isinstance(choice, str):
        return Precision(choice)
    raise ArgumentError(
        f"precision={choice!r}: give one of {', '.join(map(repr, PRECISIONS))}, or a "
        "graphgrad.Precision"
    )
