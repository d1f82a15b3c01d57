"""ONNX of Relax programs: straight lines of ops, in operators of the default domain.

`program.py` writes a `Program`; each op is written by a function in one of the families here, in
the vocabulary of `graph.py`.
"""

from . import (  # noqa: F401  (they register)
    contraction,
    elementwise,
    index,
    kernel,
    loss,
    many,
    order,
    random,
    shape,
    walk,
    window,
)
from .program import model_of_program, model_of_values, unwritable

__all__ = ["model_of_program", "model_of_values", "unwritable"]
