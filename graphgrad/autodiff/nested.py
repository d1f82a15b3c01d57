"""Cotangents and tangents of tuples: lists, nested like the value; None where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import relax

from .activity import has_cotangent


def float_types(ty: Any) -> Iterator[Any]:
    """Yield the types of the float tensors in a value of a type, in order."""
    if isinstance(ty, relax.TupleType):
        for item in ty.fields:
            yield from float_types(item)
    elif has_cotangent(ty):
        yield ty


def shaped_like(ty: Any, leaf: Callable[[Any], Any]) -> Any:
    """Build a cotangent nested like a type; None for members that have no cotangent.

    `leaf` is given the types that `float_types` yields, in the same order.
    """
    if isinstance(ty, relax.TupleType):
        return [shaped_like(item, leaf) for item in ty.fields]
    return leaf(ty) if has_cotangent(ty) else None


def at_path(ty: Any, path: Sequence[int], leaf: Any) -> Any:
    """A cotangent of a value of a type that has one in a single place of nested tuples."""
    if not path:
        return leaf
    parts: list[Any] = [None] * len(ty.fields)
    parts[path[0]] = at_path(ty.fields[path[0]], path[1:], leaf)
    return parts


def member(whole: Any, path: Sequence[int]) -> Any:
    """What a tuple, or the type of one, has in a place; a path goes from the outside in."""
    for index in path:
        whole = whole.fields[index]
    return whole


def leaves_of(nested: Any) -> Iterator[Any]:
    """Yield what is not None in a nested list, in order; the value itself if it is no list."""
    if isinstance(nested, list):
        for item in nested:
            yield from leaves_of(item)
    elif nested is not None:
        yield nested


def map_leaves(function: Callable[[Any], Any], nested: Any) -> Any:
    """A nested list with each of its leaves mapped; None stays."""
    if isinstance(nested, list):
        return [map_leaves(function, item) for item in nested]
    return None if nested is None else function(nested)


def pairs_of(first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the leaves that two lists, nested alike, have in the same places."""
    if first is None or second is None:
        return
    if isinstance(first, list):
        for item, other in zip(first, second, strict=True):
            yield from pairs_of(item, other)
    else:
        yield first, second
