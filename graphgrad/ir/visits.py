"""Walks through TVM's expressions and statements, as `tvm_ffi.structural_walk` makes them, faster.

The lowering of a training step makes some sixty thousand walks, most of them through a few nodes.
Each public call of TVM works out anew which numbers the classes have that it is to stop at, which
takes several times as long as such a walk. Here they are remembered. What is private to TVM in that
is used in this module alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from ..tvm_fixes.hooks import class_number, structural_map, structural_walk

Classes: TypeAlias = type | tuple[type, ...]
"""Classes of TVM's nodes; an object of a class that is derived from one of them counts too."""


def visit_nodes(
    root: Any, classes: Classes, visit: Callable[[Any], Any], outer_first: bool = False
) -> None:
    """Call a function with each node of some classes, every time that it occurs.

    Parameters
    ----------
    root : Any
        An expression, a statement, a function, or an array of them.
    classes : class or tuple of classes
    visit : callable
        May return what callbacks of ``tvm_ffi.structural_walk`` return.
    outer_first : bool
        Whether a node comes before those inside it, and not after.
    """
    structural_walk(root, _entries(classes, visit), outer_first)


def nodes_in(root: Any, classes: Classes) -> list[Any]:
    """The nodes of some classes in an expression or a statement, every time that each occurs."""
    nodes: list[Any] = []
    visit_nodes(root, classes, nodes.append)
    return nodes


def replace_nodes(root: Any, classes: Classes, replace: Callable[[Any], Any]) -> Any:
    """An expression or statement in which nodes of some classes have been replaced.

    Parameters
    ----------
    root : Any
        It is not changed.
    classes : class or tuple of classes
    replace : callable
        Given a node whose inside has been replaced, returns what takes its place.

    Returns
    -------
    Any
        The same object if nothing was replaced by something else.
    """
    return structural_map(root, _entries(classes, replace))


def _entries(classes: Classes, callback: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    return [(number, callback) for number in _numbers(classes)]


@cache
def _numbers(classes: Classes) -> tuple[int, ...]:
    """The numbers by which TVM knows some classes."""
    each = classes if isinstance(classes, tuple) else (classes,)
    return tuple(map(class_number, each))
