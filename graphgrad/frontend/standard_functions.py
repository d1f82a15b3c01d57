"""Expansion of operators that have no translation, where ONNX defines them by other operators."""

from __future__ import annotations

import onnx
import onnx.inliner

from .onnx_graph import STANDARD_DOMAINS, all_nodes
from .onnx_importer import Converters, is_supported
from .onnx_load import INLINER_ERRORS, check


def expand_standard_functions(proto: onnx.ModelProto, custom: Converters) -> list[str]:
    """Write out the operators that the importer does not know and the standard defines.

    Where another operator is not known and not defined either, the model stays as it is.

    Parameters
    ----------
    proto : onnx.ModelProto
        Changed in place.
    custom : mapping
        Converters of the user's own, by domain and operator.

    Returns
    -------
    list of str
        A note that names the operators, or nothing.

    Raises
    ------
    ModelError
        If the model breaks the ONNX standard.
    """
    expanded: set[tuple[str, str]] = set()
    # Again and again, as a definition may use operators that are unknown in turn. Those expanded
    # before are not tried twice, so that it ends.
    while operators := _defined(proto, custom) - expanded:
        check(proto)  # the inliner trusts what it reads
        if not _inline(proto, sorted(operators)):
            break
        expanded |= operators
    names = ", ".join(sorted(name for _, name in expanded))
    return [f"operators written out as the standard defines them: {names}"] * bool(expanded)


def _defined(proto: onnx.ModelProto, custom: Converters) -> set[tuple[str, str]]:
    """The unknown operators, if the standard defines all of them; else the empty set."""
    versions = {
        _plain(operator_set.domain): operator_set.version for operator_set in proto.opset_import
    }
    operators = set()
    for node in all_nodes(proto.graph):
        if is_supported(node, custom):
            continue
        domain = _plain(node.domain)
        if not _has_function(node.op_type, domain, versions.get(domain, 1)):
            return set()
        operators.add((node.domain, node.op_type))
    return operators


def _plain(domain: str) -> str:
    """A domain, where both names of the standard one are the empty string."""
    return "" if domain in STANDARD_DOMAINS else domain


def _has_function(name: str, domain: str, version: int) -> bool:
    """Whether the standard defines an operator, in a version of its domain, by others."""
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _write_defaults(proto: onnx.ModelProto, operators: list[tuple[str, str]]) -> None:
    """Write out the defaults of attributes that nodes leave out, in place.

    Where a function reads an attribute, the inliner copies what the node has, and leaves the
    attribute out where the node has none.
    """
    versions = {used.domain: used.version for used in proto.opset_import}
    for node in all_nodes(proto.graph):
        if (node.domain, node.op_type) not in operators:
            continue
        schema = onnx.defs.get_schema(
            node.op_type, versions.get(node.domain, 1), _plain(node.domain)
        )
        names = {attribute.name for attribute in node.attribute}
        node.attribute.extend(
            attribute.default_value
            for name, attribute in schema.attributes.items()
            if name not in names and attribute.default_value.name
        )


def _inline(proto: onnx.ModelProto, operators: list[tuple[str, str]]) -> bool:
    """Replace operators by their functions; return whether that could be done."""
    # The inliner asks for the type of every input, also of one that is left out, whose name is "".
    omitted_input = onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
    proto.graph.value_info.append(omitted_input)
    _write_defaults(proto, operators)
    try:
        inlined = onnx.inliner.inline_selected_functions(
            proto, operators, inline_schema_functions=True
        )
    except INLINER_ERRORS:  # also where the type of an input cannot be inferred
        inlined = proto
    is_inlined = inlined is not proto
    proto.CopyFrom(inlined)
    # The entry made above is taken out again.
    named_values = [value for value in proto.graph.value_info if value.name]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(named_values)
    return is_inlined
