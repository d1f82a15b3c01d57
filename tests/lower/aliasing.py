"""Small Relax programs that share and change memory: their packed functions, what they mean.

`Interpreter` says what a program means: a tensor is a numpy array, a name is a reference to one,
and every op copies but those that are views or calls of what returns its argument.
"""

from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import tvm
from tvm import relax

import graphgrad as gg

SHAPE, DTYPE = (4,), "float64"
TENSOR = relax.TensorType(SHAPE, DTYPE)
NOTHING = relax.TupleType([])

FUNCTIONS = {}


class Outside:
    """What packed functions hold: tensors that they keep, and a record of what they saw."""

    kept: ClassVar[list] = []
    seen: ClassVar[list] = []


@contextmanager
def outside():
    """Give packed functions nothing to hold but what happens inside; yield it."""
    before = Outside.kept, Outside.seen
    Outside.kept, Outside.seen = [], []
    yield Outside
    Outside.kept, Outside.seen = before


def _array(tensor):
    return tensor if isinstance(tensor, np.ndarray) else tensor.numpy()


def _write(tensor, value):
    if isinstance(tensor, np.ndarray):
        tensor[...] = value
    else:
        tensor.copyfrom(np.asarray(value, str(tensor.dtype)))


def _packed(name, **effects):
    def register(function):
        name_of = f"tests.aliasing.{name}"
        FUNCTIONS[name_of] = function
        tvm.register_global_func(name_of, function, override=True)
        if effects or name.startswith("declared"):
            gg.declare_effects(name_of, **effects)
        return name_of

    return register


@_packed("increment")
def INCREMENT(x):
    _write(x, _array(x) + 0.25)


@_packed("declared_increment", mutates=[0])
def DECLARED_INCREMENT(x):
    _write(x, _array(x) + 0.25)


@_packed("declared_add_to", mutates=[0])
def DECLARED_ADD_TO(x, y):
    _write(x, _array(x) + _array(y))


@_packed("incremented")
def INCREMENTED(x):
    _write(x, _array(x) + 0.25)
    return x


@_packed("declared_incremented", mutates=[0], returns_alias_of=[0])
def DECLARED_INCREMENTED(x):
    _write(x, _array(x) + 0.25)
    return x


@_packed("same")
def SAME(x):
    return x


@_packed("declared_same", returns_alias_of=[0])
def DECLARED_SAME(x):
    return x


@_packed("keep")
def KEEP(x):
    Outside.kept.append(x)


@_packed("declared_keep", keeps=[0])
def DECLARED_KEEP(x):
    Outside.kept.append(x)


@_packed("change_kept")
def CHANGE_KEPT():
    for x in Outside.kept:
        _write(x, _array(x) - 0.5)


@_packed("declared_see")
def DECLARED_SEE(x):
    Outside.seen.append(_array(x).copy())


@_packed("declared_double")
def DECLARED_DOUBLE(x, out):
    _write(out, 2 * _array(x))


@_packed("double")
def DOUBLE(x, out):
    _write(out, 2 * _array(x))


PURE = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.sin": np.sin,
    "relax.reshape": lambda x, shape: x.reshape([int(n) for n in shape]).copy(),
}


class Interpreter:
    """Runs the functions of a module on numpy arrays, which it changes where the program does."""

    def __init__(self, mod):
        self.mod = mod

    def run(self, name, *arrays):
        return self._call(self.mod[name], list(arrays), {})

    def _call(self, function, arguments, environment):
        inside = {**environment, **dict(zip(function.params, arguments, strict=True))}
        return self._sequence(function.body, inside)

    def _sequence(self, body, environment):
        for block in body.blocks:
            for binding in block.bindings:
                environment[binding.var] = self._value(binding.value, environment)
        return self._value(body.body, environment)

    def _value(self, expr, environment):
        if isinstance(expr, tvm.ir.Var):
            return environment[expr]
        if isinstance(expr, tvm.ir.GenericConst):
            return expr.value.numpy().copy()
        if isinstance(expr, relax.Tuple):
            return [self._value(field, environment) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value, environment)[expr.index]
        if isinstance(expr, relax.ShapeExpr):
            return list(expr.values)
        if isinstance(expr, relax.Function):
            return lambda *arguments: self._call(expr, arguments, environment)
        if isinstance(expr, relax.If):
            taken = self._value(expr.cond, environment)
            branch = expr.true_branch if taken else expr.false_branch
            return self._sequence(branch, environment)
        return self._called(expr, environment)

    def _called(self, call, environment):
        if isinstance(call.op, relax.ExternFunc):
            arguments = [self._value(a, environment) for a in call.args]
            return FUNCTIONS[str(call.op.global_symbol)](*arguments)
        if isinstance(call.op, tvm.ir.GlobalVar):
            arguments = [self._value(a, environment) for a in call.args]
            return self._call(self.mod[call.op], arguments, {})
        if isinstance(call.op, tvm.ir.Var):
            return environment[call.op](*[self._value(a, environment) for a in call.args])
        if call.op.name == "relax.call_dps_packed":
            out = np.empty(SHAPE, DTYPE)
            arguments = [self._value(a, environment) for a in call.args[1].fields]
            FUNCTIONS[str(call.args[0].global_symbol)](*arguments, out)
            return out
        if call.op.name in ("relax.call_pure_packed", "relax.call_inplace_packed"):
            arguments = [self._value(a, environment) for a in call.args[1:]]
            return FUNCTIONS[str(call.args[0].global_symbol)](*arguments)
        arguments = [self._value(a, environment) for a in call.args]
        return np.asarray(PURE[call.op.name](*arguments))


def call(name, *arguments, ty=NOTHING):
    """Return a call with effects of a packed function."""
    return relax.Call(relax.ExternFunc(name), list(arguments), ty_args=[ty])


def flat(value):
    """Return the tensors of a nested result in order."""
    if isinstance(value, np.ndarray) or hasattr(value, "numpy"):
        return [value]
    return [leaf for part in value for leaf in flat(part)]
