"""TVM's ONNX importer, corrected: it keeps ONNX names, node by node, and batch-norm momentum.

Everything is done by overriding methods of the importer's class, so that nothing of TVM is
patched and any number of imports may run at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax
from tvm.ir import GenericConst, IRModule, Span
from tvm.relax.frontend.onnx import onnx_frontend as stock
from tvm_ffi import structural_map

from ..errors import ModelError
from ..exclusive import BLOCK_BUILDER
from ..ops.tensor import Emitter, Tensor
from ..provenance import span_of
from . import converters
from .onnx_graph import STANDARD_DOMAINS, opset
from .relax_main import rebuilt

# Names of the dropout nodes that the file says are training, an attribute of function main.
TRAINING_DROPOUTS = "graphgrad.training_dropouts"

_CONTRIBUTED_DOMAINS = ("com.microsoft",)
_HANDLED_BY_THE_LOOP = ("If", "Constant")


def is_supported(node: onnx.NodeProto) -> bool:
    """Whether the importer knows the operator of a node, judged by name and domain."""
    if converters.find(node.domain, node.op_type) is not None:
        return True
    known_domain = node.domain in (*STANDARD_DOMAINS, *_CONTRIBUTED_DOMAINS)
    stock_map = stock._get_convert_map()
    return known_domain and (node.op_type in stock_map or node.op_type in _HANDLED_BY_THE_LOOP)


def import_graph(
    proto: onnx.ModelProto,
    input_types: Mapping[str, relax.TensorType],
    variables: Collection[str],
) -> IRModule:
    """Translate a repaired model to a Relax module with the one function ``main``.

    Parameters
    ----------
    proto : onnx.ModelProto
        A model that `onnx_repair.repair` returned.
    input_types : mapping of str to relax.TensorType
        For each input of the graph.
    variables : collection of str
        The initialisers that become parameters of main, in their order there. All others become
        constants, so that shape arithmetic on them is done at once.

    Returns
    -------
    IRModule
        ``main(*inputs, *variables)`` returns a tensor, or a literal tuple if there are several
        outputs. Names are those of the ONNX file, verbatim.

    Raises
    ------
    ModelError
        If a node cannot be translated; it is named.
    """
    with BLOCK_BUILDER:
        return _Importer(proto, input_types, variables).translate()


class _Importer(stock.ONNXGraphImporter):
    def __init__(
        self,
        proto: onnx.ModelProto,
        input_types: Mapping[str, relax.TensorType],
        variables: Collection[str],
    ):
        super().__init__({}, {}, keep_params_in_input=True, sanitize=False)
        self.opset = opset(proto)
        self._proto = proto
        # The stock converters fold any parameter that they find in self._params into a constant
        # where that suits them. It stays empty: what may be folded is a constant from the start.
        arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        types = dict(input_types)
        for name in variables:
            types[name] = relax.TensorType(arrays[name].shape, str(arrays[name].dtype))
        self._parameters = [relax.Var(name, ty) for name, ty in types.items()]
        self._nodes = {var.name: var for var in self._parameters}
        for name, array in arrays.items():
            if name not in self._nodes:
                self._nodes[name] = relax.const(array, str(array.dtype))
        self._spans: dict[relax.Var, Span | None] = dict.fromkeys(self._parameters)
        self._names: dict[relax.Var, str] = {}
        self._training_dropouts: list[str] = []
        self._failure: Exception | None = None

    def translate(self) -> IRModule:
        """Build the module; see `import_graph`."""
        graph = self._proto.graph
        has_branches = any(node.op_type == "If" for node in graph.node)
        # A branch cannot be bound inside a dataflow block.
        block = contextlib.nullcontext() if has_branches else self.bb.dataflow()
        with self.bb.function("main", params=self._parameters):
            with block:
                self._construct_nodes(graph)
                outputs = [self._bind_output(output.name, has_branches) for output in graph.output]
            self.bb.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        module = self.bb.get()
        module["main"] = self._renamed(self._with_spans(module["main"]))
        if self._training_dropouts:
            module["main"] = module["main"].with_attr(TRAINING_DROPOUTS, self._training_dropouts)
        module = relax.transform.CanonicalizeBindings()(module)
        return relax.transform.DeadCodeElimination()(module)

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        """Translate node by node, and note which bindings each node made."""
        for node in graph.node:
            span = span_of(node.name, node.op_type)
            ours = converters.find(node.domain, node.op_type)
            try:
                if ours is not None:
                    self._convert(node, ours)
                else:
                    super()._construct_nodes(SimpleNamespace(node=[_convertible(node)]))
            except Exception as error:
                raise _conversion_error(node, self._failure or error) from error
            if self._failure is not None:  # inside a branch, whose loop does not raise
                raise _conversion_error(node, self._failure) from self._failure
            for name in filter(None, node.output):
                self._nodes[name] = value = self._bound(self._nodes[name])
                if isinstance(value, relax.Var) and value not in self._spans:
                    self._names[value] = name
                    self._claim(value, span)

    def _convert(self, node: onnx.NodeProto, converter: converters.Converter) -> None:
        """Translate a node by a converter of ours."""
        attributes = self._parse_attr(node.attribute)
        inputs = [self._nodes[name] if name else None for name in node.input]
        emitter = Emitter(self.bb)
        with emitter.at(None, node.output[0]):
            translated = converters.Node(
                name=node.name,
                op_type=node.op_type,
                domain=node.domain,
                opset=self.opset,
                inputs=inputs,
                attributes=attributes,
                output_count=len(node.output),
                emitter=emitter,
            )
            outputs = converter(translated)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if len(outputs) < len(node.output):
            raise ModelError(f"only {len(outputs)} of its {len(node.output)} outputs are served")
        for name, output in zip(node.output, outputs, strict=False):
            if name:
                self._nodes[name] = output.expr if isinstance(output, Tensor) else output

    def _bound(self, value: relax.Expr) -> relax.Expr:
        """Bind an operation that yields a tensor to a variable, at once rather than at its use."""
        is_operation = isinstance(value, relax.Call | relax.TupleGetItem)
        if is_operation and isinstance(value.ty, relax.TensorType):
            return self.bb.emit(value)
        return value

    def _bind_output(self, name: str, has_branches: bool) -> relax.Var:
        value = self._nodes[name]
        if isinstance(value.ty, relax.ShapeType):
            value = self.bb.normalize(relax.op.shape_to_tensor(value))
        if not isinstance(value.ty, relax.TensorType):
            raise ModelError(f"output {name!r} is not a tensor: it is a {type(value.ty).__name__}")
        var = self.bb.emit(value) if has_branches else self.bb.emit_output(value)
        self._names[var] = name
        return var

    def _claim(self, value: relax.Expr, span: Span) -> None:
        """Give a span to each binding that `value` depends on and that has none yet."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if isinstance(value, relax.Var):
                if value in self._spans:
                    continue
                self._spans[value] = span
                value = self.bb.lookup_binding(value)
            if isinstance(value, relax.Call):
                waiting.extend(value.args)
            elif isinstance(value, relax.Tuple):
                waiting.extend(value.fields)
            elif isinstance(value, relax.TupleGetItem):
                waiting.append(value.tuple_value)

    def _convert_operator(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        """Translate one node, after putting right what the stock converter gets wrong."""
        try:
            if op_name == "BatchNormalization":
                attrs = _corrected_batch_norm(attrs, opset)
            elif op_name == "Dropout" and self._trains(inputs):
                self._training_dropouts.append(attrs["tvm_custom"]["name"])
            return super()._convert_operator(op_name, inputs, attrs, opset)
        except Exception as error:
            # The caller would print before it raises. An empty tuple makes it raise in silence.
            self._failure = error
            return relax.Tuple([])

    def _trains(self, inputs: list[relax.Expr]) -> bool:
        """Whether a Dropout node is in training form; check that its settings are constant."""
        for index, setting in ((1, "ratio"), (2, "training_mode")):
            if inputs[index] is not None and not isinstance(inputs[index], GenericConst):
                raise ModelError(f"its {setting} is computed or an input: make it a constant")
        return inputs[2] is not None and bool(inputs[2].value.numpy())

    def _parse_attr(self, attr_proto: Any) -> dict[str, Any]:
        """Read attributes, and each float as the decimal number that was meant.

        A file stores 0.9 as the float32 nearest to it, which is 2e-8 off. The shortest decimal
        that has the same float32 makes no difference to float32 arithmetic, and the right one in
        float64.
        """
        attrs = super()._parse_attr(attr_proto)
        return {name: _decimal(value) for name, value in attrs.items()}

    def _with_spans(self, function: relax.Function) -> relax.Function:
        """Write the spans of `_claim` into the function's bindings."""
        blocks = [
            type(block)([self._with_span(binding) for binding in block.bindings])
            for block in function.body.blocks
        ]
        return rebuilt(function, blocks=blocks)

    def _with_span(self, binding: relax.Binding) -> relax.Binding:
        span = self._spans.get(binding.var)
        value = getattr(binding, "value", None)
        if span is None:
            return binding
        if isinstance(value, relax.Call):
            call = relax.Call(value.op, value.args, value.attrs, value.ty_args, span, value.ty)
            return relax.VarBinding(binding.var, call)
        if isinstance(value, relax.TupleGetItem):
            item = relax.TupleGetItem(value.tuple_value, value.index, span)
            return relax.VarBinding(binding.var, item)
        return binding

    def _renamed(self, function: relax.Function) -> relax.Function:
        """Give variables the names of their ONNX values; the block builder alters names."""
        renamed = {var: type(var)(name, var.ty) for var, name in self._names.items()}
        return structural_map(function, (relax.Var, lambda var: renamed.get(var, var)))


def _convertible(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node with no more outputs than the stock converter of its operator gives.

    Before opset 14 a batch norm in training form has two more, "saved" statistics for a backward
    pass that is not ours.
    """
    if node.op_type != "BatchNormalization" or len(node.output) <= 3:
        return node
    if any(node.output[3:]):
        raise ModelError("its saved_mean and saved_var are read: export with opset 14 or later")
    shortened = onnx.NodeProto()
    shortened.CopyFrom(node)
    del shortened.output[3:]
    return shortened


def _corrected_batch_norm(attrs: dict[str, Any], opset: int) -> dict[str, Any]:
    """Turn ONNX's meaning of momentum and of the number of outputs into that of Relax.

    ONNX keeps the share ``momentum`` of the old statistics, Relax the share ``1 - momentum``.
    Before opset 14 a node is in training form if it has more than one output.
    """
    if not attrs.get("spatial", 1):
        raise ModelError("spatial=0 is not supported: export with opset 9 or later")
    training = bool(attrs.get("training_mode", 0))
    if opset < 14:
        training = attrs["tvm_custom"]["num_outputs"] > 1
    momentum = 1.0 - attrs.get("momentum", 0.9)
    return {**attrs, "momentum": momentum, "training_mode": int(training)}


def _decimal(value: Any) -> Any:
    if isinstance(value, float):
        return float(str(np.float32(value)))
    if isinstance(value, tuple):
        return tuple(_decimal(item) for item in value)
    return value


def _conversion_error(node: onnx.NodeProto, cause: Exception) -> ModelError:
    what = str(cause).strip() or type(cause).__name__
    return ModelError(f"node {node.name!r} ({node.op_type}) cannot be imported: {what}")
