"""Stages that TVM computes by loops or functions of their own, stated as tensor expressions.

An extern stage keeps neither its function's name nor its arguments. What it computes is proved, not
guessed: the function is called again over the same tensors, with arguments read off the loops, and
the loops that come out must be the same (`match.same_stage`). Start with `table`, which lists them.
"""

from .table import register, restated

__all__ = ["register", "restated"]
