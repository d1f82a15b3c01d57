"""Forward mode: against differences, against reverse mode, and of programs of every shape."""

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.registry import unregister
from tests.autodiff.test_if import Chosen
from tests.autodiff.test_mutation import program, read_by_the_gradient
from tests.lower import aliasing
from tests.lower.aliasing import outside
from tests.running import F64, function, run

op = relax.op


def arrays(*shapes, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.uniform(0.5, 1.5, shape) for shape in shapes]


def differences(mod, values, tangents, positions, name="main"):
    """Return the derivatives of a function's float results along tangents of some arguments."""
    ends = []
    for step in (1e-6, -1e-6):
        moved = list(values)
        for position, tangent in zip(positions, tangents, strict=True):
            moved[position] = values[position] + step * tangent
        ends.append(run(mod, name, *moved))
    return [(a - b) / 2e-6 for a, b in zip(*ends, strict=True) if a.dtype == F64]


def assert_forward(mod, values, positions, wrt=None, name="main"):
    tangents = arrays(*(values[position].shape for position in positions), seed=1)
    forward = gg.jvp(mod, name, wrt)
    results = run(forward, f"{name}_jvp", *values, *tangents)
    expected = differences(mod, values, tangents, positions, name)
    given = results[-len(expected) :]
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)
    return forward


def test_signature():
    mod = function(lambda b, x, w: b.emit(op.matmul(op.tanh(x), w)), ((2, 3), F64), ((3, 4), F64))
    values = arrays((2, 3), (3, 4))
    forward = assert_forward(mod, values, [0, 1])
    names = [param.name for param in forward["main_jvp"].params]
    assert names == ["x0", "x1", "x0_tangent", "x1_tangent"]
    result = forward["main_jvp"].ret_ty
    tvm.ir.assert_structural_equal(result.fields[1], result.fields[0])
    assert_forward(mod, values, [1], ["x1"])
    with pytest.raises(gg.ArgumentError, match="main_jvp"):
        gg.jvp(forward)


def test_outputs_are_nested_and_integers_have_no_tangent():
    def build(b, x):
        y = b.emit(op.exp(x))
        places = b.emit(op.argmax(x, axis=0))
        return b.emit(relax.Tuple([y, places, relax.Tuple([op.sin(x), op.ceil(x)])]))

    mod = function(build, ((3, 2), F64))
    forward = gg.jvp(mod)
    tangents = forward["main_jvp"].ret_ty.fields[1]
    assert len(tangents.fields) == 2
    assert len(tangents.fields[1].fields) == 2
    x, t = arrays((3, 2), (3, 2))
    *_, by_exp, by_sin, by_ceil = run(forward, "main_jvp", x, t)
    np.testing.assert_allclose(by_exp, np.exp(x) * t)
    np.testing.assert_allclose(by_sin, np.cos(x) * t)
    assert not by_ceil.any()


def test_value_inside_gets_its_tangent_in_addition():
    def build(b, x):
        h = b.emit(op.square(x), "h")
        return b.emit(op.multiply(h, op.exp(x)))

    mod = function(build, ((3,), F64))
    x, dx, dh = arrays((3,), (3,), (3,))
    *_, tangent = run(gg.jvp(mod, wrt=["x0", "h"]), "main_jvp", x, dx, dh)
    np.testing.assert_allclose(tangent, ((2 * x + x * x) * dx + dh) * np.exp(x))


@pytest.mark.parametrize("flag", [True, False])
def test_branches(flag):
    values = [*arrays((3,), (3,), (3,)), np.array(flag)]
    forward = assert_forward(Chosen, values, [0, 1, 2])
    # The branches compute their values and the tangents at once.
    body = forward["main_jvp"].body
    bound = [binding.value for block in body.blocks for binding in block.bindings]
    assert sum(isinstance(value, relax.If) for value in bound) == 1


def test_branch_without_tangents():
    values = [*arrays((3,), (3,), (3,)), np.array(True)]
    assert_forward(Chosen, values, [2], ["w"])


def test_loop():
    x, w, h = (
        relax.Var(n, relax.TensorType(s, F64))
        for n, s in (("x", (5, 2, 3)), ("w", (3, 3)), ("h", (2, 3)))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, h]):

        def step(h, x):
            h = builder.emit(op.tanh(op.add(x, op.matmul(h, w))))
            return h, h

        last, stacked = gg.scan(step, h, x)
        builder.emit_func_output(builder.emit(relax.Tuple([last, stacked])))
    assert_forward(builder.get(), arrays((5, 2, 3), (3, 3), (2, 3)), [0, 1, 2])


def test_kernel_of_a_user():
    def kernel(a, b):
        k = te.reduce_axis((0, 3))
        product = te.compute((2, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))
        return te.compute((2, 4), lambda i, j: te.sqrt(product[i, j]))

    x, w = (relax.Var(n, relax.TensorType(s, F64)) for n, s in (("x", (2, 3)), ("w", (3, 4))))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(gg.call_te(kernel, x, w)))
    assert_forward(builder.get(), arrays((2, 3), (3, 4)), [0, 1])


