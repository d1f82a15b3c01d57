"""Ops that are called again and again: what `LegalizeOps` makes of them, from fewer lowerings."""

import numpy as np
import pytest
import tvm
from tvm import relax

from graphgrad.errors import LoweringError
from graphgrad.ir.provenance import span_of
from graphgrad.lower.graph import legalize as repeated
from graphgrad.lower.graph.legalize import _Known, legalize_ops
from graphgrad.ops.legalize import LEGALIZATIONS
from tests.labels import label
from tests.lower.programs import machine, module, random_tensors, tensor_type

op = relax.op


def calls(builder, x, y):
    """Return results of ops that are called alike, and of some that are called almost alike."""
    found = [builder.emit(op.add(x, y)) for _ in range(2)]
    found.append(builder.emit(op.add(y, x)))  # the same kernel on other tensors
    found.append(builder.emit(op.add(x, x)))  # of one tensor
    found.append(builder.emit(op.add(found[0], relax.const(np.float32(2)))))
    found.append(builder.emit(op.add(found[1], relax.const(np.float32(3)))))
    found += [builder.emit(op.sum(x, axis)) for axis in (0, 1, 0)]
    found += [builder.emit(op.reshape(x, shape)) for shape in ((4, 6), (6, 4), (4, 6))]
    found += [builder.emit(op.concat([x, y], axis)) for axis in (0, 1)]
    found += [builder.emit(op.clip(x, 0, bound)) for bound in (1, 2, 1)]
    found += [builder.emit(op.astype(x, dtype)) for dtype in ("float64", "int32")]
    found.append(builder.emit(op.nn.softmax(x)))
    return relax.Tuple(found)


@pytest.fixture
def program():
    return module(calls, tensor_type(3, 8), tensor_type(3, 8))


def test_the_module_is_that_of_tvm(program):
    ours = legalize_ops(program)
    expected = relax.transform.LegalizeOps(LEGALIZATIONS)(program)
    tvm.ir.assert_structural_equal(ours, expected)
    names = [variable.name_hint for variable in expected.functions]
    assert [variable.name_hint for variable in ours.functions] == names


def test_results_are_right(program):
    x, y = random_tensors((3, 8), (3, 8))
    results = [result.numpy() for result in machine(program)["main"](x, y)]
    a, b = x.numpy(), y.numpy()
    sums = [a + b, a + b, b + a, a + a, a + b + 2, a + b + 3]
    for ours, expected in zip(results, sums, strict=False):
        np.testing.assert_array_equal(ours, expected)


def symbolic(builder, x, y):
    return relax.Tuple([builder.emit(op.exp(tensor)) for tensor in (x, y, x)])


def test_symbolic_extents_are_told_apart():
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    mod = module(symbolic, tensor_type(n, 2), tensor_type(m, 2))
    expected = relax.transform.LegalizeOps(LEGALIZATIONS)(mod)
    tvm.ir.assert_structural_equal(legalize_ops(mod), expected)
    results = machine(mod)["main"](*random_tensors((3, 2), (5, 2)))
    assert [result.shape for result in results] == [(3, 2), (5, 2), (3, 2)]


def times_asked(lowering, body, *types):
    """Return how often a lowering of relax.add was asked, when calls are remembered."""
    asked = []

    def counted(builder, call):
        asked.append(call)
        return lowering(builder, call)

    remembering = _Known().remembering(counted)
    relax.transform.LegalizeOps({"relax.add": remembering})(module(body, *types))
    return len(asked)


def twice(builder, x, y):
    return relax.Tuple([builder.emit(op.add(x, y)), builder.emit(op.add(y, x))])


def kernel(builder, call):
    return builder.call_te(tvm.topi.add, *call.args)


def other_op(builder, call):
    return op.multiply(*call.args)


def of_something_else(builder, call):
    return kernel(builder, op.add(builder.emit(op.negative(call.args[0])), call.args[1]))


@pytest.mark.parametrize(
    "lowering, asked", [(kernel, 1), (other_op, 2), (of_something_else, 2)], ids=label
)
def test_only_calls_of_one_kernel_are_remembered(lowering, asked):
    assert times_asked(lowering, twice, tensor_type(3, 8), tensor_type(3, 8)) == asked


def test_a_lowering_that_sees_values_is_asked_each_time():
    def with_constants(builder, x):
        numbers = [relax.const(np.float32(number)) for number in (2, 2)]
        return relax.Tuple([builder.emit(op.add(x, number)) for number in numbers])

    assert times_asked(kernel, with_constants, tensor_type(3, 8)) == 2


@pytest.mark.parametrize("is_known", [False, True])
def test_what_somebody_else_has_registered_is_left_to_tvm(is_known, monkeypatch):
    given = {}

    def stock(lowerings):
        given.update(lowerings)
        return lambda mod: mod

    monkeypatch.setattr(repeated, "is_lowered_by_tvm_or_graphgrad", lambda _: is_known)
    monkeypatch.setattr(relax.transform, "LegalizeOps", stock)
    legalize_ops(module(lambda _, x: op.exp(x), tensor_type(3)))
    assert ("relax.exp" in given) == is_known
    assert set(given) - {"relax.exp"} == set(LEGALIZATIONS)


def test_operands_that_no_lowering_takes_are_told_with_the_node():
    def mean_of_nothing(builder, x):
        mean = op.mean(x, 0)
        return relax.Call(mean.op, mean.args, mean.attrs, span=span_of("pool", "ReduceMean"))

    with pytest.raises(LoweringError, match=r"relax\.mean at ONNX node 'pool'.*\(0, 3\).*Divide"):
        legalize_ops(module(mean_of_nothing, tensor_type(0, 3, dtype="int32")))
