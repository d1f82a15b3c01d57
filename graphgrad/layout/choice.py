"""Which layout a model is computed in: chosen here, by target, and seen by no user."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import tvm
from tvm import relax

from ..ir.tensor import type_shape
from . import orders
from .channels_last import channels_last
from .orders import Order
from .storage import storage_of


@dataclass(frozen=True)
class Layout:
    """The layout in which a model is computed, and in which its parameters are stored.

    Attributes
    ----------
    converts : bool
        Whether functions are made channels-last; False leaves everything as the model has it.
    storage : mapping of str to Order
        By parameter; those that are left out are stored as the model has them. What belongs to a
        parameter, a gradient or an optimizer's buffer, is stored as it is.
    """

    converts: bool = False
    storage: Mapping[str, Order] = field(default_factory=dict)

    def of(self, mod: tvm.IRModule, func: str, keep: Collection[str] = ()) -> tvm.IRModule:
        """Return a function of the model in this layout; see `channels_last`."""
        return channels_last(mod, func, self.storage, keep) if self.converts else mod

    def stored_type(self, name: str, ty: relax.TensorType) -> relax.TensorType:
        """Return the type of what is stored for a tensor that belongs to a parameter."""
        order = self.storage.get(name)
        if order is None:
            return ty
        return relax.TensorType(orders.extents(type_shape(ty), order), ty.dtype)


MODEL_LAYOUT = Layout()
"""Everything stays as the model has it."""


def layout_for(target: tvm.target.Target) -> Layout:
    """Return the layout of computations on a target, with parameters as the model has them.

    On processors the channels are the axis that kernels read as vectors. The schedules for GPUs
    read the innermost spatial axis so, which in the layout of ONNX is that already.
    """
    return Layout(converts=str(target.kind.name) == "llvm")


def choose_storage(layout: Layout, mod: tvm.IRModule, func: str = "main") -> Layout:
    """Return a layout in which parameters are stored as a function's convolutions want them.

    Parameters
    ----------
    layout : Layout
    mod : IRModule
    func : str
        A function of the model, of which `storage_of` tells that.
    """
    return Layout(True, storage_of(mod, func)) if layout.converts else layout
