"""Translation of a repaired ONNX graph, node by node, to one Relax function.

What is known at import, numbers and expressions of symbolic dimensions, is computed here and emits
nothing. Any other node is translated by a function of the user's, a converter of graphgrad's, or
TVM's importer, in this order.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import relax, tirx
from tvm.ir import GenericConst, IRModule

from ..errors import GraphGradError, ModelError
from ..ir.compile_lock import COMPILE_LOCK
from ..ir.provenance import span_of
from ..ir.tensor import Emitter, Tensor, expression_of, has_shape
from ..ir.value_names import equal_names, record_aliases
from ..tvm_fixes.hooks import begin_block, end_block
from . import converters, stock_operators
from .exact_arithmetic import ExactArithmetic, symbols
from .known_values import LARGEST, KnownValue
from .node_limit import count, nodes_in, refuse_many_nodes
from .onnx_graph import STANDARD_DOMAINS, all_nodes, opset
from .onnx_sequences import element_name
from .origins import Origins
from .shape_arithmetic import Folding, fold, shape_value, size_value

# Names of the dropout nodes that the file says are training, an attribute of function main.
TRAINING_DROPOUTS = "graphgrad.training_dropouts"

Converters = Mapping[tuple[str, str], converters.Converter]

_MAX_MESSAGE_CHARACTERS = 300

_PRINTED_OP = re.compile(r'ir\.Op\(.*?name="([\w.]+)".*?support_level=\d+\)')
"""An op in the messages of TVM, with its name."""

_HANDLED_HERE = ("Constant", "Identity", "If")

# Constants of these dtypes that converters return are lengths and conditions: known at import.
_EXACT = ("bool", "int64")


def is_supported(node: onnx.NodeProto, custom: Converters) -> bool:
    """Whether the importer knows the operator of a node, judged by name and domain."""
    return (
        _key(node) in custom
        or converters.find(node.domain, node.op_type) is not None
        or stock_operators.is_translated(node.domain, node.op_type)
        or (node.domain in STANDARD_DOMAINS and node.op_type in _HANDLED_HERE)
    )


def import_graph(
    proto: onnx.ModelProto,
    input_types: Mapping[str, relax.TensorType],
    variables: Collection[str],
    custom: Converters,
) -> tuple[IRModule, list[str]]:
    """Translate a repaired model to a Relax module with the one function ``main``.

    Parameters
    ----------
    proto : onnx.ModelProto
        A model that `onnx_repair.repair` returned.
    input_types : mapping of str to relax.TensorType
        For each input of the graph.
    variables : collection of str
        The initializers that become parameters of main, in their order there. All others become
        constants, so that shape arithmetic on them is done at once.
    custom : mapping
        Converters of the user's own, which go before all others.

    Returns
    -------
    module : IRModule
        ``main(*inputs, *variables)`` returns a tensor, or a literal tuple if there are several
        outputs. Names are those of the ONNX file, verbatim; names of equal values, of which the
        function has only one, are its aliases (`graphgrad.ir.value_names`).
    outputs : list of str
        The names of the outputs: those of the graph, where an output that is a sequence is one for
        each of its tensors.

    Raises
    ------
    ModelError
        If a node cannot be translated; it is named.
    """
    with COMPILE_LOCK:
        return _Importer(proto, input_types, variables, custom).translate()


class _Importer:
    """The translation of one graph.

    `_values` has the Relax expression of each ONNX value that is translated, `_known` the value of
    each that is known at import; a name may be in both.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        input_types: Mapping[str, relax.TensorType],
        variables: Collection[str],
        custom: Converters,
    ):
        self._proto = proto
        self._custom = custom
        self._opset = opset(proto)
        self._builder = relax.BlockBuilder()
        self._values: dict[str, relax.Expr] = {}
        self._known: dict[str, KnownValue] = {}
        types = dict(input_types)
        tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        for name in variables:
            dtype = helper.tensor_dtype_to_np_dtype(tensors[name].data_type)
            types[name] = relax.TensorType(list(tensors[name].dims), str(dtype))
        self._parameters = [relax.Var(name, ty) for name, ty in types.items()]
        self._values.update((var.name, var) for var in self._parameters)
        for name, tensor in tensors.items():
            if name not in self._values:
                self._add_constant(name, numpy_helper.to_array(tensor))
        self._arithmetic = ExactArithmetic(
            symbols(extent for var in self._parameters for extent in var.ty.shape or ())
        )
        self._origins = Origins(self._builder, self._parameters)
        self._training_dropouts: list[str] = []
        self._listed = nodes_in(proto.graph)
        self._translations = 0

    def translate(self) -> tuple[IRModule, list[str]]:
        """Build the module; see `import_graph`."""
        graph = self._proto.graph
        has_branches = any(node.op_type == "If" for node in all_nodes(graph))
        # A branch cannot be bound inside a dataflow block.
        dataflow_block = contextlib.nullcontext() if has_branches else self._builder.dataflow()
        with self._builder.function("main", params=self._parameters):
            with dataflow_block:
                self._translate_nodes(graph)
                named_outputs = list(self._outputs(graph))
                if not named_outputs:
                    raise ModelError("its outputs are sequences that hold no tensors")
                outputs = [self._bind_output(*item, has_branches) for item in named_outputs]
            self._builder.emit_func_output(
                outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
            )
        module = self._builder.get()
        main = self._origins.written(module["main"])
        if self._training_dropouts:
            main = main.with_attr(TRAINING_DROPOUTS, self._training_dropouts)
        aliases = equal_names(main)
        module["main"] = main
        module = relax.transform.CanonicalizeBindings()(module)
        module = relax.transform.DeadCodeElimination()(module)
        module["main"] = record_aliases(module["main"], aliases)
        return module, [name for name, _ in named_outputs]

    def _outputs(self, graph: onnx.GraphProto) -> Iterator[tuple[str, relax.Expr]]:
        """Yield the tensors that the graph returns; those of a sequence have names of their own."""
        for output in graph.output:
            value = self._translated_output(output.name)
            if isinstance(value.ty, relax.TupleType):
                for index, tensor in enumerate(Emitter(self._builder).lift(value)):
                    yield element_name(output.name, index), tensor.expr
            else:
                yield output.name, value

    def _translate_nodes(self, graph: onnx.GraphProto) -> None:
        """Translate node by node, and note which bindings each node made."""
        self._translations += sum(map(count, graph.node))
        # Of loops inside loops that are written out, each by itself may be within the limit.
        refuse_many_nodes(self._translations - self._listed, "writing out loops")
        for node in graph.node:
            span = span_of(node.name, node.op_type)
            try:
                self._translate_node(node)
            except Exception as error:  # TVM's translations raise errors of any type
                raise _conversion_error(node, error) from error
            for name in filter(None, node.output):
                value = self._values.get(name)
                if isinstance(value, relax.Var):
                    self._origins.add(value, name, span)

    def _translate_node(self, node: onnx.NodeProto) -> None:
        """Compute or translate a node, and record the values of its outputs."""
        key = _key(node)
        converter = self._custom.get(key)
        # A user's function is called even where the node could be computed at import.
        if converter is None and key[0] == "":
            if self._fold(node):
                return
            if node.op_type in _HANDLED_HERE:
                self._translate_here(node)
                return
        converter = converter or converters.find(node.domain, node.op_type)
        outputs = self._converted(node, converter) if converter else self._translated(node)
        # A translation may give more outputs than the node lists.
        for name, value in zip(node.output, outputs, strict=False):
            if name and isinstance(value, GenericConst) and str(value.ty.dtype) in _EXACT:
                self._add_constant(name, value.value.numpy())
            elif name:
                self._values[name] = self._bound(value)

    def _translate_here(self, node: onnx.NodeProto) -> None:
        """Translate a node of `_HANDLED_HERE`, which need no converter."""
        if node.op_type == "Constant":
            self._add_constant(node.output[0], numpy_helper.to_array(node.attribute[0].t))
        elif node.op_type == "Identity":
            value = self._value(node.input[0])
            is_tensor = isinstance(value, relax.Var) and isinstance(value.ty, relax.TensorType)
            # A binding of its own, for its name; it is merged with the input's in the end.
            self._values[node.output[0]] = self._builder.emit(value) if is_tensor else value
        else:
            self._translate_if(node)

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Compute a node at import if all that it needs is known; return whether it was."""
        outputs: Sequence[KnownValue | None] | None
        if node.op_type in ("Shape", "Size"):
            outputs = self._known_extents(node)
        elif node.op_type == "Identity":
            outputs = (self._known.get(node.input[0]),)
        else:
            inputs = [self._known.get(name) if name else None for name in node.input]
            if any(name and known is None for name, known in zip(node.input, inputs, strict=True)):
                return False
            attributes = stock_operators.attributes_of(node)
            outputs = fold(
                Folding(node.op_type, inputs, attributes, len(node.output), self._arithmetic)
            )
        known_outputs = [value for value in outputs or () if value is not None]
        self._known.update(zip(node.output, known_outputs, strict=False))
        return bool(known_outputs)

    def _known_extents(self, node: onnx.NodeProto) -> tuple[KnownValue] | None:
        """The value of a Shape or Size node; None if its input's extents are not known."""
        known = self._known.get(node.input[0])
        ty = None if known is not None else self._value(node.input[0]).ty
        if known is not None:
            extents = list(known.elements.shape)
        elif ty is not None and has_shape(ty):
            extents = [int(dim) if isinstance(dim, tirx.IntImm) else dim for dim in ty.shape]
        else:
            return None
        if node.op_type == "Shape":
            return (shape_value(extents, stock_operators.attributes_of(node)),)
        return (size_value(extents, self._arithmetic),)

    def _converted(
        self, node: onnx.NodeProto, converter: converters.Converter
    ) -> Sequence[relax.Expr]:
        """Translate a node by a converter, graphgrad's or the user's."""
        emitter = Emitter(self._builder)
        with emitter.at(None, next(filter(None, node.output), node.name)):
            translated = converters.Node(
                name=node.name,
                op_type=node.op_type,
                domain=node.domain,
                opset=self._opset,
                inputs=[self._value(name) if name else None for name in node.input],
                attributes=_read_array_attributes(stock_operators.attributes_of(node)),
                output_count=len(node.output),
                emitter=emitter,
                known=[self._known.get(name) for name in node.input],
                stock=lambda: self._translated(node),
                inline=partial(self._inlined, emitter),
            )
            outputs = converter(translated)
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        if len(outputs) < len(node.output):
            raise ModelError(f"only {len(outputs)} of its {len(node.output)} outputs are served")
        return [output.expr if isinstance(output, Tensor) else output for output in outputs]

    def _translated(self, node: onnx.NodeProto) -> Sequence[relax.Expr]:
        """Translate a node by TVM's importer."""
        inputs = []
        for index, name in enumerate(node.input):
            wants_shape = (node.op_type, index) in stock_operators.SHAPE_INPUTS
            value = (self._value if wants_shape else self._tensor)(name) if name else None
            inputs.append(value)
        if node.op_type == "Dropout" and stock_operators.dropout_trains(inputs):
            self._training_dropouts.append(node.name)
        attributes = stock_operators.attributes_of(node)
        return stock_operators.translate(self._builder, node, inputs, attributes, self._opset)

    def _translate_if(self, node: onnx.NodeProto) -> None:
        """Translate an If node: the branch that is chosen if that is known, else both branches."""
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        condition = self._known.get(node.input[0])
        if condition is not None and condition.is_concrete:
            chosen_branch = branches["then_branch" if condition.array().item() else "else_branch"]
            with self._scope(chosen_branch):
                values = [self._translated_output(value.name) for value in chosen_branch.output]
                # Read inside the scope, which forgets at its end what the branch computed.
                known_values = [self._known.get(value.name) for value in chosen_branch.output]
            named_values = zip(node.output, known_values, strict=True)
            self._known.update((name, value) for name, value in named_values if value is not None)
        else:
            scalar = relax.op.reshape(self._tensor(node.input[0]), [])
            sequences = [self._sequence(branches[f"{which}_branch"]) for which in ("then", "else")]
            result = self._builder.emit(relax.If(self._builder.emit(scalar), *sequences))
            values = [result]
            if len(node.output) > 1:
                values = [
                    self._builder.emit(relax.TupleGetItem(result, index))
                    for index in range(len(node.output))
                ]
        self._values.update(zip(node.output, values, strict=True))

    def _sequence(self, graph: onnx.GraphProto) -> relax.SeqExpr:
        """A branch of an If with its bindings inside, so that only the chosen branch runs."""
        begin_block(self._builder)
        try:
            with self._scope(graph):
                outputs = [self._translated_output(value.name) for value in graph.output]
                returned = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
                result = self._builder.emit(returned)
        finally:
            block = end_block(self._builder)
        return relax.SeqExpr([block], result)

    def _inlined(
        self, emitter: Emitter, graph: onnx.GraphProto, inputs: Sequence[Any]
    ) -> tuple[list[Any], list[KnownValue | None]]:
        """Translate a loop's body at this place of the function.

        Returns its outputs, and for each the value that is known at import, or None.
        """
        names = [value.name for value in graph.input]
        with self._scope(graph, dict(zip(names, inputs, strict=True))):
            outputs = [value.name for value in graph.output]
            known = [self._known.get(name) for name in outputs]
            return [emitter.lift(self._translated_output(name)) for name in outputs], known

    @contextlib.contextmanager
    def _scope(
        self, graph: onnx.GraphProto, inputs: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """A scope of names for an inner graph: it sees the outer values; its own are forgotten.

        `inputs` are the values of the graph's inputs, by name.
        """
        outer_tables = dict(self._values), dict(self._known)
        for name, value in (inputs or {}).items():
            # An outer value of the same name is hidden in both tables.
            self._known.pop(name, None)
            self._values.pop(name, None)
            if isinstance(value, KnownValue):
                self._known[name] = value
            else:
                self._values[name] = expression_of(value)
        try:
            for tensor in graph.initializer:
                self._add_constant(tensor.name, numpy_helper.to_array(tensor))
            self._translate_nodes(graph)
            yield
        finally:
            self._values, self._known = outer_tables

    def _translated_output(self, name: str) -> relax.Expr:
        """An output of a graph: a tensor or a sequence, never a shape."""
        value = self._tensor(name)
        if not isinstance(value, relax.Expr):
            raise ModelError(f"output {name!r} is an optional without a value, not a tensor")
        if isinstance(value.ty, relax.ShapeType):
            return self._builder.normalize(relax.op.shape_to_tensor(value))
        return value

    def _add_constant(self, name: str, array: np.ndarray) -> None:
        """Record a constant; it is known at import, too, if it is small and of a numpy dtype."""
        if array.size <= LARGEST and array.dtype.kind in "biuf":
            self._known[name] = KnownValue.of_array(array)
        self._values[name] = _constant(name, array)

    def _value(self, name: str) -> relax.Expr:
        """A value: a shape if it is a known int64 vector with symbolic elements, else a tensor."""
        if name not in self._values:
            known = self._known[name]
            shape = None if known.is_concrete else known.shape_expression()
            if shape is not None and known.dtype == "int64":
                return self._builder.normalize(shape)
        return self._tensor(name)

    def _tensor(self, name: str) -> relax.Expr:
        """A value as a tensor; a translated value that is a shape stays one."""
        if name not in self._values:
            self._values[name] = self._known[name].tensor(self._builder)
        return self._values[name]

    def _bound(self, value: relax.Expr) -> relax.Expr:
        """Bind an operation that yields a tensor to a variable, at once rather than at its use."""
        is_operation = isinstance(value, relax.Call | relax.TupleGetItem)
        if is_operation and isinstance(value.ty, relax.TensorType):
            return self._builder.emit(value)
        return value

    def _bind_output(self, name: str, value: relax.Expr, has_branches: bool) -> relax.Var:
        """Bind an output of main to a variable that has its name.

        Without branches the function is one dataflow block, and the variable is one of its outputs.
        """
        if not isinstance(value.ty, relax.TensorType):
            raise ModelError(f"output {name!r} is not a tensor: it is a {type(value.ty).__name__}")
        var = self._builder.emit(value) if has_branches else self._builder.emit_output(value)
        self._origins.move_name(name, value, var)
        return var


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    """Domain and name of a node's operator; the standard domain is the empty string."""
    return ("" if node.domain in STANDARD_DOMAINS else node.domain), node.op_type


def _constant(name: str, array: np.ndarray) -> relax.Constant:
    """A constant of a function.

    Raises
    ------
    ModelError
        TVM has no such dtype, or holds its elements in less memory than an array does.
    """
    dtype = str(array.dtype)
    try:
        return relax.const(array, dtype)
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"tensor {name!r} of {dtype} cannot be a constant of TVM's") from error


def _read_array_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        for name, value in attributes.items()
    }


def _conversion_error(node: onnx.NodeProto, cause: Exception) -> ModelError:
    return ModelError(f"node {node.name!r} ({node.op_type}) cannot be imported: {_message(cause)}")


def _message(cause: Exception) -> str:
    """The message of an error in one readable line; those of TVM hold traces and programs."""
    text = str(cause).strip()
    if isinstance(cause, GraphGradError):
        return text
    # Of TVM's errors the last line has the message; the trace stands before it.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[-1] if lines else type(cause).__name__
    line = _PRINTED_OP.sub(r"\1", line)
    return line if len(line) <= _MAX_MESSAGE_CHARACTERS else f"{line[:_MAX_MESSAGE_CHARACTERS]} …"
