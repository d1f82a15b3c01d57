"""Gradients that onnx-ad derives on an ONNX file, computed by the standard's reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ad
from onnx.reference import ReferenceEvaluator
from random_nets import MENDED

Arrays = Mapping[str, np.ndarray]

_RECURRENT = {"RNN", "GRU", "LSTM"}


class Adjoint:
    """The adjoint of a model with respect to some of its inputs.

    Parameters
    ----------
    model : ModelProto
        In float64, with the shapes of all inputs and outputs.
    wrt : list of str

    Raises
    ------
    UnsupportedOperator
        onnx-ad has no rule, or one that the reference cannot compute.
    """

    def __init__(self, model: onnx.ModelProto, wrt: Sequence[str]):
        if _RECURRENT & {node.op_type for node in model.graph.node}:
            raise onnx_ad.UnsupportedOperator("the reference cannot scan backwards")
        adjoint = onnx_ad.reverse(model, list(wrt), prefix="adj_", layout="onnx")
        self._evaluator = ReferenceEvaluator(adjoint, new_ops=MENDED)
        self._wrt = wrt

    def gradients(self, point: Arrays, cotangents: Arrays) -> dict[str, np.ndarray]:
        """The gradients at a point; raises ValueError where the reference knows no such form."""
        seeds = {f"adj_{name}": value[..., None] for name, value in cotangents.items()}
        results = self._evaluator.run(None, {**point, **seeds})
        named = dict(zip(self._evaluator.output_names, results, strict=True))
        return {name: named[f"adj_{name}"][..., 0] for name in self._wrt}
