"""Variables of expressions as statements.

TVM's elimination of common subexpressions binds what several statements have in common before the
first of them, but overlooks uses inside a `Let`: if one comes earlier, it reads a variable that is
not bound yet. Where all statements depend on the variable of one loop, that is the rule.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from .walk import Expr, called, identity


def without_lets_in(statement: Any) -> Any:
    """Return a statement that binds its variables by statements, where it did so by `Let`.

    Parameters
    ----------
    statement : Stmt
        A value that was computed under some conditions only is still computed so, and else zero.
    """
    return tvm_ffi.structural_mutate(statement, ((tirx.BufferStore, tirx.Bind), _bound))


def _bound(statement: Any, _: Any) -> Any:
    binding = _Binding()
    value = binding.inside(statement.value)
    if not binding.statements:
        return statement
    if isinstance(statement, tirx.Bind):
        last = tirx.Bind(statement.var, value)
    else:
        last = tirx.BufferStore(statement.buffer, value, statement.indices)
    return tirx.SeqStmt([*binding.statements, last])


class _Binding:
    """The variables of one expression."""

    def __init__(self) -> None:
        self.statements: list[Any] = []
        self.conditions: list[tuple[Expr, bool]] = []
        self.renamed: dict[int, Any] = {}

    def inside(self, root: Expr) -> Expr:
        """Return an expression that uses variables that `statements` bind."""
        return tvm_ffi.structural_mutate(
            root,
            (
                (prim.Let, self._let),
                (tvm.ir.Call, self._call),
                (tvm.ir.Var, lambda var, _: self.renamed.get(identity(var), var)),
            ),
        )

    def _let(self, node: Any, mutation: Any) -> Expr:
        value = mutation.mutate(node.value)
        zero = tirx.const(0, str(value.ty))
        for condition, wanted in reversed(self.conditions):
            branches = (value, zero) if wanted else (zero, value)
            value = tirx.if_then_else(condition, *branches)
        # An expression may occur twice, each time under other conditions.
        var = tirx.Var(node.var.name, str(node.var.ty))
        self.statements.append(tirx.Bind(var, value))
        self.renamed[identity(node.var)] = var
        return mutation.mutate(node.body)

    def _call(self, node: Any, mutation: Any) -> Expr:
        if called(node) != "prim.if_then_else":
            return mutation.default_mutate(node)
        parts = [mutation.mutate(node.args[0])]
        for wanted, branch in zip((True, False), node.args[1:], strict=True):
            self.conditions.append((parts[0], wanted))
            parts.append(mutation.mutate(branch))
            self.conditions.pop()
        return tirx.if_then_else(*parts)
