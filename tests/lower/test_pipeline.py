"""From Relax to results: numbers, refusals, and what a pipeline alone can do."""

import warnings

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from graphgrad.errors import GraphGradError, LoweringError, TargetError
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import PIPELINES, lower, pipeline
from graphgrad.lower.pipeline import compile as compile_module
from graphgrad.lower.target import target
from tests.lower.programs import machine, module, random_tensors, tensor_type
from tests.unknown_ops import unlowered

op = relax.op

PROGRAMS = {
    "elementwise": (lambda b, x: b.emit(op.exp(op.add(x, x))), [(33, 65)]),
    "convolution": (
        lambda b, x, w: b.emit(op.nn.relu(op.nn.conv2d(x, w, padding=1))),
        [(4, 8, 10, 10), (16, 8, 3, 3)],
    ),
    "product": (lambda b, x, y: b.emit(op.matmul(x, y)), [(64, 48), (48, 80)]),
    "batch norm": (
        lambda b, x, g, s, m, v: relax.TupleGetItem(
            b.emit(op.nn.batch_norm(x, g, s, m, v, axis=1)), 0
        ),
        [(8, 16, 9, 9), (16,), (16,), (16,), (16,)],
    ),
    "loss": (
        lambda b, x: b.emit(op.mean(op.nn.log_softmax(x))),
        [(64, 100)],
    ),
    "sorting": (lambda b, x: b.emit(op.sort(x, 1)), [(6, 40)]),
    "running sum": (lambda b, x: b.emit(op.cumsum(x, 1)), [(6, 40)]),
    "views": (lambda b, x: b.emit(op.reshape(op.reshape(x, (12,)), (4, 3))), [(3, 4)]),
    "shape": (lambda b, x: b.emit(op.shape_to_tensor(op.shape_of(x))), [(3, 4)]),
    "parts": (lambda b, x: b.emit(op.split(x, 2, 1)), [(30, 40)]),
    "constant": (lambda b, x: b.emit(op.add(x, op.ones((4, 4), "float32"))), [(4, 4)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_equal_the_stock_pipeline(name):
    body, shapes = PROGRAMS[name]
    mod = module(body, *[tensor_type(*s) for s in shapes])
    values = random_tensors(*shapes)
    stock = relax.VirtualMachine(tvm.compile(mod, target("llvm")), tvm.cpu())["main"](*values)
    ours = machine(mod)["main"](*values)
    pairs = [(ours, stock)] if hasattr(stock, "numpy") else zip(ours, stock, strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


def test_conditionals():
    p, x = (relax.Var(n, t) for n, t in (("p", tensor_type(dtype="bool")), ("x", tensor_type(4))))
    builder = relax.BlockBuilder()
    with builder.function("main", [p, x]):
        branches = relax.If(p, _block(op.exp(x)), _block(op.negative(x)))
        builder.emit_func_output(builder.emit(branches))
    (value,) = random_tensors((4,))
    run = machine(builder.get())["main"]
    for choice, expected in ((True, np.exp(value.numpy())), (False, -value.numpy())):
        got = run(tvm.runtime.tensor(np.array(choice)), value)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def _block(value):
    out = relax.Var("out", tensor_type(4))
    return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(out, value)])], out)


@pytest.mark.parametrize("batch", [1, 5, 33])
def test_symbolic_batch(batch):
    n = tirx.Var("n", "int64")
    mod = module(
        lambda b, x, w: b.emit(op.nn.relu(op.nn.conv2d(x, w, padding=1))),
        tensor_type(n, 4, 8, 8),
        tensor_type(16, 4, 3, 3),
    )
    x, w = random_tensors((batch, 4, 8, 8), (16, 4, 3, 3))
    stock = relax.VirtualMachine(tvm.compile(mod, target("llvm")), tvm.cpu())["main"](x, w)
    np.testing.assert_allclose(machine(mod)["main"](x, w).numpy(), stock.numpy(), atol=1e-5)


def test_the_module_given_is_not_changed():
    mod = module(lambda b, x: b.emit(op.exp(x)), tensor_type(64, 512))
    before = mod.script()
    compile_module(mod)
    pipeline(target("llvm"))(mod)
    assert mod.script() == before


