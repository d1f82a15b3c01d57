"""Products read and write permuted tensors where they are, and compute what they did."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.provenance import read, span_of
from graphgrad.lower.graph.permuted_products import fold_permutations
from graphgrad.memory.effect_order import may_write

GENERATOR = np.random.default_rng(0)


def module(body, *shapes, dtype="float32"):
    params = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            outputs = [builder.emit_output(r) for r in body(builder.emit, *params)]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


def calls(mod):
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [b.value for b in bindings if isinstance(b.value, tvm.ir.Call)]


def ops(mod):
    return [str(call.op.name) for call in calls(mod)]


def run(mod, arrays):
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    return [result.numpy() for result in machine["main"](*map(tvm.runtime.tensor, arrays))]


def turn(emit, x, *axes):
    return emit(relax.op.permute_dims(x, list(axes) or None))


def product(emit, x, y):
    return emit(relax.op.matmul(x, y))


CASES = {
    "right": (
        lambda e, x, w: [product(e, x, turn(e, w))],
        lambda x, w: x @ w.T,
        [(3, 5, 7), (9, 7)],
    ),
    "left": (lambda e, x, y: [product(e, turn(e, x), y)], lambda x, y: x.T @ y, [(6, 4), (6, 5)]),
    "result": (
        lambda e, x, y: [turn(e, product(e, turn(e, x), y))],
        lambda x, y: (x.T @ y).T,
        [(33, 17), (33, 19)],
    ),
    "twice": (
        lambda e, x, y: [product(e, turn(e, turn(e, x)), turn(e, y))],
        lambda x, y: x @ y.T,
        [(4, 5), (6, 5)],
    ),
    "heads": (
        lambda e, q, k: [
            turn(e, product(e, turn(e, q, 0, 2, 1, 3), turn(e, k, 0, 2, 3, 1)), 0, 2, 1, 3)
        ],
        lambda q, k: np.einsum("bqhd,bkhd->bqhk", q, k),
        [(2, 5, 3, 4), (2, 7, 3, 4)],
    ),
    "negative axes": (
        lambda e, x, y: [product(e, turn(e, x, 0, -1, -2), y)],
        lambda x, y: x.transpose(0, 2, 1) @ y,
        [(2, 5, 3), (2, 5, 4)],
    ),
    "cycle": (
        lambda e, x, y: [turn(e, product(e, turn(e, x, 1, 2, 0), y), 2, 0, 1)],
        lambda x, y: (x.transpose(1, 2, 0) @ y).transpose(2, 0, 1),
        [(5, 3, 4), (3, 5, 6)],
    ),
    "vector": (lambda e, x, v: [product(e, v, turn(e, x))], lambda x, v: v @ x.T, [(4, 5), (5,)]),
    "broadcast": (
        lambda e, x, y: [turn(e, product(e, turn(e, x, 1, 0, 2), y), 2, 1, 0)],
        lambda x, y: (x.transpose(1, 0, 2) @ y).transpose(2, 1, 0),
        [(4, 1, 3), (5, 3, 6)],
    ),
    "ones": (lambda e, x, y: [product(e, x, turn(e, y))], lambda x, y: x @ y.T, [(1, 1), (1, 1)]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_values(name, dtype):
    body, expected, shapes = CASES[name]
    mod = module(body, *shapes, dtype=dtype)
    assert "relax.permute_dims" not in ops(fold_permutations(mod))
    arrays = [GENERATOR.standard_normal(shape).astype(dtype) for shape in shapes]
    (result,) = run(mod, arrays)
    np.testing.assert_allclose(result, expected(*arrays), rtol=1e-5, atol=1e-6)


def test_what_others_read_stays():
    def body(emit, x, y):
        turned = turn(emit, x)
        first = product(emit, turned, y)
        return [turned, first, turn(emit, first)]

    mod = module(body, (3, 4), (3, 5))
    assert ops(fold_permutations(mod)).count("relax.permute_dims") == 2
    x, y = (GENERATOR.standard_normal(shape).astype("float32") for shape in [(3, 4), (3, 5)])
    for result, expected in zip(run(mod, [x, y]), [x.T, x.T @ y, (x.T @ y).T], strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_each_product_is_permuted_by_its_own():
    def body(emit, x, y):
        first, second = product(emit, x, y), product(emit, y, x)
        return [turn(emit, second), turn(emit, first)]

    arrays = [GENERATOR.standard_normal(shape).astype("float32") for shape in [(3, 4), (4, 3)]]
    x, y = arrays
    mod = module(body, x.shape, y.shape)
    assert "relax.permute_dims" not in ops(fold_permutations(mod))
    for result, expected in zip(run(mod, arrays), [(y @ x).T, (x @ y).T], strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_a_permuted_product_is_an_operand_itself():
    def body(emit, x, y):
        inner = turn(emit, product(emit, x, y))
        return [product(emit, turn(emit, inner), inner)]

    arrays = [GENERATOR.standard_normal(shape).astype("float32") for shape in [(3, 4), (4, 5)]]
    mod = module(body, (3, 4), (4, 5))
    assert not relax.analysis.free_vars(fold_permutations(mod)["main"])
    inner = arrays[0] @ arrays[1]
    np.testing.assert_allclose(run(mod, arrays)[0], inner @ inner.T, rtol=1e-5, atol=1e-6)


def test_products_of_plain_tensors_stay():
    mod = module(lambda emit, x, y: [product(emit, x, y)], (3, 4), (4, 5))
    assert ops(fold_permutations(mod)) == ["relax.matmul"]


@pytest.mark.parametrize("shapes", [((0, 4), (0, 5)), ((3, 0), (3, 5))])
def test_empty_products_stay(shapes):
    mod = module(lambda emit, x, y: [product(emit, turn(emit, x), y)], *shapes)
    assert "relax.matmul" in ops(fold_permutations(mod))
    arrays = [np.ones(shape, "float32") for shape in shapes]
    np.testing.assert_array_equal(run(mod, arrays)[0], arrays[0].T @ arrays[1])


def test_half_precision_stays():
    """It is added up in float32, by a lowering of its own."""
    mod = module(lambda e, x, y: [product(e, turn(e, x), y)], (3, 4), (3, 5), dtype="float16")
    assert "relax.matmul" in ops(fold_permutations(mod))


def test_functions_that_may_overwrite_stay():
    def body(emit, x, y):
        turned = turn(emit, x)
        emit(relax.op.call_inplace_packed("changes", x, inplace_indices=[0], ty_args=x.ty))
        return [product(emit, turned, y)]

    mod = module(body, (3, 4), (3, 5))
    assert may_write(mod["main"].body)
    assert fold_permutations(mod)["main"].same_as(mod["main"])


def test_the_span_of_the_product_is_kept():
    def body(emit, x, y):
        call = relax.op.matmul(turn(emit, x), y)
        span = span_of("n", "Gemm")
        return [emit(relax.Call(call.op, call.args, call.attrs, call.ty_args, span))]

    (call,) = calls(fold_permutations(module(body, (3, 4), (3, 5))))
    assert read(call.span).node == "n"


def test_symbolic_extents():
    n = tvm.tirx.Var("n", "int64")
    mod = module(lambda emit, x, y: [product(emit, turn(emit, x), y)], (n, 4), (n, 5))
    assert "relax.permute_dims" not in ops(fold_permutations(mod))
    x, y = (GENERATOR.standard_normal((6, k)).astype("float32") for k in (4, 5))
    np.testing.assert_allclose(run(mod, [x, y])[0], x.T @ y, rtol=1e-5, atol=1e-6)


def test_permutations_of_another_block_stay():
    """What they permute may be known in that block alone."""
    x, w, result = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (4, 8)), ("w", (6, 8)), ("result", (4, 6)))
    )
    inner = relax.DataflowVar("inner", w.ty)
    turned = relax.Var("turned", relax.TensorType((8, 6), "float32"))
    between = relax.Var("between", x.ty)
    builder = relax.BlockBuilder()

    def bound(var, value):
        return relax.VarBinding(var, builder.normalize(value))

    blocks = [
        relax.DataflowBlock(
            [bound(inner, relax.op.exp(w)), bound(turned, relax.op.permute_dims(inner))]
        ),
        relax.BindingBlock([bound(between, relax.op.exp(x))]),
        relax.DataflowBlock([bound(result, relax.op.matmul(between, turned))]),
    ]
    func = relax.Function([x, w], relax.SeqExpr(blocks, result), result.ty)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assert ops(fold_permutations(mod)).count("relax.permute_dims") == 1
    arrays = [GENERATOR.standard_normal(shape).astype("float32") for shape in ((4, 8), (6, 8))]
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    np.testing.assert_allclose(found, np.exp(arrays[0]) @ np.exp(arrays[1]).T, rtol=1e-5)
