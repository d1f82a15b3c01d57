"""Lowerings of cumulative sums and products."""

from __future__ import annotations

from typing import Any, Literal

from tvm import relax, te, topi

from ..cumulative import cumulative
from ..define import OPAQUE
from .axis import checked_axis
from .table import Legalization, legalization


def _cumulative(combine: Literal["add", "mul"]) -> Legalization:
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        """Lower a cumulative op.

        The stock one adds up half precision as it is: a sum of ones in float16 ends at 2048.
        """
        axis = None if call.attrs.axis is None else checked_axis(call)

        def expression(x: te.Tensor) -> te.Tensor:
            x = topi.cast(x, str(call.ty.dtype))
            if axis is None:
                x = topi.reshape(x, list(call.ty.shape))
            return cumulative(x, axis or 0, combine, bool(call.attrs.exclusive))

        return builder.call_te(
            expression, call.args[0], primfunc_name_hint="cumulative", primfunc_attrs=OPAQUE
        )

    return lower


legalization("relax.cumsum")(_cumulative("add"))
legalization("relax.cumprod")(_cumulative("mul"))