def test_pipeline_serves_tvm_compile():
    mod = module(lambda b, x: b.emit(op.exp(x)), tensor_type(64, 512))
    host = target("llvm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executable = tvm.compile(mod, host, relax_pipeline=pipeline(host))
    (x,) = random_tensors((64, 512))
    out = relax.VirtualMachine(executable, tvm.cpu())["main"](x)
    np.testing.assert_allclose(out.numpy(), np.exp(x.numpy()), rtol=1e-6)


def test_pipeline_says_that_it_cannot_make_a_generic_target_the_host():
    with pytest.warns(UserWarning, match="names no processor"):
        pipeline("llvm")


@pytest.mark.parametrize("entry", [pipeline, lambda t: compile_module(tvm.IRModule({}), t)])
@pytest.mark.parametrize(
    ("spec", "says"),
    [({"kind": "cuda", "arch": "sm_9"}, "sm_9"), ("c", "'c'"), ("nothing", "accepted")],
)
def test_targets_that_are_not_served_are_refused(entry, spec, says):
    with pytest.raises(TargetError, match=says):
        entry(spec)


def test_ops_without_a_lowering_are_named():
    def body(builder, x):
        return builder.emit(unlowered(builder.emit(unlowered(x))))

    mod = module(body, tensor_type(2, 3))
    with pytest.raises(GraphGradError, match=r"graphgrad\.test_unlowered \(2×\)"):
        compile_module(mod)


@pytest.mark.parametrize("name", ["nonzero", "unique"])
def test_ops_that_would_run_on_the_host_are_named(name):
    def body(builder, x):
        return builder.emit(getattr(op, name)(builder.emit(op.exp(x))))

    mod = module(body, tensor_type(6))
    with pytest.raises(LoweringError, match=rf"relax\.{name} \(1×, in 'main'\)"):
        compile_module(mod, {"kind": "cuda", "arch": "sm_90"})
    compile_module(mod)


def test_what_serves_every_device_is_not_refused():
    """Packed functions of a caller, the functions of the virtual machine, and messages."""
    p, x = (relax.Var(n, t) for n, t in (("p", tensor_type(dtype="bool")), ("x", tensor_type(4))))
    builder = relax.BlockBuilder()
    with builder.function("main", [p, x], pure=False):
        builder.emit(op.assert_op(p))
        y = builder.emit(relax.If(p, _block(op.exp(x)), _block(op.negative(x))))
        z = builder.emit(op.call_dps_packed("tests.packed", (y,), tensor_type(4)))
        builder.emit_func_output(z)
    lower(builder.get(), target({"kind": "cuda", "arch": "sm_90"}))


def test_thousands_of_bindings_with_constants():
    def body(builder, x):
        y = x
        for _ in range(600):
            y = builder.emit(op.multiply(y, op.ones((4, 4), "float32")))
            y = builder.emit(op.matmul(y, x))
        return y

    mod = module(body, tensor_type(4, 4))
    lowered = pipeline(target("llvm"))(mod)
    assert len(lowered.functions) < 10


def test_a_cast_in_a_dataflow_block_is_lowered_right():
    x = relax.Var("x", tensor_type(4))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(op.exp(x))
            cast = builder.match_cast(a, tensor_type(4))
            result = builder.emit_output(op.multiply(cast, builder.emit(op.negative(a))))
        builder.emit_func_output(result)
    mod = builder.get()
    with pytest.raises(tvm.error.InternalError, match="cyclic dependency"):  # stock fusion
        relax.get_pipeline("zero")(mod)
    x = np.arange(4, dtype="float32")
    vm = relax.VirtualMachine(compile_module(mod), tvm.cpu())
    np.testing.assert_allclose(vm["main"](to_tensor(x)).numpy(), -np.exp(2 * x), rtol=1e-6)


def emitted_choice(builder, condition, x, y):
    """Emit the choice of (x, (x, y)) or (y, (y, x))."""
    pairs = [relax.Tuple([x, relax.Tuple([x, y])]), relax.Tuple([y, relax.Tuple([y, x])])]
    return builder.emit(relax.If(condition, *[relax.SeqExpr([], pair) for pair in pairs]))


def last_of(builder, nested):
    """Return a dataflow block that takes the last tensor out of (a, (b, c)), and the result."""
    pair = relax.DataflowVar("pair", nested.ty.fields[1])
    result = relax.Var("result", pair.ty.fields[1])
    items = [(pair, relax.TupleGetItem(nested, 1)), (result, relax.TupleGetItem(pair, 1))]
    bindings = [relax.VarBinding(var, builder.normalize(item)) for var, item in items]
    return relax.SeqExpr([relax.DataflowBlock(bindings)], result)


@pytest.mark.parametrize("in_a_closure", [True, False])
def test_a_tuple_taken_out_of_a_tuple_in_a_dataflow_block(in_a_closure):
    """Stock fusion aborts on it."""
    ty = tensor_type(3)
    condition, x, y, unused = params = [
        relax.Var(name, relax.TensorType((), "bool") if name == "condition" else ty)
        for name in ("condition", "x", "y", "unused")
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params[:3]):
        body = last_of(builder, emitted_choice(builder, condition, x, y))
        if in_a_closure:
            closure = builder.emit(relax.Function([unused], builder.normalize(body), ty))
            body = relax.Call(closure, [x])
        builder.emit_func_output(builder.emit(op.exp(builder.emit(body))))
    main = relax.VirtualMachine(compile_module(builder.get()), tvm.cpu())["main"]
    x, y = random_tensors((3,), (3,))
    for condition, chosen in ((True, y), (False, x)):
        got = main(to_tensor(np.array(condition)), x, y).numpy()
        np.testing.assert_allclose(got, np.exp(chosen.numpy()), rtol=1e-6)


def test_relu_of_nan_is_nan():
    mod = module(lambda b, x: b.emit(op.nn.relu(x)), tensor_type(4))
    x = np.array([np.nan, -1, 2, -np.inf], "float32")
    for compiled, expected in (
        (tvm.compile(mod, target("llvm")), 0.0),  # stock
        (compile_module(mod), np.nan),
    ):
        y = relax.VirtualMachine(compiled, tvm.cpu())["main"](to_tensor(x)).numpy()
        np.testing.assert_array_equal(y, np.array([expected, 0, 2, 0], "float32"))


def test_what_is_built_early_is_changed_by_no_unforeseen_pass():
    steps = [step.declared for step in PIPELINES["llvm"].steps]
    early = next(i for i, own in enumerate(steps) if own.name == "build_early")
    later = {own.name for own in steps[early + 1 :] if own.over == "kernel"}
    assert later == {"vectorize_math", "expand_small_tanh"}
