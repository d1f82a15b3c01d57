"""`coverage`: which ops of a model have which gradient, before anything runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import tvm
from rich.console import Group
from rich.table import Table
from tvm import relax

from ..autodiff.activity import (
    Activity,
    has_cotangent,
    location,
    op_name,
    select,
    stops_derivatives,
    survey,
    variables_in,
)
from ..errors import ArgumentError
from ..frontend.mode import specialize
from ..frontend.model import Model
from ..ir.calls import result_types
from ..ir.inline import inline_calls
from ..ir.program import Program
from ..ir.tensor import is_float
from ..precision.choice import Precision, precision_of
from ..precision.mixed import mix_precision
from .table import listed, plain, table

Provenance = Literal["hand", "derived", "user", "nondifferentiable", "missing", "not needed"]

_Occurrences = dict[tuple[Provenance, str, str], list[str]]
"""Locations by provenance, op and precision."""

_OFF_PATH = "no gradient needed"
_STOPS = "declared: its derivative is zero or undefined"


@dataclass(frozen=True)
class Row:
    """One op of a model.

    Attributes
    ----------
    op : str
    count : int
        How often it is called.
    provenance : str
        Who wrote its gradient, ``"hand"`` (graphgrad), ``"user"`` or ``"derived"``; or
        ``"nondifferentiable"``, where the gradient ends by declaration; or ``"missing"``. Off the
        way from the differentiated values to the outputs: ``"not needed"``.
    reason : str
        Why it is missing or not needed.
    where : list of str
        Names of the ONNX nodes, or of the values where there is no node.
    precision : str
        The dtype of the floats that it computes; empty where it computes none.
    """

    op: str
    count: int
    provenance: Provenance
    reason: str
    where: list[str]
    precision: str = ""


@dataclass(frozen=True)
class Coverage:
    """Which ops have which gradient; returned by `coverage`.

    Attributes
    ----------
    rows : list of Row
        The ops on the way from the parameters and float inputs to the float outputs; those that
        are missing first.
    off_path : list of Row
        The calls that need no gradient.
    """

    rows: list[Row]
    off_path: list[Row]

    @property
    def missing(self) -> list[Row]:
        """The ops that have no gradient and need one."""
        return [row for row in self.rows if row.provenance == "missing"]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def to_json(self) -> str:
        """The facts as JSON: an object with ``complete``, ``rows`` and ``off_path``."""
        return json.dumps(self.facts())

    def facts(self) -> dict[str, Any]:
        """The facts in plain values."""
        return {
            "complete": self.complete,
            "rows": [asdict(row) for row in self.rows],
            "off_path": [asdict(row) for row in self.off_path],
        }

    def __rich__(self) -> Group:
        return Group(self._table([*self.rows, *self.off_path]), self.summary())

    def __str__(self) -> str:
        return plain(self)

    def table(self) -> str:
        """The ops that need a gradient as text, a line for each."""
        return plain(self._table(self.rows))

    def _table(self, rows: Sequence[Row]) -> Table:
        """Rows as a table, with their precision where there are several."""
        is_mixed = len({row.precision for row in (*self.rows, *self.off_path)} - {""}) > 1
        header = ["op", "count", "precision", "gradient", "where"]
        lines = [
            [row.op, str(row.count), row.precision, row.provenance, _where_text(row)]
            for row in rows
        ]
        if not is_mixed:
            header, *lines = ([*cells[:2], *cells[3:]] for cells in (header, *lines))
        return table(header, lines, right=[1])

    def summary(self) -> str:
        """The line below the table: what is missing."""
        if self.complete:
            return "nothing is missing"
        calls = sum(row.count for row in self.missing)
        return f"missing: {len(self.missing)} op(s) in {calls} call(s)"


def coverage(
    subject: Model | tvm.IRModule,
    func: str = "main",
    wrt: Sequence[str] | None = None,
    rules: str = "auto",
    precision: str | Precision = "float32",
) -> Coverage:
    """Say which ops of a model have which gradient.

    Nothing is compiled or run. Counted are the calls between the values that can be differentiated
    (the parameters that train and the float inputs) and the float outputs; calls of Relax functions
    are counted with what is inside them.

    Parameters
    ----------
    subject : Model or IRModule
    func : str
        Name of the function of an IRModule.
    wrt : sequence of str, optional
        What is differentiated, by name; default: every float input and parameter that trains.
    rules : "auto" or "derived"
        As of `graphgrad.vjp`.
    precision : str or Precision
        In which the model computes, as of `train_step`. Casts between two precisions are ops, too.

    Returns
    -------
    Coverage
        A table of op, count, precision (where there are several), provenance (``hand``,
        ``derived``, ``user``, ``nondifferentiable`` or ``missing``), and the ONNX nodes; ``str``
        shows it, ``.to_json()`` gives it to programs.

    Raises
    ------
    ArgumentError
        `subject` is neither, or has no such function or value; or `rules` is unknown.
    NotDifferentiableError
        A value in `wrt` is no float tensor.

    Examples
    --------
    >>> print(gg.coverage(gg.from_onnx("model.onnx")))
    """
    chosen = precision_of(precision)
    if isinstance(subject, Model):
        program = inline_calls(specialize(subject, training=None), "main", rules)
        names = {*subject.inputs, *subject.trainable()}
        program = mix_precision(program, chosen, subject.weights, wrt or ())
        default = [param for param in program.params if param.name in names]
    elif isinstance(subject, tvm.IRModule):
        program = mix_precision(inline_calls(subject, func, rules), chosen, keep=wrt or ())
        default = list(program.params)
    else:
        raise ArgumentError(
            f"expected a graphgrad.Model or an IRModule, given a {type(subject).__name__}"
        )
    if wrt is not None:
        return _of_program(program, select(program, wrt))
    return _of_program(program, [param for param in default if has_cotangent(param.ty)])


def _of_program(program: Program, wrt: Iterable[Any]) -> Coverage:
    """The coverage of a program that is differentiated with respect to some variables."""
    activity = survey(program, wrt)
    occurrences: _Occurrences = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    for var, value in program.bindings:
        if isinstance(value, relax.Call | relax.If):
            name = op_name(value)
            key = _provenance(program, activity, var, value), name, _precision(var.ty)
            occurrences[key].append(location(var, value))
            if var in activity.missing:
                reasons[name].append(activity.reasons[var])
    order: Sequence[Provenance] = ("missing", "nondifferentiable", "user", "derived", "hand")
    return Coverage(
        [row for provenance in order for row in _rows(occurrences, provenance, reasons)],
        _rows(occurrences, "not needed", reasons),
    )


def _rows(
    occurrences: _Occurrences,
    provenance: Provenance,
    reasons: dict[str, list[str]],
) -> list[Row]:
    """The rows of the ops of one provenance, by name."""
    reason_of_kind = {"nondifferentiable": _STOPS, "not needed": _OFF_PATH}
    rows = []
    for (kind, op, precision), locations in sorted(occurrences.items()):
        if kind == provenance:
            reason = (
                "; ".join(dict.fromkeys(reasons[op]))
                if kind == "missing"
                else reason_of_kind.get(kind, "")
            )
            rows.append(Row(op, len(locations), kind, reason, locations, precision))
    return rows


def _provenance(program: Program, activity: Activity, var: Any, value: Any) -> Provenance:
    """The origin of a call's gradient, or why it has none."""
    if var in activity.missing:
        return "missing"
    if var in activity.rules:
        return activity.rules[var].origin
    # On the way from the inputs, but cut off there: no cotangent reaches what it reads.
    varied = any(source in activity.varied for source in variables_in(value))
    if varied and stops_derivatives(program, value) and _is_float_value(var.ty):
        return "nondifferentiable"
    return "not needed"


def _precision(ty: Any) -> str:
    """The dtype of the first float in a value of a type; empty if there is none."""
    dtypes = (str(part.dtype) for part in result_types(ty) if isinstance(part, relax.TensorType))
    return next(filter(is_float, dtypes), "")


def _is_float_value(ty: Any) -> bool:
    """Whether a value is of floats: a tensor, a tuple with one, or a scalar."""
    return has_cotangent(ty) or (isinstance(ty, tvm.ir.PrimType) and is_float(str(ty)))


def _where_text(row: Row) -> str:
    """The last column of a row: where the op is, or why it has no gradient, or both."""
    locations = listed(row.where)
    return f"{locations}: {row.reason}" if row.provenance == "missing" else row.reason or locations
