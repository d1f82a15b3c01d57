"""ONNX of Relax programs: straight lines of ops, in operators of the default domain.

`program.py` writes a `Program`; each op is written by a function in one of the families here, in
the vocabulary of `graph.py`.
"""

from . import contraction, elementwise, index, loss, shape, window  # noqa: F401  (they register)
from .program import model_of_program, unwritable

__all__ = ["model_of_program", "unwritable"]
