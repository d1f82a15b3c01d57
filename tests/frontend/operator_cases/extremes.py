"""Cases with extremes among the floats: not finite, zeros, ties, the ends of a dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from .case import Case
from .draw import FLOATS

KINDS = ("nan", "infinity", "zero", "tie", "denormal", "largest", "smallest")


def with_extremes(case: Case, generator: np.random.Generator) -> Case:
    """The case with some elements of its float inputs replaced, all by values of one kind."""
    kind = str(generator.choice(KINDS))
    drawn = replace(
        case.drawn,
        inputs=[_sprinkled(value, kind, generator) for value in case.drawn.inputs],
        extra={name: _sprinkled(v, kind, generator) for name, v in case.drawn.extra.items()},
    )
    return replace(case, drawn=drawn)


def _sprinkled(value: Any, kind: str, generator: np.random.Generator) -> Any:
    """An input with some elements replaced, if it is an array of floats and chance wills it."""
    is_float = isinstance(value, np.ndarray) and str(value.dtype) in FLOATS
    if not is_float or not value.size or generator.random() < 0.3:
        return value
    chosen = generator.random(value.shape) < generator.choice([0.1, 0.3, 0.7])
    choices = _values(kind, value)
    picked = choices[generator.integers(0, len(choices), value.shape)]
    return np.where(chosen, picked, value)


def _values(kind: str, like: np.ndarray) -> np.ndarray:
    """The values of a kind, in the dtype of an array."""
    limits = ml_dtypes.finfo(like.dtype)
    tiny, least = float(limits.smallest_normal), float(limits.smallest_subnormal)
    values = {
        "nan": [np.nan],
        "infinity": [np.inf, -np.inf],
        "zero": [0.0, -0.0],
        "tie": [like.reshape(-1)[0]],
        "denormal": [least, -least, 3 * least, tiny / 2, -tiny / 2],
        "largest": [float(limits.max), -float(limits.max)],
        "smallest": [tiny, -tiny],
    }
    return np.array(values[kind]).astype(like.dtype)
