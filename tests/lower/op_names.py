"""The ops that a function calls."""

import tvm

from graphgrad.ir.rewrite import bindings_of


def op_names(function):
    """Return the name of the op of each binding of a Relax function; None where it calls none."""
    values = [binding.value for binding in bindings_of(function.body)]
    return [
        str(value.op.name)
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op)
        else None
        for value in values
    ]
