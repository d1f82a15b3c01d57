"""What graphgrad uses of TVM's private interface; `private_hooks` tells the reason of each use.

Everything here is one call of TVM's, so that the next version of TVM breaks this file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.te import _ffi_api as _te
from tvm.tirx.compilation_pipeline import PIPELINE_MAP
from tvm_ffi import structural

compute_stage: Callable[..., Any] = _te.ComputeOp
"""The operation of a compute stage: name, tag, attributes, axes, bodies."""

extern_stage: Callable[..., Any] = _te.ExternOp
"""The operation of an extern stage: name, tag, attributes, inputs, their buffers, outputs, body."""

scan_stage: Callable[..., Any] = _te.ScanOp
"""The operation of a scan: name, tag, attributes, axis, init, update, states, inputs."""

identity: Callable[[Any], int] = tvm_ffi.Object.__chandle__
"""A number that two wrappers of one node share, while either is alive."""

array_size: Callable[[Any], int] = tvm_ffi.get_global_func("ffi.ArraySize")
array_item: Callable[[Any, int], Any] = tvm_ffi.get_global_func("ffi.ArrayGetItem")
"""Of arrays, without the work that `Array.__getitem__` does in Python for each item."""


def _items(array: tvm_ffi.Array[Any]) -> Iterator[Any]:
    """Yield the items of an array, as ``Array.__iter__`` does, in a quarter of the time."""
    for index in range(array_size(array)):
        yield array_item(array, index)


tvm_ffi.Array.__iter__ = _items

# The metaclass of nodes is `ABCMeta`, which looks for virtual subclasses; no class of TVM has any.
# A lowering asks a million times, which took it 0.06 of its time.
_node_metaclass: Any = type(tvm_ffi.Object)
_node_metaclass.__instancecheck__ = type.__instancecheck__

register_op: Callable[[str, str], Any] = tvm.get_global_func("ir.RegisterOp")
"""Registers an op of a name, with a description."""


def set_type(expr: Any, ty: Any) -> None:
    """Give an expression its type, where no builder is there to infer it."""
    relax.expr._update_type(expr, ty)


def begin_block(builder: relax.BlockBuilder, dataflow: bool = False) -> None:
    """Let a builder emit into a block that belongs to no function: a branch, or a loop's body."""
    if dataflow:
        builder._begin_dataflow_block()
    else:
        builder._begin_binding_block()


def end_block(builder: relax.BlockBuilder) -> relax.BindingBlock:
    """End the block that `begin_block` began, and return it."""
    return builder._end_block()


def change_attributes(attributes: Any, change: Callable[[str, Any], Any]) -> Any:
    """The attributes of a call of any op, with each value as `change` returns it by its name."""
    if isinstance(attributes, tvm.ir.DictAttrs):
        names, kind = list(attributes.keys()), "ir.DictAttrs"
        values = {name: attributes[name] for name in names}
    else:
        info = type(attributes).__tvm_ffi_type_info__
        names, kind = [field.name for field in info.fields], info.type_key
        values = {name: getattr(attributes, name) for name in names}
    return tvm.ir.make_node(kind, **{name: change(name, value) for name, value in values.items()})


def structural_walk(root: Any, entries: Sequence[tuple[int, Any]], outer_first: bool) -> None:
    """Walk as `tvm_ffi.structural_walk`, given the numbers of the classes to stop at."""
    order = structural.WalkOrder.PREORDER if outer_first else structural.WalkOrder.POSTORDER
    structural._ffi_api.StructuralWalk(root, entries, [], int(order))


def structural_map(root: Any, entries: Sequence[tuple[int, Any]]) -> Any:
    """Replace as `tvm_ffi.structural_map`, given the numbers of the classes to stop at."""
    order = int(structural.WalkOrder.POSTORDER)
    return structural._ffi_api.StructuralMap(root, entries, [], order)


def class_number(node_class: type) -> int:
    """The number by which TVM knows a class of nodes."""
    return structural._callback_type_to_type_index(node_class, api_name="structural_walk")


def tir_passes(pipeline: str) -> tuple[Any, Any, Any]:
    """The passes of a pipeline for kernels: lowering, then what finishes host and device code."""
    return PIPELINE_MAP[pipeline]()


def onnx_converters() -> dict[str, Any]:
    """The converters of TVM's ONNX importer, by operator."""
    return onnx_frontend._get_convert_map()
