"""A partition of memory into classes, and the memory that a value consists of.

The memory of a value is a tree: a tuple's is a list of its members' trees, and a leaf is the memory
of one tensor or object. The classes of leaves are kept by union-find.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import tvm
from tvm import relax

OUTSIDE = 0
"""The class of memory that something outside the function may hold."""

Source: TypeAlias = tuple[Any, ...]
"""Where memory comes from (see `Leaf`)."""


class Leaf(NamedTuple):
    """The memory of one tensor or opaque object.

    Attributes
    ----------
    node : int
        Its node in the union-find; `Regions.region` tells the class.
    source : Source
        Where the memory comes from; leaves of equal source have the same memory. It begins with a
        kind, such as ``"param"``, ``"call"`` or ``"if"``, and the number of the parameter or the
        variable of the binding. Positions in nested tuples follow.
    """

    node: int
    source: Source


Tree: TypeAlias = Any
"""A `Leaf`, None for what has no memory (shapes, numbers), or a list of trees for a tuple."""


def leaves(tree: Tree) -> Iterator[Leaf]:
    """Yield the leaves of a tree that have memory, in order."""
    if isinstance(tree, list):
        for branch in tree:
            yield from leaves(branch)
    elif tree is not None:
        yield tree


class Regions:
    """Classes of memory, by union-find: two values of different classes share none."""

    def __init__(self) -> None:
        self._parent = [OUTSIDE]
        self._origins: dict[Source, tuple[Source, ...]] = {}

    def region(self, leaf: Leaf) -> int:
        """The class of a leaf's memory: a number, equal where memory may be shared."""
        return self._find(leaf.node)

    def origins(self, leaf: Leaf) -> tuple[Source, ...]:
        """The sources of the tensors or objects that a value is one of, or of which it is a member.

        That of the leaf itself, unless the value is a choice between others or has been cast. What
        may be a view of a part of a tensor has its own source.
        """
        return self._origins.get(leaf.source, (leaf.source,))

    def _find(self, node: int) -> int:
        while self._parent[node] != node:
            # Path halving: each node that is passed is linked to its grandparent.
            self._parent[node] = node = self._parent[self._parent[node]]
        return node

    def join(self, *nodes: int) -> None:
        """Make one class of the classes of some nodes."""
        roots = {self._find(node) for node in nodes}
        least = min(roots, default=OUTSIDE)  # so that OUTSIDE stays the root of its class
        for root in roots:
            self._parent[root] = least

    def node(self) -> int:
        """A new node, in a new class."""
        self._parent.append(len(self._parent))
        return self._parent[-1]

    def fresh(self, ty: Any, source: Source) -> Tree:
        """A tree of new classes for a value of a type; None for a type without memory."""
        if isinstance(ty, relax.TupleType):
            return [self.fresh(field, (*source, i)) for i, field in enumerate(ty.fields)]
        if isinstance(ty, relax.ShapeType | tvm.ir.PrimType):
            return None
        return Leaf(self.node(), source)

    def as_type(self, tree: Tree, ty: Any, source: Source) -> Tree:
        """A tree in the form of a type, which may tell more or less of tuples than the tree does.

        Parameters
        ----------
        tree : Tree
        ty : relax.Type
        source : Source
            That of leaves that have to be made.
        """
        if isinstance(tree, list):
            if isinstance(ty, relax.TupleType) and len(tree) == len(ty.fields):
                members = enumerate(zip(tree, ty.fields, strict=True))
                return [self.as_type(member, field, (*source, i)) for i, (member, field) in members]
            merged = Leaf(self.node(), source)
            self.choose(merged, tree)
            return merged
        if tree is None or isinstance(ty, relax.TupleType):
            # Where nothing is known of the memory, it may be anything that is held outside.
            typed = self.fresh(ty, source)
            self.choose(typed, tree or Leaf(OUTSIDE, ("outside",)))
            return typed
        return tree

    def choose(self, result: Tree, *trees: Tree) -> None:
        """Make a new value be one of others, member by member: it has no memory of its own."""
        for leaf, *others in _matched(result, *trees):
            sources = (o for tree in others for other in leaves(tree) for o in self.origins(other))
            origins = tuple(dict.fromkeys(sources))
            self._origins.update((member.source, origins) for member in leaves(leaf))
        self.unify(result, *trees)

    def unify(self, *trees: Tree) -> None:
        """Join the memory of values that may share it, member by member."""
        for matched in _matched(*trees):
            self.join(*(leaf.node for tree in matched for leaf in leaves(tree)))


def _matched(*trees: Tree) -> Iterator[tuple[Tree, ...]]:
    """Yield what stands at the same place in some trees: members as long as all are told apart."""
    if all(isinstance(tree, list) for tree in trees) and len({len(t) for t in trees}) == 1:
        for members in zip(*trees, strict=True):
            yield from _matched(*members)
    else:
        yield trees
