"""The provenance of a binding: its ONNX node, and who wrote its gradient.

It is carried in ``Call.span``, the one field that every Relax pass before legalization keeps. It is
written as JSON into the span's source name, so that no type has to be registered with TVM.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tvm.ir import SourceName, Span

from ..errors import ArgumentError

ORIGINS = ("hand", "derived", "user")

_PREFIX = "graphgrad:"


@dataclass(frozen=True)
class Provenance:
    """Where a binding comes from; each attribute is ``None`` where it is not known.

    Attributes
    ----------
    node : str or None
        Name of the ONNX node.
    op_type : str or None
        Operator of that node, e.g. ``"Conv"``.
    origin : str or None
        Who wrote the gradient that this binding belongs to: ``"hand"``, ``"derived"`` or
        ``"user"``; ``None`` for a binding of the primal program.
    primal : bool
        Whether the binding computes a primal value in spite of its origin: it stands in the form
        in which a composite is written out, whose gradient has that origin.
    rule : str or None
        Where the user's rule is written, as ``file:line``, of which the binding is.
    """

    node: str | None = None
    op_type: str | None = None
    origin: str | None = None
    primal: bool = False
    rule: str | None = None


def span_of(
    node_name: str | None,
    op_type: str | None,
    origin: str | None = None,
    *,
    primal: bool = False,
    rule: str | None = None,
) -> Span:
    """A span that carries a provenance.

    Parameters
    ----------
    node_name, op_type : str or None
        Name and operator of the ONNX node.
    origin : str or None
        ``"hand"``, ``"derived"``, ``"user"`` or ``None``.
    primal, rule
        As in `Provenance`.

    Raises
    ------
    ArgumentError
        If `origin` is none of these.
    """
    if origin is not None and origin not in ORIGINS:
        raise ArgumentError(f"unknown gradient origin {origin!r}: expected one of {ORIGINS}")
    fields: dict[str, Any] = {"node": node_name, "op_type": op_type, "origin": origin}
    # Most have neither, and spans are written for every binding.
    fields |= {"primal": True} if primal else {}
    fields |= {"rule": rule} if rule else {}
    text = json.dumps(fields)
    return Span(SourceName(_PREFIX + text), 0, 0, 0, 0)


def read(span: Span | None) -> Provenance:
    """The provenance that a span carries; an empty one if graphgrad did not make the span."""
    name = getattr(getattr(span, "source_name", None), "name", "")
    if not name.startswith(_PREFIX):
        return Provenance()
    return Provenance(**json.loads(name.removeprefix(_PREFIX)))


def gradient_span(
    span: Span | None, origin: str, *, primal: bool = False, rule: str | None = None
) -> Span:
    """A span for a gradient binding of the node that `span` belongs to.

    With `primal` it is for a primal one, whose gradient has that origin; `rule` says where a user's
    rule is written.

    Raises
    ------
    ArgumentError
        If `origin` is none of ``"hand"``, ``"derived"``, ``"user"``.
    """
    source = read(span)
    return span_of(source.node, source.op_type, origin, primal=primal, rule=rule)
