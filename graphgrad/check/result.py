"""The results of a check: of each part, and of all together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ..errors import GradientMismatch
from .compare import InputCheck
from .speed import Speed


@dataclass(frozen=True)
class PartCheck:
    """The result of checking one sample of a rule, one node, or a whole function.

    Attributes
    ----------
    label : str
        What was checked, in words.
    precision : str
        The dtype in which it was checked: ``"float64"``, or ``"float32"`` for what could not be
        promoted.
    inputs : list of InputCheck
        One for each differentiated input, and each order.
    op, node : str or None
        Names of the ops and of the ONNX node.
    note : str
        Why it was not checked in float64; empty if it was.
    mismatch : GradientMismatch or None
        Set where the gradient is wrong.
    rule : str or None
        Where the rules of users are written that the gradient is made of.
    speed : Speed or None
        How long such a rule takes beside the derivation; None without one, or where there is
        nothing to derive from.
    """

    label: str
    precision: str
    inputs: list[InputCheck] = field(default_factory=list)
    op: str | None = None
    node: str | None = None
    note: str = ""
    mismatch: GradientMismatch | None = None
    rule: str | None = None
    speed: Speed | None = None

    @property
    def remarks(self) -> list[str]:
        """What is to be said of the check, besides how well the gradient agrees."""
        texts = [self.note, self.kink_text, "" if self.speed is None else str(self.speed)]
        return [text for text in texts if text]

    @property
    def error(self) -> float:
        """The largest relative error that passed."""
        return max((check.error for check in self.inputs), default=0.0)

    @property
    def kink_text(self) -> str:
        """Which inputs met a kink, in words; nothing if none did."""
        sentences = {
            "exact": "on a kink, so checked beside it",
            "near": "close to a kink, so checked with a smaller step",
        }
        texts = []
        for kind, sentence in sentences.items():
            names = [check.name for check in self.inputs if check.kink == kind]
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                texts.append(f"{names[0]}{more} {sentence}")
        return "; ".join(texts)

    def to_json(self) -> dict[str, Any]:
        """The facts as a dictionary of plain values."""
        return {
            "label": self.label,
            "op": self.op,
            "node": self.node,
            "precision": self.precision,
            "error": self.error,
            "kinks": {check.name: check.kink for check in self.inputs if check.kink},
            "note": self.note,
            "rule": self.rule,
            "speed": self.speed.to_json() if self.speed is not None else None,
            "mismatch": _facts(self.mismatch) if self.mismatch is not None else None,
        }


def _facts(mismatch: GradientMismatch) -> dict[str, Any]:
    """A mismatch as plain values; numbers that JSON does not know, such as NaN, become None."""
    numbers = {"expected": mismatch.expected, "given": mismatch.given}
    return {
        "message": str(mismatch),
        "input": mismatch.input,
        "index": mismatch.index,
        "kink": mismatch.kink,
        **{
            name: number if number is not None and math.isfinite(number) else None
            for name, number in numbers.items()
        },
    }


@dataclass(frozen=True)
class GradientCheck:
    """What a check covered; returned by `check_grads` where every gradient agrees.

    Attributes
    ----------
    parts : list of PartCheck
    """

    parts: list[PartCheck]

    @property
    def precision(self) -> str:
        """``"float64"`` if everything was checked in float64, else ``"float32"``."""
        exact = all(part.precision == "float64" for part in self.parts)
        return "float64" if exact else "float32"

    @property
    def error(self) -> float:
        """The largest relative error that passed."""
        return max((part.error for part in self.parts), default=0.0)

    @property
    def kinks(self) -> list[tuple[str, InputCheck]]:
        """The inputs whose differences met a kink: the part's label, and the input's result."""
        return [(part.label, check) for part in self.parts for check in part.inputs if check.kink]

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        return (
            f"{len(self.parts)} gradients agree with finite differences in {self.precision}, "
            f"largest relative error {self.error:.1e}"
        )

    def __str__(self) -> str:
        remarks = [f"  {part.label}: {text}" for part in self.parts for text in part.remarks]
        return "\n".join([self.summary, *remarks])
