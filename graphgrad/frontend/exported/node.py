"""A node of an exported graph, as converters see it, and the table of converters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...ir.tensor import Dimension, Emitter, Tensor

Converter = Callable[..., Any]
"""Takes a `Node` and the operator's arguments, in the order of its schema, each given: `Tensor`s,
numbers, lists. Returns a `Tensor`, or a list of them for an operator with several results."""

CONVERTERS: dict[str, Converter] = {}
"""By operator and overload, such as ``"add.Tensor"``."""


def converter(*operators: str) -> Callable[[Converter], Converter]:
    """A decorator that registers a function as the converter of some operators."""

    def register(function: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(operators, function))
        return function

    return register


@dataclass(frozen=True)
class Node:
    """A node that is translated.

    Attributes
    ----------
    node : fx.Node
    emitter : Emitter
    """

    node: fx.Node
    emitter: Emitter

    @property
    def dtype(self) -> str:
        """The dtype of its first result, by PyTorch's rules of promotion."""
        return dtype_of(self.node)

    def common_dtype(self) -> str:
        """The dtype in which PyTorch compares its first two arguments."""
        first, second = (a.meta["val"] if isinstance(a, fx.Node) else a for a in self.node.args[:2])
        return name_of(torch.result_type(first, second))

    def full(self, value: Any, shape: list[Dimension], dtype: str | None = None) -> Tensor:
        """A constant tensor, of the node's dtype if none is given."""
        return self.emitter.full(float(value), shape, dtype or self.dtype)


def dtype_of(node: fx.Node) -> str:
    """The dtype of a node's first result."""
    value = node.meta["val"]
    return name_of((value[0] if isinstance(value, list | tuple) else value).dtype)


def name_of(dtype: torch.dtype) -> str:
    """A dtype of PyTorch by TVM's name of it."""
    return str(dtype).removeprefix("torch.")
