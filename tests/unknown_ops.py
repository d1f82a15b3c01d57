"""Ops that graphgrad has no rule for: missing gradients and users' rules are tried on them."""

import tvm
from tvm import relax, te

from graphgrad.ops.define import call_op, define_op


def _same_type(call):
    return call.args[0].ty


def _erf(call, x):
    """Y = erf x."""
    return te.compute(x.shape, lambda *i: te.erf(x(*i)), name="erf")


def _tan(call, x):
    """Y = tan x."""
    return te.compute(x.shape, lambda *i: te.tan(x(*i)), name="tan")


_ERF = define_op("test_erf", ["x"], _same_type, _erf)
_TAN = define_op("test_tan", ["x"], _same_type, _tan)


def erf(x: relax.Expr) -> relax.Call:
    return call_op(_ERF, [x])


def tan(x: relax.Expr) -> relax.Call:
    return call_op(_TAN, [x])


tvm.get_global_func("ir.RegisterOp")("graphgrad.test_unlowered", "")
_UNLOWERED = tvm.ir.Op.get("graphgrad.test_unlowered")
_UNLOWERED.set_num_inputs(1)
_UNLOWERED.add_argument("x", "Expr", "x")
tvm.ir.register_op_attr(_UNLOWERED.name, "FInferType", lambda call, _: _same_type(call))
tvm.ir.register_op_attr(_UNLOWERED.name, "FPurity", True)


def unlowered(x: relax.Expr) -> relax.Call:
    return call_op(_UNLOWERED, [x])
