"""Ops that graphgrad has no rule for: missing gradients and users' rules are tried on them.

The gradient of `erf` is derived from its tensor expression; `swish` is lowered to Relax ops, and
differentiated through these. `packed` is lowered to a packed function, and `unlowered` to nothing:
their gradients are missing.
"""

import pytest
import tvm
from tvm import relax, te

from graphgrad.ops.define import call_op, define_op
from graphgrad.ops.legalize import LEGALIZATIONS
from graphgrad.registry import rule


def _same_type(call):
    return call.args[0].ty


def _erf(call, x):
    """Y = erf x."""
    return te.compute(x.shape, lambda *i: te.erf(x(*i)), name="erf")


_ERF = define_op("test_erf", ["x"], _same_type, _erf)


def call_packed(builder: relax.BlockBuilder, call: relax.Call) -> relax.Call:
    """Legalize a call to one of a packed function."""
    return relax.call_dps_packed("tests.unknown", relax.Tuple([call.args[0]]), call.ty)


_PACKED = define_op("test_packed", ["x"], _same_type, _erf)
tvm.ir.register_op_attr(_PACKED.name, "FLegalize", call_packed, level=11)


def _write_out(builder: relax.BlockBuilder, call: relax.Call) -> relax.Call:
    (x,) = call.args
    return relax.op.multiply(x, builder.emit(relax.op.sigmoid(x)))


_SWISH = define_op("test_swish", ["x"], _same_type, _erf)
tvm.ir.register_op_attr(_SWISH.name, "FLegalize", _write_out, level=11)


def erf(x: relax.Expr) -> relax.Call:
    return call_op(_ERF, [x])


def swish(x: relax.Expr) -> relax.Call:
    return call_op(_SWISH, [x])


def packed(x: relax.Expr) -> relax.Call:
    return call_op(_PACKED, [x])


tvm.get_global_func("ir.RegisterOp")("graphgrad.test_unlowered", "")
_UNLOWERED = tvm.ir.Op.get("graphgrad.test_unlowered")
_UNLOWERED.set_num_inputs(1)
_UNLOWERED.add_argument("x", "Expr", "x")
tvm.ir.register_op_attr(_UNLOWERED.name, "FInferType", lambda call, _: _same_type(call))
tvm.ir.register_op_attr(_UNLOWERED.name, "FPurity", True)


def unlowered(x: relax.Expr) -> relax.Call:
    return call_op(_UNLOWERED, [x])


def calls_out(x: te.Tensor) -> te.Tensor:
    """Y = what a packed function says: no derivative is known."""
    return te.extern(
        x.shape,
        [x],
        lambda ins, outs: tvm.tirx.call_packed("tests.unknown", ins[0], outs[0]),
        name="calls_out",
        dtype=str(x.dtype),
    )


def take_away(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Let an op of TVM's have no gradient: neither a rule nor anything to derive one from."""
    monkeypatch.delitem(rule._RULES["hand"], op)
    monkeypatch.setitem(LEGALIZATIONS, op, call_packed)
