"""Random Relax programs of the ops that have rules, in every shape that a function's body can take.

`Writer` builds one function. Its choices come from outside, so that hypothesis can shrink them. All
values are float64 of shape (2, 3) where nothing else is said, and stay near 1: the ops are smooth
and bounded, so that finite differences are exact enough.

Some values get a perturbation, a parameter that is zero, added at birth. The gradient of such a
value is that of its perturbation, which makes intermediate values checkable by differences, too.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

SHAPE = (2, 3)
FLOAT = relax.TensorType(SHAPE, "float64")
op = relax.op


@I.ir_module
class Helpers:
    """Functions that the random programs call: public and private, nested, symbolic."""

    @R.function(private=True)
    def curve(x: R.Tensor(("n", 3), "float64")) -> R.Tensor(("n", 3), "float64"):
        y = R.sin(x)
        z = R.multiply(y, x)
        return z

    @R.function
    def pair(x: R.Tensor(("n", "m"), "float64"), y: R.Tensor(("n", "m"), "float64")) -> R.Tuple(
        R.Tensor(("n", "m"), "float64"), R.Tensor(("n", "m"), "float64")
    ):
        with R.dataflow():
            total = R.add(x, R.tanh(y))
            slope = R.multiply(total, y)
            R.output(total, slope)
        return (slope, total)

    @R.function(private=True)
    def nested(x: R.Tensor((2, 3), "float64")) -> R.Tensor((2, 3), "float64"):
        cls = Helpers
        y = cls.curve(x)
        both = cls.pair(y, x)
        z = cls.curve(both[0])
        w = R.subtract(z, both[1])
        return w

    @R.function
    def same(x: R.Tensor((2, 3), "float64")) -> R.Tensor((2, 3), "float64"):
        return x

    @R.function(private=True)
    def loose(x: R.Tensor) -> R.Tensor:
        y = R.tanh(x)
        return y


def _constant(choose):
    return relax.const(np.linspace(-1, 1, 6).reshape(SHAPE) * (1 + choose(3)), "float64")


def _mask(choose):
    return relax.const(np.arange(6).reshape(SHAPE) % 2 == choose(2), "bool")


class Writer:
    """Writes one random function.

    Parameters
    ----------
    choose : callable
        ``choose(n)`` returns a number from 0 to n - 1.
    builder : relax.BlockBuilder
        Over a module that has the functions of `Helpers`.
    name : str
    """

    def __init__(self, choose, builder, name):
        self.choose = choose
        self.builder = builder
        self.name = name
        self.values = []
        self.perturbed = []
        self.helpers = {gv.name_hint: gv for gv in builder.get().get_global_vars()}

    def write(self):
        """Add the function; return its parameters, and the pairs (value, perturbation)."""
        self.x, self.y = relax.Var("x", FLOAT), relax.Var("y", FLOAT)
        row = relax.Var("row", relax.TensorType((3,), "float64"))
        whole = relax.Var("whole", relax.TensorType(SHAPE, "int64"))
        both = relax.Var("both", relax.TupleType([FLOAT, FLOAT]))
        perturbations = [relax.Var(f"e{k}", FLOAT) for k in range(2)]
        self.row, self.whole, self.both = row, whole, both
        self.unused = list(perturbations)
        self.values = [self.x, self.y]
        params = [self.x, self.y, row, whole, both, *perturbations]
        with self.builder.function(self.name, params):
            for _ in range(1 + self.choose(3)):
                self._block(dataflow=bool(self.choose(2)))
            result = self._result()
            self.builder.emit_func_output(result)
        return params, self.perturbed

    def _block(self, dataflow):
        if not dataflow:
            for _ in range(1 + self.choose(3)):
                self._step()
            return
        with self.builder.dataflow():
            before = len(self.values)
            for _ in range(1 + self.choose(4)):
                self._step()
            made, self.values = self.values[before:], self.values[:before]
            self.values += [self.builder.emit_output(value) for value in made]

    def _step(self):
        kinds = [
            self._unary,
            self._binary,
            self._contraction,
            self._reduction,
            self._movement,
            self._parts,
            self._call,
            self._other,
        ]
        value = kinds[self.choose(len(kinds))]()
        if self.unused and self.choose(3) == 0:
            perturbation = self.unused.pop()
            value = self._emit(op.add(value, perturbation))
            self.perturbed.append((value, perturbation))
        self.values.append(value)

    def _emit(self, expr):
        return self.builder.emit(expr)

    def _any(self):
        """Return a value: often the last one, so that chains grow."""
        pick = self.choose(len(self.values) + 2)
        return self.values[pick] if pick < len(self.values) else self.values[-1]

    def _unary(self):
        x = self._any()
        choices = [
            lambda: op.sin(x),
            lambda: op.tanh(x),
            lambda: op.sigmoid(x),
            lambda: op.nn.silu(x),
            lambda: op.exp(op.negative(op.square(x))),
            lambda: op.sqrt(op.add(op.square(x), relax.const(0.5, "float64"))),
            lambda: op.nn.softmax(x, axis=-1 - self.choose(2)),
            lambda: op.nn.log_softmax(x, axis=self.choose(2)),
            lambda: op.cos(x),
        ]
        return self._emit(choices[self.choose(len(choices))]())

    def _binary(self):
        a, b = self._any(), self._any()
        choices = [
            lambda: op.add(a, b),
            lambda: op.multiply(op.tanh(a), b),
            lambda: op.subtract(a, self.row),
            lambda: op.divide(self.row, op.add(op.sigmoid(a), relax.const(1.0, "float64"))),
            lambda: op.add(op.multiply(a, _constant(self.choose)), b),
            lambda: op.multiply(a, op.astype(self.whole, "float64")),
            lambda: op.where(_mask(self.choose), a, self.row),
            lambda: op.where(op.greater(self.whole, relax.const(1, "int64")), a, b),
            lambda: op.multiply(b, op.floor(op.multiply(a, relax.const(0.7, "float64")))),
        ]
        return self._emit(choices[self.choose(len(choices))]())

    def _contraction(self):
        a, b = self._any(), self._any()
        square = self._emit(op.matmul(op.tanh(a), op.permute_dims(b)))
        if self.choose(2):
            return self._emit(op.matmul(square, a))
        return self._emit(op.multiply(a, op.matmul(square, op.mean(b, axis=[1], keepdims=True))))

    def _reduction(self):
        x = self._any()
        choices = [
            lambda: op.multiply(x, op.sum(op.tanh(x), axis=[-1], keepdims=True)),
            lambda: op.add(x, op.mean(x)),
            lambda: op.subtract(x, op.max(x, axis=[0])),
            lambda: op.broadcast_to(op.mean(op.square(x), axis=[0]), SHAPE),
            lambda: op.collapse_sum_to(op.broadcast_to(x, (2, *SHAPE)), SHAPE),
            lambda: op.multiply(x, op.expand_dims(op.min(x, axis=1), -1)),
        ]
        return self._emit(choices[self.choose(len(choices))]())

    def _movement(self):
        x = self._any()
        choices = [
            lambda: op.reshape(op.permute_dims(x), SHAPE),
            lambda: op.squeeze(op.expand_dims(x, [0, 2]), [0, 2]),
            lambda: op.reshape(self._emit(op.sin(op.flatten(x))), (2, -1)),
            lambda: op.permute_dims(op.tanh(op.permute_dims(x, [1, 0])), [-1, -2]),
        ]
        return self._emit(choices[self.choose(len(choices))]())

    def _parts(self):
        """Tuples: split, concat, tuples of tuples, and reading from them."""
        a, b = self._any(), self._any()
        kind = self.choose(5)
        if kind == 0:
            parts = self._emit(op.split(a, 3, axis=1))
            picked = [self._emit(relax.TupleGetItem(parts, k)) for k in (2, self.choose(3), 0)]
            return self._emit(op.concat(picked, axis=-1))
        if kind == 1:
            parts = self._emit(op.split(a, [1], axis=0))
            joined = self._emit(op.concat(parts, axis=0))
            return self._emit(op.multiply(joined, relax.TupleGetItem(parts, self.choose(2))))
        if kind == 2:
            # A tuple in a tuple does not survive TVM's fusion.
            pair = self._emit(relax.Tuple([a, relax.TupleGetItem(self.both, self.choose(2))]))
            item = self._emit(relax.TupleGetItem(pair, 1))
            return self._emit(op.multiply(item, relax.TupleGetItem(pair, self.choose(2))))
        if kind == 3:
            whole = self._emit(relax.Tuple([self.whole, b, b]))
            return self._emit(op.add(relax.TupleGetItem(whole, 1), relax.TupleGetItem(whole, 2)))
        stacked = self._emit(op.concat([a, self.x, b], axis=0))
        return self._emit(relax.TupleGetItem(self._emit(op.split(stacked, 3, axis=0)), 2))

    def _call(self):
        a, b = self._any(), self._any()
        kind = self.choose(6)
        if kind == 0:
            return self._emit(relax.Call(self.helpers["curve"], [a]))
        if kind == 1:
            both = self._emit(relax.Call(self.helpers["pair"], [a, b]))
            return self._emit(relax.TupleGetItem(both, self.choose(2)))
        if kind == 2:
            return self._emit(relax.Call(self.helpers["nested"], [a]))
        if kind == 3:
            return self._emit(relax.Call(self.helpers["same"], [a]))
        if kind == 4:
            tall = self._emit(op.concat([a, b], axis=0))
            curved = self._emit(relax.Call(self.helpers["curve"], [tall]))
            return self._emit(relax.TupleGetItem(self._emit(op.split(curved, 2)), self.choose(2)))
        both = self._emit(relax.Call(self.helpers["pair"], [b, b]))
        return self._emit(relax.TupleGetItem(both, 0))

    def _other(self):
        a = self._any()
        if self.choose(2) or self.builder.current_block_is_dataflow():
            return self._emit(a)
        self._emit(op.exp(a))  # nothing reads it
        return self.builder.match_cast(a, FLOAT)

    def _result(self):
        last = self.values[-1]
        choices = [
            lambda: last,
            lambda: relax.Tuple([last, self._any(), self.x]),
            lambda: relax.Tuple([last, last]),
            lambda: relax.Tuple([relax.Tuple([last, self.whole]), self.both]),
            lambda: relax.Tuple([_constant(self.choose), last]),
        ]
        return choices[self.choose(len(choices))]()


def new_builder():
    """Return a builder over a module that has the functions of `Helpers`."""
    return relax.BlockBuilder(tvm.IRModule(Helpers.functions))
