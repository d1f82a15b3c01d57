"""Mixed precision inside loops and branches: what is rounded there, and the gradients of that."""

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R

import graphgrad as gg
from graphgrad.fallback.kernels.expressions import kept_expressions
from graphgrad.ir.inline import inline_calls
from graphgrad.ir.kernel_calls import arguments_of, is_kernel_call
from graphgrad.ir.visits import nodes_in
from graphgrad.precision.mixed import mix_precision

op = relax.op
STEPS, BATCH, WIDTH = 6, 3, 8


def module_of(step, shapes, name=None):
    """Return a module whose function runs a loop of some steps over `x` from `h` on."""
    x, w, h = (relax.Var(key, relax.TensorType(s, "float32")) for key, s in shapes.items())
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, h]):
        _, states = gg.scan(lambda h, x: step(builder.emit, h, x, w), h, x, name=name)
        builder.emit_func_output(builder.emit(states))
    return builder.get()


def recurrence(emit, h, x, w):
    new = emit(op.tanh(emit(op.add(x, emit(op.matmul(h, w))))))
    return new, new


SHAPES = {"x": (STEPS, BATCH, WIDTH), "w": (WIDTH, WIDTH), "h": (BATCH, WIDTH)}


def arrays(shapes=SHAPES, seed=0):
    random = np.random.default_rng(seed)
    return {key: random.standard_normal(s).astype("float32") for key, s in shapes.items()}


def loop_of(program):
    """Return the call of the loop of a program, and its kernel."""
    ((call),) = [v for _, v in program.bindings if is_kernel_call(v)]
    return call, program.kernels[call.args[0]]


def argument_dtypes(program):
    return [str(argument.ty.dtype) for argument in arguments_of(loop_of(program)[0])]


def by_numpy(x, w, h, cotangent, dtype):
    """Return the states of `recurrence` and all gradients, products of rounded numbers."""

    def rounded(array):
        return array.astype(dtype).astype("float64")

    states, products = [h.astype("float64")], rounded(w)
    for row in x:
        states.append(np.tanh(row + rounded(rounded(states[-1]) @ products)))
    dh, dx, dw = np.zeros_like(h, "float64"), np.zeros_like(x, "float64"), 0.0
    for t in reversed(range(len(x))):
        dx[t] = (dh + cotangent[t]) * (1 - states[t + 1] ** 2)
        low = rounded(dx[t])
        dw = dw + rounded(states[t]).T @ low
        dh = rounded(low @ products.T)
    return np.stack(states[1:]), {"x": dx, "w": rounded(dw), "h": dh}


def check_states(states, expected, dtype):
    """Most are the same; one near the middle of two numbers may be rounded to the other."""
    distances, ulp = abs(states - expected), float(ml_dtypes.finfo(dtype).eps)
    assert distances.max() < 2 * ulp
    assert np.median(distances) < ulp / 1000


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_states_and_gradients_are_those_of_rounded_products(dtype):
    mod = gg.transform.MixedPrecision(dtype)(module_of(recurrence, SHAPES))
    machine = relax.VirtualMachine(gg.compile(gg.vjp(mod)), tvm.cpu())
    given = {key: 0.4 * array for key, array in arrays().items()}
    cotangent = np.random.default_rng(1).standard_normal((STEPS, BATCH, WIDTH)).astype("float32")
    states, gradients = machine["main_vjp"](*map(tvm.runtime.tensor, [*given.values(), cotangent]))
    expected, expected_gradients = by_numpy(**given, cotangent=cotangent, dtype=dtype)
    ulp = float(ml_dtypes.finfo(dtype).eps)
    check_states(states.numpy(), expected, dtype)
    for (name, wanted), got in zip(expected_gradients.items(), gradients, strict=True):
        distance = np.linalg.norm(got.numpy() - wanted) / np.linalg.norm(wanted)
        assert distance < ulp / 4, name


def test_weight_is_rounded_once_in_front_of_the_loop():
    program = mix_precision(
        inline_calls(module_of(recurrence, SHAPES), "main"), gg.Precision("bfloat16"), ["w"]
    )
    assert argument_dtypes(program) == ["float32", "float32", "bfloat16"]
    casts = [v for _, v in program.bindings if getattr(v.op, "name", "") == "relax.astype"]
    assert len(casts) == 1
    call, _ = loop_of(program)
    assert {str(ty.dtype) for ty in nodes_in(call.ty, relax.TensorType)} <= {"float32"}


def test_what_is_read_otherwise_too_is_given_in_both_precisions():
    def step(emit, h, x, w):
        product = emit(op.matmul(h, w))
        new = emit(op.tanh(emit(op.add(emit(op.add(x, product)), emit(op.sum(w, axis=0))))))
        return new, emit(op.multiply(new, emit(op.max(w, axis=1))))

    def inner(emit, h, x, w):
        # The product reads the weight as it is, the sum behind it what the step makes of it.
        scaled = emit(op.multiply(w, emit(op.mean(h))))
        return step(emit, h, x, w)[0], emit(op.sum(scaled, axis=0))

    program = mix_precision(
        inline_calls(module_of(inner, SHAPES), "main"), gg.Precision("bfloat16"), ["w"]
    )
    assert argument_dtypes(program).count("bfloat16") == 1
    _, kernel = loop_of(program)
    shapes = [p.shape for p in kept_expressions(kernel).parameters if isinstance(p, te.Tensor)]
    assert sum(len(shape) == 2 and int(shape[0]) == WIDTH for shape in shapes) == 2


