"""Variables of expressions as statements: the same values, nothing read that was not."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.let_statements import without_lets_in

N = 4
A = te.placeholder((N,), "float64", name="A")
VALUES = np.array([0.5, -1.0, 2.0, -0.25])


def variable():
    return tirx.Var("v", "float64")


def bound(i):
    v = variable()
    return prim.Let(v, A(i), v * v + v)


def nested(i):
    v, w = variable(), variable()
    return 1.0 + prim.Let(v, A(i) * 2.0, prim.Let(w, v + 1.0, w * w * v))


def guarded(i):
    """The value is not to be read where the condition fails."""
    v = variable()
    return tirx.if_then_else(i < N - 1, prim.Let(v, A(i + 1), v * v), 7.0) + A(i)


def twice(i):
    """One expression in two branches, each of which protects it by a condition of its own."""
    v = variable()
    square = prim.Let(v, A(i + 1), v * v)
    first = tirx.if_then_else(i < 2, square, 1.0)
    return first + tirx.if_then_else(tirx.all(i >= 2, i < N - 1), square, 2.0)


@pytest.mark.parametrize("body", [bound, nested, guarded, twice], ids=lambda f: f.__name__)
def test_values_are_the_same(body):
    func = te.create_prim_func([A, te.compute((N,), body, name="out")])
    results = []
    for changed in (func, func.with_body(without_lets_in(func.body))):
        assert ("T.Let(" in changed.script()) == (changed is func)
        out = tvm.runtime.tensor(np.full(N, np.nan))
        tvm.compile(changed, "llvm")(tvm.runtime.tensor(VALUES), out)
        results.append(out.numpy())
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(*results)


def loop_of_two_statements(change):
    """A loop whose statements have t * 3 in common, the first one inside a `Let`."""
    out = tirx.decl_buffer((30,), "float64", name="out")
    t, v = tirx.Var("t", "int32"), variable()
    first = prim.Let(v, tirx.BufferLoad(out, [0]), v + (t * 3).astype("float64"))
    statements = [
        tirx.BufferStore(out, first, [0]),
        tirx.BufferStore(out, (t * 3).astype("float64"), [t * 3 + 1]),
        tirx.BufferStore(out, 2.0 * (t * 3).astype("float64"), [t * 3 + 2]),
    ]
    body = tirx.For(t, 0, 9, tirx.ForKind.SERIAL, tirx.SeqStmt([change(s) for s in statements]))
    return tirx.PrimFunc([out], body).with_attr("global_symbol", "main")


def test_tvm_compiles_what_statements_have_in_common():
    """Its own elimination of that fails if the first use is inside a `Let`."""
    with pytest.raises(tvm.error.InternalError, match="before definition"):
        tvm.compile(loop_of_two_statements(lambda statement: statement), "llvm")
    tvm.compile(loop_of_two_statements(without_lets_in), "llvm")
