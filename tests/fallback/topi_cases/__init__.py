"""Calls of TVM's topi functions: those that have a gradient, and those that cannot have one."""

from . import elementwise, network, reduction, shape
from .case import Case
from .refused import NO_FLOATS, REASONS, UNBUILDABLE

CATEGORIES: dict[str, list[Case]] = {
    "elementwise": elementwise.CASES,
    "reductions and recurrences": reduction.CASES,
    "shapes and indices": shape.CASES,
    **network.CATEGORIES,
}

CASES: list[Case] = [case for cases in CATEGORIES.values() for case in cases]

__all__ = ["CASES", "CATEGORIES", "NO_FLOATS", "REASONS", "UNBUILDABLE", "Case"]
