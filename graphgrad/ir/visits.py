"""Walks through TVM's expressions and statements, like `tvm_ffi.structural_walk` but faster.

The lowering of a training step makes some sixty thousand walks, most of them through a few nodes.
Each public call of TVM looks up the numbers of the classes that it is to visit, which takes several
times as long as such a walk. Here these numbers are cached. Only this module uses the private parts
of TVM that this takes.
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


def nodes_in(root: Any, classes: Classes, outer_first: bool = False) -> list[Any]:
    """The nodes of some classes in an expression or a statement, every time that each occurs."""
    nodes: list[Any] = []
    visit_nodes(root, classes, nodes.append, outer_first)
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
    """The table of callbacks by class number that TVM's walk takes."""
    return [(number, callback) for number in _numbers(classes)]


@cache
def _numbers(classes: Classes) -> tuple[int, ...]:
    """The numbers that TVM has given some classes."""
    class_tuple = classes if isinstance(classes, tuple) else (classes,)
    return tuple(map(class_number, class_tuple))
