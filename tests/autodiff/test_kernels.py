"""Kernels of the user's in Relax programs: their gradients are derived from their loops."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import graphgrad as gg
from graphgrad.errors import MissingGradientError


@I.ir_module(s_tir=True)
class Chain:
    @T.prim_func(s_tir=True)
    def squared(A: T.Buffer((4, 6), "float32"), B: T.Buffer((4, 6), "float32")):
        for i, j in T.grid(4, 6):
            with T.sblock("squared"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * A[vi, vj] + T.float32(0.5)

    @T.prim_func(s_tir=True)
    def rows(A: T.Buffer((4, 6), "float32"), B: T.Buffer((4,), "float32")):
        with T.sblock("rows"):
            for i in range(4):
                B[i] = T.float32(0)
                for k in range(6):
                    B[i] = B[i] + T.tanh(A[i, k])

    @T.prim_func(s_tir=True)
    def filtered(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        with T.sblock("filtered"):
            for i in range(4):
                B[i] = A[i]
                if i > 0:
                    B[i] = B[i] + T.float32(0.5) * B[i - 1]

    @R.function
    def main(x: R.Tensor((4, 6), "float32")) -> R.Tensor((), "float32"):
        cls = Chain
        with R.dataflow():
            a = R.call_tir(cls.squared, (x,), out_ty=R.Tensor((4, 6), "float32"))
            b = R.call_tir(cls.rows, (a,), out_ty=R.Tensor((4,), "float32"))
            c = R.call_tir(cls.filtered, (b,), out_ty=R.Tensor((4,), "float32"))
            y = R.sum(R.multiply(c, c))
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class InPlace:
    @T.prim_func(s_tir=True)
    def accumulated(A: T.Buffer((3, 4), "float32"), B: T.Buffer((3,), "float32")):
        with T.sblock("accumulated"):
            for i, k in T.grid(3, 4):
                B[i] = B[i] * T.float32(0.5) + A[i, k] * A[i, k]

    @R.function
    def main(x: R.Tensor((3, 4), "float32"), total: R.Tensor((3,), "float32")) -> R.Tensor(
        (), "float32"
    ):
        cls = InPlace
        with R.dataflow():
            doubled = R.multiply(total, total)
            b = R.call_tir_inplace(
                cls.accumulated,
                (x, doubled),
                inplace_indices=[1],
                out_ty=R.Tensor((3,), "float32"),
            )
            y = R.sum(R.multiply(b, b))
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class Symbolic:
    @T.prim_func(s_tir=True)
    def doubled(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, 3), "float32")
        B = T.match_buffer(b, (n * 2,), "float32")
        for i, k in T.grid(n * 2, 3):
            with T.sblock("doubled"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi // 2, vk] * A[vi // 2, vk]

    @R.function
    def main(x: R.Tensor(("n", 3), "float32")) -> R.Tensor((), "float32"):
        n = T.int64()
        cls = Symbolic
        with R.dataflow():
            a = R.call_tir(cls.doubled, (x,), out_ty=R.Tensor((n * 2,), "float32"))
            y = R.sum(R.multiply(a, a))
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class Several:
    @T.prim_func(s_tir=True)
    def moments(
        A: T.Buffer((4, 6), "float32"), M: T.Buffer((4,), "float32"), V: T.Buffer((4,), "float32")
    ):
        with T.sblock("moments"):
            for i in range(4):
                M[i] = T.float32(0)
                V[i] = T.float32(0)
                for k in range(6):
                    M[i] = M[i] + A[i, k]
                for k in range(6):
                    V[i] = V[i] + (A[i, k] - M[i] / T.float32(6)) * A[i, k]

    @R.function
    def main(x: R.Tensor((4, 6), "float32")) -> R.Tensor((), "float32"):
        cls = Several
        with R.dataflow():
            both = R.call_tir(
                cls.moments,
                (x,),
                out_ty=[R.Tensor((4,), "float32"), R.Tensor((4,), "float32")],
            )
            y = R.sum(R.multiply(both[0], both[1]))
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class Secret:
    @T.prim_func(s_tir=True)
    def searched(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        k = T.alloc_local((1,), "int32")
        k[0] = 0
        with T.sblock("search"):
            while k[0] < 4:
                B[k[0]] = A[k[0]]
                k[0] = k[0] + 1

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((), "float32"):
        cls = Secret
        with R.dataflow():
            a = R.call_tir(cls.searched, (x,), out_ty=R.Tensor((4,), "float32"))
            y = R.sum(a)
            R.output(y)
        return y


def _chain(x):
    rows = np.tanh(x * x + 0.5).sum(1)
    filtered = np.zeros(4)
    for i in range(4):
        filtered[i] = rows[i] + (0.5 * filtered[i - 1] if i else 0)
    return (filtered**2).sum()


def _in_place(x, total):
    held = total**2
    for k in range(4):
        held = 0.5 * held + x[:, k] ** 2
    return (held**2).sum()


def _symbolic(x):
    return 2 * ((x * x).sum(1) ** 2).sum()


def _several(x):
    total = x.sum(1)
    return (total * ((x - total[:, None] / 6) * x).sum(1)).sum()


PROGRAMS = {
    "chain": (Chain, [(4, 6)], _chain),
    "in place": (InPlace, [(3, 4), (3,)], _in_place),
    "symbolic": (Symbolic, [(5, 3)], _symbolic),
    "several results": (Several, [(4, 6)], _several),
}


def _arrays(shapes):
    generator = np.random.default_rng(0)
    return [generator.uniform(-1, 1, shape).astype("float32") for shape in shapes]


def _differences(function, arrays):
    """Return the gradient by central differences, in float64."""
    wide = [array.astype("float64") for array in arrays]
    result = []
    for number, array in enumerate(wide):
        gradient = np.zeros_like(array)
        for at in np.ndindex(*array.shape):
            moved = [a.copy() for a in wide]
            moved[number][at] += 1e-6
            ahead = function(*moved)
            moved[number][at] -= 2e-6
            gradient[at] = (ahead - function(*moved)) / 2e-6
        result.append(gradient)
    return result


def _stock(module):
    return tvm.compile(module, "llvm")


def _own(module):
    return gg.compile(module, gg.target("llvm"))


@pytest.mark.parametrize("compiled", [_own, _stock], ids=["gg.compile", "tvm.compile"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_the_mathematics(name, compiled):
    module, shapes, function = PROGRAMS[name]
    arrays = _arrays(shapes)
    machine = relax.VirtualMachine(compiled(gg.vjp(module)), tvm.cpu())
    given = [*arrays, np.ones((), "float32")]
    value, gradients = machine["main_vjp"](*map(tvm.runtime.tensor, given))
    np.testing.assert_allclose(value.numpy(), function(*arrays), rtol=1e-5)
    for gradient, expected in zip(gradients, _differences(function, arrays), strict=True):
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_agree_with_differences_to_second_order(name):
    module, shapes, _ = PROGRAMS[name]
    gg.check_grads(module, _arrays(shapes), order=2)


def test_what_cannot_be_raised_is_missing_and_names_its_block():
    with pytest.raises(MissingGradientError, match=r"search.*while loop") as caught:
        gg.vjp(Secret)
    assert "searched" in str(caught.value)


def test_a_kernel_of_another_symbol_keeps_its_name():
    """It is added to the module under a name that is not its symbol, and is there once."""
    x = relax.Var("x", relax.TensorType([4, 6], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        kernel = builder.add_func(Chain["squared"], "mine")
        builder.emit_func_output(builder.emit(relax.call_tir(kernel, relax.Tuple([x]), x.ty)))
    first = gg.vjp(builder.get())
    names = {variable.name_hint for variable in first.get_global_vars()}
    assert "mine" in names
    assert "squared" not in names
    assert "main_vjp_vjp" in {v.name_hint for v in gg.vjp(first, "main_vjp").get_global_vars()}
