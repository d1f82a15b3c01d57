"""Cases: models of one node, by operator, version and seed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from . import arrays, elementwise, images, layers, recurrent
from .draw import DRAWERS, FLOATS, Constant, Draw, Drawn, element_type

FAMILIES = {
    name: sorted(key for key, function in DRAWERS.items() if function.__module__ == module.__name__)
    for name, module in {
        "arrays": arrays,
        "elementwise": elementwise,
        "images": images,
        "layers": layers,
        "recurrent": recurrent,
    }.items()
}
"""The operators of each file, as pairs of domain and name."""

NOT_DRAWN = {
    "results are random": "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform "
    "RandomUniformLike",
    "strings, files or tables, which are not imported": "ImageDecoder RegexFullMatch StringConcat "
    "StringNormalizer StringSplit TfIdfVectorizer",
    "not imported": "BitCast ConvInteger QLinearConv QLinearMatMul",
    "written out by the standard's definition": "CausalConvWithState LinearAttention "
    "MelWeightMatrix SequenceMap SwiGLU",
}
"""Operators without cases, by the reason."""

OLDEST_OPSET = 7
"""The oldest that the importer reads."""

_DOMAIN_VERSIONS = {"com.microsoft": 1}


@dataclass(frozen=True)
class Case:
    """A model of one node, at times with nodes around it that make and unmake sequences.

    Attributes
    ----------
    domain, operator : str
    opset : int
        Of the standard operators.
    index, seed : int
        Which case of this operator in this version.
    drawn : Drawn
    """

    domain: str
    operator: str
    opset: int
    index: int
    seed: int
    drawn: Drawn

    @property
    def name(self) -> str:
        return f"{self.operator}/{self.opset}/{self.seed}.{self.index}"

    @property
    def attributes(self) -> dict[str, Any]:
        return self.drawn.attributes

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The inputs of the model by name."""
        drawn = {f"x{i}": v for i, v in enumerate(self.drawn.inputs) if isinstance(v, np.ndarray)}
        return drawn | self.drawn.extra

    @cached_property
    def constants(self) -> dict[str, np.ndarray]:
        """The initializers of the model by name."""
        pairs = enumerate(self.drawn.inputs)
        return {f"x{i}": np.asarray(v.array) for i, v in pairs if isinstance(v, Constant)}

    @cached_property
    def model(self) -> onnx.ModelProto:
        outputs = self.drawn.outputs
        wanted = [True] * outputs if isinstance(outputs, int) else outputs
        names = [f"y{i}" if want else "" for i, want in enumerate(wanted)]
        inputs = [
            "" if v is None else v if isinstance(v, str) else f"x{i}"
            for i, v in enumerate(self.drawn.inputs)
        ]
        while inputs and not inputs[-1]:
            inputs.pop()
        node = helper.make_node(
            self.operator, inputs, names, "node", domain=self.domain, **self.attributes
        )
        graph = helper.make_graph(
            [*self.drawn.before, node, *self.drawn.after],
            "graph",
            [_typed(name, array) for name, array in self.arrays.items()],
            [onnx.ValueInfoProto(name=n) for n in self.drawn.results or filter(None, names)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, _DOMAIN_VERSIONS.get(self.domain, 1)))
        ir_version = min(helper.OP_SET_ID_VERSION_MAP.get(("ai.onnx", self.opset), 10), 11)
        return helper.make_model(graph, opset_imports=opsets, ir_version=max(ir_version, 8))

    def in_float32(self) -> Case:
        """The case with all floats in float32; a `ValueError` if one of them is beyond it."""

        def narrowed(value: Any) -> Any:
            if isinstance(value, Constant):
                return Constant(narrowed(value.array))
            if not isinstance(value, np.ndarray) or str(value.dtype) not in FLOATS:
                return value
            with np.errstate(over="ignore"):
                narrow = value.astype("float32")
            if (np.isfinite(narrow) != np.isfinite(value)).any() or (
                (narrow == 0) != (value == 0)
            ).any():
                raise ValueError("a number is too large or too small for float32")
            return narrow

        drawn = replace(
            self.drawn,
            inputs=[narrowed(value) for value in self.drawn.inputs],
            extra={name: narrowed(value) for name, value in self.drawn.extra.items()},
        )
        return replace(self, drawn=drawn)

    def typed_model(self, outputs: Sequence[np.ndarray]) -> onnx.ModelProto:
        """The model with the types and ranks of its outputs, which the importer asks for."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for value, array in zip(model.graph.output, outputs, strict=True):
            dtype, shape = element_type(array.dtype), [None] * array.ndim
            value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, shape))
        return model


def versions(domain: str, operator: str) -> dict[int, int]:
    """The versions of an operator that the importer reads: first and last opset of each."""
    if domain not in ("", "ai.onnx.ml", "ai.onnx.preview.training"):
        return {14: 14}
    newest = defs.onnx_opset_version()
    if domain:
        return {14: 14}
    schemas = _schemas()[operator]
    ends = [*sorted(schemas)[1:], newest + 1]
    spans = {since: until - 1 for since, until in zip(sorted(schemas), ends, strict=True)}
    return {
        max(since, OLDEST_OPSET): until
        for since, until in spans.items()
        if until >= OLDEST_OPSET and not schemas[since].deprecated
    }


def cases(
    seed: int, count: int, domain: str, operator: str, only: Mapping[int, int] | None = None
) -> Iterator[Case]:
    """Yield the cases of an operator: so many of each version, or of the versions given alone."""
    for since, until in (only or versions(domain, operator)).items():
        for index in range(count):
            yield case(seed, index, domain, operator, since, until)


def case(seed: int, index: int, domain: str, operator: str, since: int, until: int) -> Case:
    """One case of an operator in a version, which the other arguments determine."""
    key = [seed, index, since, zlib.crc32(f"{domain}.{operator}".encode())]
    generator = np.random.default_rng(key)
    opset = int(generator.integers(since, until + 1))
    schema = (
        None if domain == "com.microsoft" else defs.get_schema(operator, *_version(domain, opset))
    )
    draw = Draw(operator, opset, schema, generator)
    drawn = DRAWERS[domain, operator](draw)
    # numpy's arithmetic makes scalars of arrays without axes.
    drawn.inputs = [np.asarray(v) if isinstance(v, np.generic) else v for v in drawn.inputs]
    drawn.extra = {name: np.asarray(value) for name, value in drawn.extra.items()}
    return Case(domain, operator, opset, index, seed, drawn)


def _version(domain: str, opset: int) -> tuple[int, str]:
    return (1, domain) if domain else (opset, "")


def _schemas() -> dict[str, dict[int, Any]]:
    """The schemas of the standard domain by name and first version."""
    result: dict[str, dict[int, Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            result.setdefault(schema.name, {})[schema.since_version] = schema
    return result


def standard_operators() -> set[str]:
    """The names of the standard's operators that are not deprecated in every version read."""
    return set(_schemas())


def _typed(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type(array.dtype), array.shape)
