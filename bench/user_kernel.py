"""How contenders come by a kernel of `examples/kernels`, and its cotangent."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from repository import ROOT

FOLDER = ROOT / "examples" / "kernels"

KERNELS = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "example")


def example_of(kernel: str, large: bool) -> tuple[Any, Mapping[str, int]]:
    """Return a kernel's `Example`, and its small or large sizes."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    example = importlib.import_module(kernel).EXAMPLE
    return example, example.large if large else example.small


def cotangent(shape: Sequence[int]) -> np.ndarray:
    """Return the cotangent of a result, equal in every process."""
    return np.random.default_rng(1).standard_normal(shape, np.float32)