def test_symbolic_extents_and_inner_functions():
    @I.ir_module
    class Symbolic:
        @R.function(private=True)
        def inner(x: R.Tensor(("n", 3), "float64")) -> R.Tensor(("n", 3), "float64"):
            y = R.nn.softmax(R.multiply(x, x))
            return y

        @R.function
        def main(x: R.Tensor(("n", 3), "float64")) -> R.Tensor(("n", 3), "float64"):
            cls = Symbolic
            y = cls.inner(x)
            z = R.nn.log_softmax(R.add(y, x))
            return z

    assert_forward(Symbolic, arrays((4, 3)), [0])


def test_constant_that_an_op_adds_is_not_in_the_tangent():
    mod = function(lambda b, x: b.emit(op.nn.pad(x, pad_width=[1, 1], pad_value=3.0)), ((2,), F64))
    assert_forward(mod, arrays((2,)), [0])


def test_rules_derived():
    mod = function(lambda b, x: b.emit(op.nn.gelu(op.mean(x, axis=[1]))), ((2, 3), F64))
    forward = gg.jvp(mod, rules="derived")
    x, t = arrays((2, 3), (2, 3))
    *_, tangent = run(forward, "main_jvp", x, t)
    np.testing.assert_allclose(tangent, differences(mod, [x], [t], [0])[0], rtol=1e-7)


def quartic(b, x):
    return b.emit(op.sum(op.divide(op.power(x, relax.const(5.0, F64)), op.add(x, x))))


def test_second_order_every_way():
    mod = function(quartic, ((3,), F64))  # Σ x⁴ / 2
    x, u, v = arrays((3,), (3,), (3,))
    one, zero = np.float64(1), np.float64(0)
    hessian = 6 * x * x
    twice = gg.jvp(gg.jvp(mod, wrt=["x0"]), "main_jvp", wrt=["x0"])
    np.testing.assert_allclose(run(twice, "main_jvp_jvp", x, u, v)[-1], np.sum(u * hessian * v))
    reverse_over_forward = gg.vjp(gg.jvp(mod, wrt=["x0"]), "main_jvp", wrt=["x0"])
    *_, gradient = run(reverse_over_forward, "main_jvp_vjp", x, v, zero, one)
    np.testing.assert_allclose(gradient, hessian * v)
    forward_over_reverse = gg.jvp(gg.vjp(mod), "main_vjp", wrt=["x0"])
    *_, product = run(forward_over_reverse, "main_vjp_jvp", x, one, v)
    np.testing.assert_allclose(product, hessian * v)


# Bad input


@pytest.fixture
def user_rule():
    names = []

    def register(name, rule):
        names.append(name)
        gg.register_gradient(name)(rule)

    yield register
    for name in names:
        unregister(name)


def test_rule_of_a_user_is_transposed(user_rule):
    user_rule("relax.erf", lambda inputs, outputs, cts, attrs: [cts[0] * (inputs[0] * 2.0)])
    mod = function(lambda b, x: b.emit(op.erf(x)), ((3,), F64))
    x, t = arrays((3,), (3,))
    np.testing.assert_allclose(run(gg.jvp(mod), "main_jvp", x, t)[-1], 2 * x * t)


def test_rule_that_is_not_linear_is_refused(user_rule):
    user_rule("relax.erf", lambda inputs, outputs, cts, attrs: [cts[0] * cts[0]])
    mod = function(lambda b, x: b.emit(op.erf(x)), ((3,), F64))
    with pytest.raises(gg.RuleError, match=r"test_jvp\.py:\d+: .*relax\.erf is not linear"):
        gg.jvp(mod)


def test_value_that_is_overwritten_later_has_a_tangent():
    """A tangent is computed right behind its value, where a gradient comes too late."""
    mod = gg.jvp(program(read_by_the_gradient))
    x, t = np.linspace(0.1, 1, 4), np.linspace(1, 2, 4)
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    with outside():
        _, tangent = machine["main_jvp"](to_tensor(x), to_tensor(t))
    np.testing.assert_allclose(tangent.numpy(), 2 * x * np.cos(x * x) * t)


def test_call_that_overwrites_what_its_tangent_reads(user_rule):
    user_rule(
        "tests.aliasing.declared_incremented",
        lambda inputs, outputs, cts, attrs: [cts[0] * inputs[0]],
    )

    def build(b, x):
        y = b.emit(op.multiply(x, x))
        overwritten = op.call_inplace_packed(
            aliasing.DECLARED_INCREMENTED, y, inplace_indices=0, ty_args=aliasing.TENSOR
        )
        return b.emit(op.add(b.emit(overwritten), x))

    with pytest.raises(gg.MissingGradientError, match=r"overwrites gv, which gradients read"):
        gg.jvp(program(build))


def test_op_without_gradient_is_named():
    @I.ir_module
    class Unknown:
        @R.function
        def main(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
            y = R.call_pure_packed("test.unknown", x, ty_args=[R.Tensor((3,), "float64")])
            return y

    with pytest.raises(gg.MissingGradientError, match=r"test\.unknown"):
        gg.jvp(Unknown)


def test_nothing_to_differentiate():
    mod = function(lambda b, x: b.emit(op.argmax(x, axis=0)), ((3,), F64))
    with pytest.raises(gg.NotDifferentiableError, match="no float tensor"):
        gg.jvp(mod)
    integer = function(lambda b, x: b.emit(op.add(x, x)), ((3,), "int32"))
    with pytest.raises(gg.ArgumentError):
        gg.jvp(integer)
    with pytest.raises(gg.ArgumentError, match="nothing"):
        gg.jvp(mod, wrt=["nothing"])