def test_elementwise_loops_and_loops_with_a_name_stay():
    def decay(emit, h, x, w):
        new = emit(op.add(emit(op.multiply(h, w)), x))
        return new, new

    decayed = inline_calls(module_of(decay, SHAPES | {"w": (WIDTH,)}), "main")
    named = inline_calls(module_of(recurrence, SHAPES, name="mine"), "main")
    for program in (decayed, named):
        mixed = mix_precision(program, gg.Precision("bfloat16"), ["w"])
        assert argument_dtypes(mixed) == ["float32"] * 3
        assert loop_of(mixed)[1].same_as(loop_of(program)[1])


def test_pass_names_the_new_kernel_apart_from_functions_of_the_module():
    mod = module_of(recurrence, SHAPES)

    @I.ir_module
    class Other:
        @R.function
        def scan1(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
            return x

    mod.update(Other)
    mixed = gg.transform.MixedPrecision("bfloat16")(mod)
    assert {"main", "scan", "scan1"} < {variable.name_hint for variable in mixed.get_global_vars()}
    tvm.ir.assert_structural_equal(mixed["scan1"], Other["scan1"])
    machine = relax.VirtualMachine(gg.compile(mixed), tvm.cpu())
    given = {key: 0.4 * array for key, array in arrays().items()}
    states = machine["main"](*map(tvm.runtime.tensor, given.values())).numpy()
    expected, _ = by_numpy(**given, cotangent=states, dtype="bfloat16")
    check_states(states, expected, "bfloat16")


def layer(kind):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    weights = arrays({"W": (1, gates * WIDTH, 5), "R": (1, gates * WIDTH, WIDTH)})
    node = helper.make_node(kind, ["x", *weights], ["y"], name="layer", hidden_size=WIDTH)
    return helper.make_model(
        helper.make_graph(
            [node],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, BATCH, 5])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, BATCH, WIDTH])],
            [onnx.numpy_helper.from_array(0.5 * a, name) for name, a in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 22)],
        ir_version=10,
    )


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_of_onnx(kind):
    model = gg.from_onnx(layer(kind))
    x = arrays({"x": (STEPS, BATCH, 5)}, seed=2)
    cotangent = np.random.default_rng(3).standard_normal((STEPS, 1, BATCH, WIDTH), "float32")

    def gradient(precision):
        _, gradients = gg.value_and_grad(model, precision=precision)(x, cotangent)
        return gradients["R"]

    exact = gradient("float32")
    distance = np.linalg.norm(gradient("bfloat16") - exact) / np.linalg.norm(exact)
    assert 1e-4 < distance < 2e-2
    # The product with the input is part of the node, too.
    full = gg.Precision("bfloat16", nodes={"layer": "float32"})
    np.testing.assert_array_equal(gradient(full), exact)


def choice():
    """Return a model of a product, and of an If whose branches make another one each."""

    def branch(name, weight, activation):
        nodes = [
            helper.make_node("MatMul", ["p", weight], [f"{name}_z"], name=f"{name}/MatMul"),
            helper.make_node(activation, [f"{name}_z"], [f"{name}_y"], name=f"{name}/act"),
        ]
        result = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [BATCH, WIDTH])
        return helper.make_graph(nodes, name, [], [result])

    weights = arrays(dict.fromkeys("abc", (WIDTH, WIDTH)))
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"], name="first"),
        helper.make_node(
            "If",
            ["go"],
            ["q"],
            then_branch=branch("then", "b", "Tanh"),
            else_branch=branch("else", "c", "Sigmoid"),
        ),
        helper.make_node("MatMul", ["q", "b"], ["y"], name="last"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [BATCH, WIDTH]),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, WIDTH])
    parameters = [onnx.numpy_helper.from_array(0.3 * a, name) for name, a in weights.items()]
    return helper.make_model(
        helper.make_graph(nodes, "net", inputs, [result], parameters),
        opset_imports=[helper.make_opsetid("", 22)],
        ir_version=10,
    )


@pytest.mark.parametrize("go", [True, False])
def test_products_in_branches_are_rounded(go):
    model = gg.from_onnx(choice())
    inputs = {"x": arrays({"x": (BATCH, WIDTH)}, seed=4)["x"], "go": np.array(go)}
    cotangent = np.ones((BATCH, WIDTH), "float32")

    def gradients(precision):
        return gg.value_and_grad(model, precision=precision)(inputs, cotangent)[1]

    exact, mixed = gradients("float32"), gradients("bfloat16")
    name = "b" if go else "c"
    assert 1e-4 < np.linalg.norm(mixed[name] - exact[name]) / np.linalg.norm(exact[name]) < 2e-2
    assert np.any(mixed["c"]) == (not go)
    # All three in float32: the same numbers, so each had been rounded by its own name.
    nodes = dict.fromkeys(["first", "then/MatMul", "else/MatMul", "last"], "float32")
    kept = gradients(gg.Precision("bfloat16", nodes=nodes))
    for weight, gradient in exact.items():
        np.testing.assert_array_equal(kept[weight], gradient)


def test_dtypes_in_branches():
    program = mix_precision(
        inline_calls(gg.from_onnx(choice()).mod, "main"), gg.Precision("bfloat16"), "abc"
    )
    ((_, value),) = [(v, e) for v, e in program.bindings if isinstance(e, relax.If)]
    for branch in (value.true_branch, value.false_branch):
        products = [
            str(b.var.ty.dtype)
            for block in branch.blocks
            for b in block.bindings
            if getattr(b.value.op, "name", "") == "relax.matmul"
        ]
        assert products == ["bfloat16"]
        assert str(branch.body.ty.dtype) == "float32"
