"""Functions of a model or of a module: the arguments that belong to one of them alone."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError

_LEFT_OUT = {"func": "main", "target": "llvm", "winograd": True}
"""What an argument is where nobody gives it; None of all others."""


def refuse_arguments(kind: str, **arguments: Any) -> None:
    """Raise `ArgumentError` if an argument is given that has no meaning for a kind of subject."""
    for name, value in arguments.items():
        left_out = _LEFT_OUT.get(name)
        if value is not None if left_out is None else value != left_out:
            raise ArgumentError(f"{name}={value!r} says nothing of {kind}; leave it out")
