"""A pytest plugin: TVM's gradient tests run on graphgrad's pass and rules.

Three names of TVM are replaced, and nothing else: the pass ``relax.transform.Gradient``; the
attribute ``FPrimalGradient`` of an op, which hands out the rule; and
``assert_structural_equal``, which, where the adjoint is written in other ops, runs both on random
inputs and compares values. The test is then marked as equal in value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.autodiff.apply import apply_rule
from graphgrad.check import flat
from graphgrad.ir.calls import drop_te_gradients
from graphgrad.ir.tensor import Emitter, Tensor
from graphgrad.registry import find

EQUAL_IN_VALUE = "equal in value"

_EXTENT = 3  # of a symbolic dimension
_current: list[Any] = []


def pytest_configure(config: Any) -> None:
    """Put our pass and rules in the place of TVM's, before any test is imported."""
    relax.transform.Gradient = gg.transform.Gradient
    tvm.ir.Op.get_attr = _get_attribute(tvm.ir.Op.get_attr)
    compare = _structure_or_values(tvm.ir.base.assert_structural_equal)
    tvm.ir.base.assert_structural_equal = tvm.ir.assert_structural_equal = compare


@pytest.fixture(autouse=True)
def _note_the_test(request: Any) -> Iterator[None]:
    _current[:] = [request.node]
    yield


def _get_attribute(stock: Callable[..., Any]) -> Callable[..., Any]:
    def get_attr(op: Any, name: str) -> Any:
        return _gradient_of_op if name == "FPrimalGradient" else stock(op, name)

    return get_attr


def _gradient_of_op(output: Any, call: Any, cotangent: Any, builder: Any) -> list[Any]:
    """Return one gradient per argument, as an ``FPrimalGradient`` does."""
    rule = find(call.op.name)
    assert rule is not None, f"no rule for {call.op.name}"
    if rule.kind == "nondifferentiable":
        return [relax.op.grad.no_grad(argument) for argument in call.args]
    emitter = Emitter(builder)
    normal = builder.normalize(call)
    wanted = [not isinstance(argument.ty, relax.ShapeType) for argument in normal.args]
    wanted = [w and _has_float(a.ty) for w, a in zip(wanted, normal.args, strict=True)]
    given = emitter.lift(cotangent)
    results = apply_rule(rule, emitter, normal, output, given, wanted)
    return [
        relax.op.grad.no_grad(argument) if result is None else _expression(result)
        for argument, result in zip(normal.args, results, strict=True)
        if not isinstance(argument.ty, tvm.ir.PrimType)  # TVM's gradients leave numbers out
    ]


def _has_float(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return any(map(_has_float, ty.fields))
    return isinstance(ty, relax.TensorType) and str(ty.dtype).startswith("float")


def _expression(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return relax.Tuple([_expression(item) for item in value])
    return value.expr if isinstance(value, Tensor) else value


def _structure_or_values(stock: Callable[..., None]) -> Callable[..., None]:
    def assert_structural_equal(ours: Any, theirs: Any, *args: Any, **options: Any) -> None:
        try:
            stock(ours, theirs, *args, **options)
        except ValueError:
            if isinstance(theirs, relax.Function):
                ours, theirs = map(_module, (ours, theirs))
            if not isinstance(theirs, tvm.IRModule):
                raise
            _assert_equal_in_value(ours, theirs)
            _current[0].user_properties.append((EQUAL_IN_VALUE, "yes"))

    return assert_structural_equal


def _module(function: relax.Function) -> tvm.IRModule:
    name = "f_adjoint"
    return tvm.IRModule({name: function.with_attr("global_symbol", name)})


def _assert_equal_in_value(ours: tvm.IRModule, theirs: tvm.IRModule) -> None:
    names = [gv.name_hint for gv in theirs.get_global_vars() if gv.name_hint.endswith("_adjoint")]
    assert names, "the expected module has no adjoint"
    for name in names:
        arguments = _arguments(theirs[name])
        results = [_run(mod, name, arguments) for mod in (ours, theirs)]
        assert len(results[0]) == len(results[1])
        for mine, other in zip(*results, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def _run(mod: tvm.IRModule, name: str, arguments: list[Any]) -> list[np.ndarray]:
    mod = drop_te_gradients(mod)  # TVM lowers none
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return flat(machine[name](*arguments))


def _arguments(function: relax.Function) -> list[Any]:
    generator = np.random.default_rng(0)

    def draw(ty: Any) -> Any:
        if isinstance(ty, relax.TupleType):
            return [draw(item) for item in ty.fields]
        shape = [int(d) if isinstance(d, tvm.tirx.IntImm) else _EXTENT for d in ty.shape]
        return tvm.runtime.tensor(generator.uniform(0.5, 1.5, shape).astype(str(ty.dtype)))

    return [draw(param.ty) for param in function.params]
