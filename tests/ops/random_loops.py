"""Random loops: one list of instructions as the body of `gg.scan`, of an ONNX Scan, and in torch.

The values of a body are numbered: the carry, the rows of this step, what it reads from outside, and
one for each instruction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tvm import relax, tirx

import graphgrad as gg
from tests.fallback.choices import Choices

op = relax.op
Tensor = torch.Tensor

EPSILON = 2.0**-6
"""Of norms: a number that float32 holds, in which ONNX keeps it."""

LARGEST = 20_000
"""Elements of a value of a step, at most."""


@dataclass(frozen=True)
class Operation:
    """An operation in three languages.

    Attributes
    ----------
    relax, torch : callable
        Take values and settings.
    onnx : callable or None
        Takes a `Graph` before the same, of names.
    """

    relax: Callable[..., Any]
    torch: Callable[..., Tensor]
    onnx: Callable[..., str] | None = None


@dataclass(frozen=True)
class Instruction:
    operation: str
    operands: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Body:
    """A step: how many values it is given of each kind, and which ones it gives."""

    carries: int
    rows: int
    instructions: list[Instruction] = field(default_factory=list)
    following: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def in_relax(self, start: Sequence[Any], rows: Sequence[Any], outer: Sequence[Any]) -> Any:
        """Emit the loop; return the last carry and the stacked results."""

        def step(carry: Sequence[Any], row: Sequence[Any]) -> Any:
            builder = relax.BlockBuilder.current()
            values = [*carry, *row, *outer]
            for one in self.instructions:
                call = OPERATIONS[one.operation].relax
                operands = [values[number] for number in one.operands]
                values.append(builder.emit(call(*operands, **one.settings)))
            return [values[n] for n in self.following], [values[n] for n in self.results]

        return gg.scan(step, list(start), list(rows), None if rows else WITHOUT_ROWS)

    def in_torch(
        self, start: Sequence[Tensor], rows: Sequence[Tensor], outer: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the last carry and the stacked results."""
        carry, stacked = list(start), []
        for time in range(len(rows[0]) if rows else WITHOUT_ROWS):
            values = self.values([*carry, *(row[time] for row in rows), *outer])
            carry = [values[number] for number in self.following]
            stacked.append([values[number] for number in self.results])
        return carry, [torch.stack(each) for each in zip(*stacked, strict=True)]

    def values(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Return all values of one step."""
        values = list(given)
        for one in self.instructions:
            operands = [values[number] for number in one.operands]
            values.append(OPERATIONS[one.operation].torch(*operands, **one.settings))
        return values


WITHOUT_ROWS = 3
"""Steps of a loop that is given no rows."""


def _slice(x: Any, begin: int, end: int) -> Any:
    return op.strided_slice(x, [-1], [begin], [end])


def _inner(start: Any, table: Any, *outer: Any, body: Body, last: bool) -> Any:
    carry, results = body.in_relax([start], [table], outer)
    return carry[0] if last else results[0]


def _inner_torch(start: Tensor, table: Tensor, *outer: Tensor, body: Body, last: bool) -> Tensor:
    carry, results = body.in_torch([start], [table], outer)
    return carry[0] if last else results[0]


def _number(x: Any, number: int) -> Any:
    return relax.const(number, str(x.ty.dtype))


def _unary(name: str, function: Callable[[Tensor], Tensor], onnx: str) -> Operation:
    return Operation(getattr(op, name), function, lambda g, x: g.node(onnx, x))


def _binary(name: str, function: Callable[..., Tensor], onnx: str) -> Operation:
    return Operation(getattr(op, name), function, lambda g, a, b: g.node(onnx, a, b))


def _reduction(name: str, function: Callable[..., Tensor], onnx: str) -> Operation:
    def in_onnx(g: Graph, x: str, axis: int) -> str:
        if onnx == "ReduceSum":
            return g.node(onnx, x, g.constant([axis]), keepdims=1)
        return g.node(onnx, x, axes=[axis], keepdims=1)

    return Operation(
        lambda x, axis: getattr(op, name)(x, axis, True),
        lambda x, axis: function(x, axis, True),
        in_onnx,
    )


OPERATIONS: dict[str, Operation] = {
    "tanh": _unary("tanh", torch.tanh, "Tanh"),
    "sigmoid": _unary("sigmoid", torch.sigmoid, "Sigmoid"),
    "sin": _unary("sin", torch.sin, "Sin"),
    "negative": _unary("negative", torch.neg, "Neg"),
    "relu": Operation(op.nn.relu, torch.relu, lambda g, x: g.node("Relu", x)),
    "silu": Operation(
        op.nn.silu,
        torch.nn.functional.silu,
        lambda g, x: g.node("Mul", x, g.node("Sigmoid", x)),
    ),
    "half": Operation(
        lambda x: op.multiply(x, relax.const(0.5, str(x.ty.dtype))),
        lambda x: 0.5 * x,
        lambda g, x: g.node("Mul", x, g.float(0.5)),
    ),
    "add": _binary("add", torch.add, "Add"),
    "subtract": _binary("subtract", torch.sub, "Sub"),
    "multiply": _binary("multiply", torch.mul, "Mul"),
    "maximum": _binary("maximum", torch.maximum, "Max"),
    "minimum": _binary("minimum", torch.minimum, "Min"),
    "mix": Operation(
        lambda z, a, b: op.add(op.multiply(z, a), op.multiply(op.subtract(_one(z), z), b)),
        lambda z, a, b: z * a + (1 - z) * b,
        lambda g, z, a, b: g.node(
            "Add", g.node("Mul", z, a), g.node("Mul", g.node("Sub", g.float(1), z), b)
        ),
    ),
    "matmul": _binary("matmul", torch.matmul, "MatMul"),
    "matmul_transposed": Operation(
        lambda x, w: op.matmul(x, op.permute_dims(w)),
        lambda x, w: x @ w.T,
        lambda g, x, w: g.node("MatMul", x, g.node("Transpose", w, perm=[1, 0])),
    ),
    "layer_norm": Operation(
        lambda x, gain, bias: op.nn.layer_norm(x, gain, bias, [-1], epsilon=EPSILON),
        lambda x, gain, bias: torch.nn.functional.layer_norm(x, gain.shape, gain, bias, EPSILON),
        lambda g, x, gain, bias: g.node("LayerNormalization", x, gain, bias, epsilon=EPSILON),
    ),
    "softmax": Operation(
        lambda x: op.nn.softmax(x, -1),
        lambda x: torch.softmax(x, -1),
        lambda g, x: g.node("Softmax", x, axis=-1),
    ),
    "sum": _reduction("sum", torch.sum, "ReduceSum"),
    "mean": _reduction("mean", torch.mean, "ReduceMean"),
    "max": _reduction("max", torch.amax, "ReduceMax"),
    "cumsum": Operation(
        lambda x: op.cumsum(x, -1),
        lambda x: x.cumsum(-1),
        lambda g, x: g.node("CumSum", x, g.constant(-1)),
    ),
    "slice": Operation(
        _slice,
        lambda x, begin, end: x[..., begin:end],
        lambda g, x, begin, end: g.node("Slice", x, *map(g.constant, ([begin], [end], [-1]))),
    ),
    "concat": Operation(
        lambda a, b: op.concat([a, b], -1),
        lambda a, b: torch.cat([a, b], -1),
        lambda g, a, b: g.node("Concat", a, b, axis=-1),
    ),
    "outer": Operation(
        lambda a, b: op.multiply(op.expand_dims(a, -1), op.expand_dims(b, 1)),
        lambda a, b: a.unsqueeze(-1) * b.unsqueeze(1),
        lambda g, a, b: g.node(
            "Mul", *(g.node("Unsqueeze", x, g.constant([axis])) for x, axis in ((a, -1), (b, 1)))
        ),
    ),
    "contract": Operation(
        lambda a, b: op.sum(op.multiply(a, op.expand_dims(b, 1)), -1),
        lambda a, b: (a * b.unsqueeze(1)).sum(-1),
        lambda g, a, b: g.node(
            "ReduceSum",
            g.node("Mul", a, g.node("Unsqueeze", b, g.constant([1]))),
            g.constant([-1]),
            keepdims=0,
        ),
    ),
    "attend": Operation(
        lambda x, w: op.matmul(op.nn.softmax(op.matmul(x, op.permute_dims(w)), -1), w),
        lambda x, w: torch.softmax(x @ w.T, -1) @ w,
        lambda g, x, w: g.node(
            "MatMul",
            g.node("Softmax", g.node("MatMul", x, g.node("Transpose", w, perm=[1, 0])), axis=-1),
            w,
        ),
    ),
    "where": Operation(op.where, torch.where, lambda g, c, a, b: g.node("Where", c, a, b)),
    "where_greater": Operation(
        lambda a, b, c: op.where(op.greater(a, b), a, c),
        lambda a, b, c: torch.where(a > b, a, c),
        lambda g, a, b, c: g.node("Where", g.node("Greater", a, b), a, c),
    ),
    "less": _binary("less", torch.lt, "Less"),
    "is_even": Operation(
        lambda n: op.equal(op.floor_mod(n, _number(n, 2)), _number(n, 0)),
        lambda n: n % 2 == 0,
        lambda g, n: g.node("Equal", g.node("Mod", n, g.constant(2)), g.constant(0)),
    ),
    "count": Operation(
        lambda n, by: op.add(n, _number(n, by)),
        lambda n, by: n + by,
        lambda g, n, by: g.node("Add", n, g.constant(by)),
    ),
    "row_of": Operation(
        lambda table, n, rows: op.take(table, op.floor_mod(n, _number(n, rows)), 0),
        lambda table, n, rows: table[n % rows],
        lambda g, table, n, rows: g.node("Gather", table, g.node("Mod", n, g.constant(rows))),
    ),
    "inner": Operation(_inner, _inner_torch),
    "features_first": Operation(
        op.permute_dims, lambda x: x.T, lambda g, x: g.node("Transpose", x, perm=[1, 0])
    ),
}


def _one(x: Any) -> Any:
    return relax.const(1.0, str(x.ty.dtype))


@dataclass
class Loop:
    """A body with arrays: those of the first carry, of the rows of all steps, and of the outside.

    Floats are float64, whatever the dtype of the program.

    Attributes
    ----------
    symbols : dict of str to int
        Extents that are symbolic: ``time``, the first of rows, and ``batch``.
    of_batch : set of int
        The numbers of the arrays that have the batch as an extent.
    """

    body: Body
    start: list[np.ndarray]
    rows: list[np.ndarray]
    outer: list[np.ndarray]
    dtype: str
    symbols: frozenset[str] = frozenset()
    of_batch: frozenset[int] = frozenset()

    @property
    def arrays(self) -> list[np.ndarray]:
        """What the function takes, in order."""
        arrays = [*self.start, *self.rows, *self.outer]
        return [a.astype(self.dtype) if a.dtype == np.float64 else a for a in arrays]

    def module(self) -> Any:
        """Return a module whose ``main`` is the loop."""
        builder = relax.BlockBuilder()
        symbols = {name: tirx.Var(name, "int64") for name in sorted(self.symbols)}
        params = []
        for number, array in enumerate(self.arrays):
            shape: list[Any] = list(array.shape)
            is_row = len(self.start) <= number < len(self.start) + len(self.rows)
            if is_row:
                shape[0] = symbols.get("time", shape[0])
            if number in self.of_batch:
                shape[is_row] = symbols.get("batch", shape[is_row])
            params.append(relax.Var(f"x{number}", relax.TensorType(shape, str(array.dtype))))
        with builder.function("main", params):
            with builder.dataflow():
                last, results = self.body.in_relax(*self.grouped(params))
                output = builder.emit_output(relax.Tuple([*last, *results]))
            builder.emit_func_output(output)
        return builder.get()

    def in_torch(self, *tensors: Tensor) -> list[Tensor]:
        """Return what the function computes."""
        last, results = self.body.in_torch(*self.grouped(tensors))
        return [*last, *results]

    def grouped(self, items: Sequence[Any]) -> tuple[Sequence[Any], ...]:
        """Return what belongs to the first carry, to rows and to the outside."""
        first, second = len(self.start), len(self.start) + len(self.rows)
        return items[:first], items[first:second], items[second:]

    def __str__(self) -> str:
        steps = len(self.rows[0]) if self.rows else WITHOUT_ROWS
        lines = [f"{self.dtype}, {steps} steps; symbolic: {', '.join(sorted(self.symbols))}"]
        groups = {"carry": self.start, "row": [row[0] for row in self.rows], "outer": self.outer}
        number = 0
        for name, arrays in groups.items():
            for array in arrays:
                lines.append(f"v{number}: {name} {array.dtype}{list(array.shape)}")
                number += 1
        return "\n".join([*lines, *_text(self.body, number)])


def _text(body: Body, number: int) -> list[str]:
    """The instructions of a body, whose first value has a number."""
    lines = []
    for one in body.instructions:
        settings = {k: v for k, v in one.settings.items() if k != "body"}
        operands = ", ".join(f"v{n}" for n in one.operands)
        lines.append(f"v{number} = {one.operation}({operands}) {settings or ''}")
        if "body" in one.settings:
            lines += [f"    {line}" for line in _text(one.settings["body"], len(one.operands))]
        number += 1
    carry, results = (", ".join(f"v{n}" for n in ns) for ns in (body.following, body.results))
    return [*lines, f"carry {carry}; results {results}"]


class Graph:
    """An inner graph of ONNX while it is written, of the floats of a dtype."""

    def __init__(self, dtype: str):
        self.nodes: list[Any] = []
        self._dtype = dtype

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        from onnx import helper

        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """Add a constant, of integers."""
        from onnx import numpy_helper

        return self.node("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def float(self, value: float) -> str:
        """Add a constant float."""
        return self.constant(value, self._dtype)


class Author:
    """Writes a body, one instruction after the other.

    Every value is computed for the first step as it is added, so that its shape is known.

    Parameters
    ----------
    choices : Choices
    is_known : callable
        Whether an operation may be used.
    """

    def __init__(self, choices: Choices, is_known: Callable[[str], bool]):
        self.choices = choices
        self.is_known = is_known
        self.generator = np.random.default_rng(int(choices.number() * 2**31))
        self.start: list[np.ndarray] = []
        self.rows: list[np.ndarray] = []
        self.outer: list[np.ndarray] = []
        self.of_batch: list[int] = []
        self.body = Body(0, 0)
        self.values: list[Tensor] = []
        self.is_tiny = choices.chance(0.3)

    def write(self, dtype: str) -> Loop:
        """Write a loop of random extents."""
        choices = self.choices
        steps = choices.integer(1, 9 if choices.chance(0.9) else 40)
        self.batch = choices.integer(1, 3) if self.is_tiny else choices.integer(1, 17)
        self.widths = [self._width(), self._width()]
        self.counter = self.lengths = None
        for _ in range(choices.integer(1, 3)):
            self.start.append(self._array(self._shape()))
        if choices.chance(0.5):
            self.counter = len(self.start)
            self.start.append(np.array(choices.integer(0, 3)))
        counts_rows = choices.integer(0, 3)
        self.rows = [self._array([steps, *self._shape()]) for _ in range(counts_rows)]
        if counts_rows and choices.chance(0.3):
            shape = [steps, self.batch, choices.pick([1, self.widths[0]])]
            self.rows.append(self.generator.uniform(size=shape) < 0.6)
        # All of what is outside comes before the instructions, and is made as they ask for it.
        self.values = [torch.from_numpy(array) for array in self.start]
        self.values += [torch.from_numpy(row[0]) for row in self.rows]
        self.steps = steps if counts_rows else WITHOUT_ROWS
        self._pending: list[tuple[str | None, list[Any], dict[str, Any]]] = []
        for _ in range(choices.integer(2, 9)):
            self._move()
        self._finish()
        symbols = {name for name in ("time", "batch") if choices.chance(0.15)}
        weights = [a.shape for n, a in enumerate(self.outer) if n not in self.of_batch]
        # A kernel in the body has static extents, and others must not be the batch by chance.
        if "inner" in {name for name, _, _ in self._pending} or any(
            self.batch in shape for shape in [self.widths, *weights]
        ):
            symbols -= {"batch"}
        return self._loop(dtype, frozenset(symbols))

    def _width(self) -> int:
        return self.choices.integer(1, 3) if self.is_tiny else self.choices.integer(5, 130)

    def _shape(self) -> list[int]:
        """The shape of a carry or of a row."""
        width = self.choices.pick(self.widths)
        if self.choices.chance(0.15):
            return [self.batch, min(width, 40), self.choices.integer(1, 8)]
        return [self.batch, width]

    def _array(self, shape: Sequence[int], scale: float = 1.0) -> np.ndarray:
        return scale * self.generator.uniform(-1, 1, list(shape))

    def _outside(self, array: np.ndarray, has_batch: bool = False) -> int:
        """Return the number of a new value that the body reads from outside.

        The first extent of one that has a batch is that.
        """
        if has_batch:
            self.of_batch.append(len(self.outer))
        self.outer.append(array)
        self.values.append(torch.from_numpy(np.asarray(array)))
        self._pending.append((None, [len(self.outer) - 1], {}))
        return len(self.values) - 1

    def _add(self, operation: str, *operands: int, **settings: Any) -> int:
        """Add an instruction; return the number of its value."""
        tensors = [self.values[number] for number in operands]
        self.values.append(OPERATIONS[operation].torch(*tensors, **settings))
        self._pending.append((operation, list(operands), settings))
        return len(self.values) - 1

    def _floats(self, *ranks: int) -> list[int]:
        """The numbers of the values that are floats of some ranks."""
        return [
            number
            for number, value in enumerate(self.values)
            if value.is_floating_point() and (not ranks or value.ndim in ranks)
        ]

    def _recent(self, numbers: Sequence[int]) -> int:
        """One of some values, the last ones more often."""
        place = self.choices.number() ** 0.6
        return numbers[min(int(place * len(numbers)), len(numbers) - 1)]

    def _alike(self, number: int) -> list[int]:
        """The floats with which one may be combined."""
        shape = self.values[number].shape
        found = []
        for other in self._floats():
            try:
                joined = torch.broadcast_shapes(shape, self.values[other].shape)
            except RuntimeError:
                continue
            if len(joined) <= 3 and math.prod(joined) <= LARGEST:
                found.append(other)
        return found

    def _same(self, number: int) -> list[int]:
        shape = self.values[number].shape
        return [other for other in self._floats() if self.values[other].shape == shape]

    def _weight(self, *shape: int) -> int:
        return self._outside(self._array(shape, 1.5 / math.sqrt(max(shape[-1], shape[0]))))

    def _move(self) -> None:
        """Add an instruction or two."""
        moves = [
            self._unary, self._binary, self._matmul, self._matmul, self._norm, self._reduce,
            self._cumsum, self._part, self._concat, self._choose, self._outer, self._contract,
            self._attend, self._row, self._scan, self._mix,
        ]  # fmt: skip
        self.choices.pick(moves)()

    def _unary(self) -> None:
        names = ["tanh", "sigmoid", "sin", "negative", "silu", "half", "relu"]
        self._add(self.choices.pick(names), self._recent(self._floats(1, 2, 3)))

    def _binary(self) -> None:
        a = self._recent(self._floats(1, 2, 3))
        b = self._recent(self._alike(a))
        names = ["add", "multiply", "subtract", "maximum", "minimum"]
        self._add(self.choices.pick(names), *self.choices.pick([(a, b), (b, a)]))

    def _mix(self) -> None:
        a = self._recent(self._floats(2, 3))
        same = self._same(a)
        z = self._add("sigmoid", self._recent(same))
        self._add("mix", z, a, self._recent(same))

    def _matmul(self) -> None:
        if not (floats := self._floats(2)):
            return
        x = self._recent(floats)
        before = self.values[x].shape[-1]
        after = self.choices.pick([*self.widths, self.widths[0] * self.choices.integer(1, 3)])
        if self.choices.chance(0.4):
            self._add("matmul_transposed", x, self._weight(after, before))
        else:
            self._add("matmul", x, self._weight(before, after))

    def _norm(self) -> None:
        if not (floats := self._floats(2)):
            return
        x = self._recent(floats)
        width = self.values[x].shape[-1]
        if self.choices.chance(0.3):
            self._add("softmax", x)
        else:
            gain = self._outside(self.generator.uniform(0.5, 1.5, [width]))
            self._add("layer_norm", x, gain, self._weight(width))

    def _reduce(self) -> None:
        x = self._recent(self._floats(2, 3))
        axis = -1 if self.choices.chance(0.8) else 0
        self._add(self.choices.pick(["mean", "sum", "max"]), x, axis=axis)

    def _cumsum(self) -> None:
        self._add("cumsum", self._recent(self._floats(2)) if self._floats(2) else 0)

    def _part(self) -> None:
        x = self._recent(self._floats(1, 2, 3))
        width = self.values[x].shape[-1]
        begin = self.choices.integer(0, width - 1)
        self._add("slice", x, begin=begin, end=self.choices.integer(begin + 1, width))

    def _concat(self) -> None:
        a = self._recent(self._floats(2, 3))
        shape = self.values[a].shape[:-1]
        alike = [n for n in self._floats(2, 3) if self.values[n].shape[:-1] == shape]
        self._add("concat", a, self._recent(alike))

    def _choose(self) -> None:
        a = self._recent(self._floats(2, 3))
        same = self._same(a)
        b, c = self._recent(same), self._recent(same)
        masks = [n for n, v in enumerate(self.values) if v.dtype == torch.bool]
        masks = [n for n in masks if self._fits(n, a)]
        kind = self.choices.pick(["greater", "mask", "even", "length"])
        if kind == "mask" and masks:
            self._add("where", self._recent(masks), b, c)
        elif kind == "even" and self.counter is not None:
            self._add("where", self._add("is_even", self.counter), b, c)
        elif kind == "length" and self.counter is not None and a in self._of_batch():
            if self.lengths is None:
                lengths = self.generator.integers(0, self.steps + 2, [self.batch, 1])
                self.lengths = self._outside(lengths, has_batch=True)
            self._add("where", self._add("less", self.counter, self.lengths), b, c)
        else:
            self._add("where_greater", a, b, c)

    def _fits(self, mask: int, value: int) -> bool:
        shape = self.values[value].shape
        try:
            return torch.broadcast_shapes(self.values[mask].shape, shape) == shape
        except RuntimeError:
            return False

    def _outer(self) -> None:
        pairs = self._of_batch()
        if not pairs:
            return
        a, b = self._recent(pairs), self._recent(pairs)
        if self.batch * self.values[a].shape[1] * self.values[b].shape[1] <= LARGEST:
            self._add("outer", a, b)

    def _of_batch(self) -> list[int]:
        """The values with a row for each element of the batch."""
        return [n for n in self._floats(2) if self.values[n].shape[0] == self.batch]

    def _contract(self) -> None:
        cubes = [n for n in self._floats(3) if self.values[n].shape[0] == self.batch]
        if not cubes:
            return
        a = self._recent(cubes)
        width = self.values[a].shape[-1]
        rows = [n for n in self._of_batch() if self.values[n].shape[1] == width]
        if not rows:
            rows = [self._outside(self._array([self.batch, width]), has_batch=True)]
        self._add("contract", a, self._recent(rows))

    def _attend(self) -> None:
        if floats := self._floats(2):
            x = self._recent(floats)
            self._add(
                "attend", x, self._weight(self.choices.integer(1, 9), self.values[x].shape[1])
            )

    def _row(self) -> None:
        """A row of a table, which a counter chooses."""
        if self.counter is not None:
            rows = self.choices.integer(1, 4)
            self._add("row_of", self._weight(rows, self.widths[0]), self.counter, rows=rows)

    def _scan(self) -> None:
        """A loop in the step: over the rows of a table, or over the features of a value."""
        if not self.is_known("inner") or not self._of_batch():
            return
        x = self._recent(self._of_batch())
        width = self.values[x].shape[1]
        last = self.choices.chance(0.6)
        if self.choices.chance(0.5):
            factor = self._weight(width)
            body = Body(1, 1)  # v0 carry (batch, width), v1 row (width), v2 factor
            body.instructions = [
                Instruction("multiply", (0, 1)),
                Instruction("add", (3, 2)),
                Instruction("tanh", (4,)),
            ]
            body.following, body.results = [5], [self.choices.pick([3, 5, 0])]
            table = self._weight(self.choices.integer(1, 3), width)
            self._add("inner", x, table, factor, body=body, last=last)
        else:
            rows = self._add("features_first", x)
            start = self._outside(self._array([self.batch]))
            body = Body(1, 1)  # v0 carry (batch), v1 row (batch)
            body.instructions = [
                Instruction("sin", (1,)),
                Instruction("multiply", (0, 2)),
                Instruction("half", (3,)),
                Instruction("add", (4, 1)),
            ]
            body.following, body.results = [5], [self.choices.pick([5, 3, 0])]
            result = self._add("inner", start, rows, body=body, last=False)
            self._add("features_first", result)

    def _finish(self) -> None:
        """Choose the next carry, and what is stacked."""
        following = []
        for number, array in enumerate(self.start):
            if number == self.counter:
                following.append(self._add("count", number, by=self.choices.integer(1, 2)))
            else:
                following.append(self._next(number, list(array.shape)))
        if self.choices.chance(0.3):
            self._swap(following)
        self.body.following = following
        floats = self._floats()
        picked = [self._recent(floats) for _ in range(self.choices.integer(0, 3))]
        if self.choices.chance(0.3):
            picked.append(self.choices.integer(0, len(self.start) - 1))  # the carry before
        if self.choices.chance(0.4):
            picked.append(self.choices.pick(following))
        self.body.results = picked

    def _next(self, number: int, shape: list[int]) -> int:
        """The next carry in the place of one, bounded."""
        same = self._same(number)
        new = self._recent(same)
        if new == number and self.choices.chance(0.9):
            new = self._of_shape(shape)
        kind = self.choices.pick(["tanh", "gated", "residual", "decay", "kept"])
        if kind == "gated":
            z = self._add("sigmoid", self._recent(same))
            return self._add("mix", z, number, self._add("tanh", new))
        if kind == "residual":
            return self._add("add", number, self._add("half", self._add("tanh", new)))
        if kind == "decay":
            decay = self._add("sigmoid", self._outside(self._array(shape[1:])))
            return self._add("add", self._add("multiply", decay, number), self._add("sin", new))
        if kind == "kept" and self.choices.chance(0.2):
            return number
        return self._add("tanh", new)

    def _of_shape(self, shape: list[int]) -> int:
        """A value of a shape, made of another one by a product."""
        rows = self._of_batch()
        x = self._recent(rows) if rows else self._outside(self._array([self.batch, 3]), True)
        product = self._add("matmul", x, self._weight(self.values[x].shape[1], shape[1]))
        if len(shape) == 2:
            return product
        return self._add("outer", product, self._outside(self._array([self.batch, shape[2]]), True))

    def _swap(self, following: list[int]) -> None:
        """Let two states of one shape take each other's place, as they are or as they become."""
        shapes: dict[Any, int] = {}
        for place, number in enumerate(following):
            if place == self.counter:
                continue
            other = shapes.setdefault(tuple(self.values[number].shape), place)
            if other != place:
                pair = (
                    (place, other)
                    if self.choices.chance(0.4)
                    else (following[place], following[other])
                )
                following[other], following[place] = pair
                return

    def _loop(self, dtype: str, symbols: frozenset[str]) -> Loop:
        """The loop, with what is outside numbered before the instructions."""
        inside = len(self.start) + len(self.rows)
        numbers = list(range(inside))
        after = inside + len(self.outer)
        for kind, operands, _ in self._pending:
            if kind is None:
                numbers.append(inside + operands[0])
            else:
                numbers.append(after)
                after += 1
        self.body.carries, self.body.rows = len(self.start), len(self.rows)
        self.body.instructions = [
            Instruction(kind, tuple(numbers[n] for n in operands), settings)
            for kind, operands, settings in self._pending
            if kind is not None
        ]
        self.body.following = [numbers[n] for n in self.body.following]
        self.body.results = [numbers[n] for n in self.body.results]
        given = [a.shape for a in (*self.start, *(row[0] for row in self.rows))]
        of_batch = {n for n, shape in enumerate(given) if shape}
        of_batch |= {inside + number for number in self.of_batch}
        of_batch = frozenset(of_batch)
        return Loop(self.body, self.start, self.rows, self.outer, dtype, symbols, of_batch)


def random_loop(choices: Choices, is_known: Callable[[str], bool] = lambda name: True) -> Loop:
    """Return a loop that some choices lead to."""
    dtype = choices.pick(["float64", "float32"])
    return Author(choices, is_known).write(dtype)
