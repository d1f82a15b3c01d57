"""The API of TVM's own gradient tests, with ours in the place of the pass."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.testing.utils import check_numerical_grads

import graphgrad as gg
from tests.running import function, run

F32 = "float32"


def gradients(mod, *args, **options):
    """Differentiate main by both passes; return TVM's result and ours."""
    theirs = relax.transform.Gradient("main", **options)(mod)
    ours = gg.transform.Gradient("main", **options)(mod)
    assert relax.analysis.check_well_formed(ours)
    return run(theirs, "main_adjoint", *args), run(ours, "main_adjoint", *args)


def same(mod, *args, **options):
    for theirs, ours in zip(*gradients(mod, *args, **options), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def rand(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


@I.ir_module
class Tuples:
    @R.function
    def main(
        x: R.Tuple(
            R.Tuple(R.Tensor((3, 3), "float32"), R.Tensor((3, 3), "float32")),
            R.Tensor((3, 3), "float32"),
        ),
        y: R.Tensor((3, 3), "float32"),
    ):
        with R.dataflow():
            a = ((y, y), (y, y))
            b = a[0]
            c = x[0]
            d = (x[1], b[1])
            e = R.add(c[0], d[0])
            f = R.multiply(e, R.add(d[1], c[1]))
            g = R.sum(f)
            R.output(g)
        return g


@I.ir_module
class Complex:
    @R.function
    def main(x: R.Tensor((6,), "float32"), y: R.Tensor((6, 3, 4), "float32")):
        with R.dataflow():
            parts = R.split(x, 2)
            both = (R.add(parts[0], parts[1]), parts[1])
            joined = R.concat(both)
            twice = R.concat((x, x))
            halves = R.split(R.add(twice, twice), 2)
            a = R.add(joined, halves[0])
            b = R.multiply(a, R.subtract(R.const(1.0, "float32"), a))
            c = R.sigmoid(R.tanh(b))
            d = R.matmul(y, R.sigmoid(R.permute_dims(y, axes=[0, 2, 1])))
            e = R.add(c, R.sum(d, axis=[1, 2]))
            gv = R.nn.nll_loss(R.nn.log_softmax(e), R.const(3, "int64"))
            R.output(gv)
        return gv


def mlp_loss(builder, x, w0, b0, w1, b1, label):
    h = builder.emit(relax.op.nn.relu(relax.op.add(relax.op.matmul(x, w0), b0)))
    y = builder.emit(relax.op.add(relax.op.matmul(h, w1), b1))
    return builder.emit(relax.op.nn.nll_loss(relax.op.nn.log_softmax(y), label))


MLP = (((4, 5), F32), ((5, 6), F32), ((6,), F32), ((6, 3), F32), ((3,), F32), ((4,), "int64"))


def mlp_arguments():
    arrays = [rand(*shape, seed=i) for i, (shape, _) in enumerate(MLP[:-1])]
    return [*arrays, np.array([0, 2, 1, 2])]


def test_same_as_tvm_on_shared_programs():
    same(Complex, rand(6), rand(6, 3, 4))


def test_same_as_tvm_on_mlp_with_chosen_parameters():
    mod = function(mlp_loss, *MLP)
    same(mod, *mlp_arguments(), require_grads=[mod["main"].params[i] for i in (1, 4)])


def test_numerically():
    mod = function(mlp_loss, *MLP)
    arguments = mlp_arguments()
    adjoint = gg.transform.Gradient("main", [mod["main"].params[i] for i in range(1, 5)])(mod)
    vm = relax.VirtualMachine(gg.compile(adjoint), tvm.cpu())
    _, found = vm["main_adjoint"](*map(tvm.runtime.tensor, arguments))

    def loss(*weights):
        tensors = [arguments[0], *weights, arguments[-1]]
        return vm["main"](*map(tvm.runtime.tensor, tensors)).numpy()

    check_numerical_grads(loss, arguments[1:-1], [g.numpy() for g in found])


def test_default_includes_integer_parameters_as_zeros_of_their_dtype():
    mod = function(mlp_loss, *MLP)
    *_, labels = run(gg.transform.Gradient("main")(mod), "main_adjoint", *mlp_arguments())
    assert labels.dtype == np.int64
    assert not labels.any()


def test_single_variable_and_intermediate_variable():
    def build(builder, x):
        y = builder.emit(relax.op.multiply(x, x))
        return builder.emit(relax.op.sum(y))

    mod = function(build, ((3,), F32))
    x = rand(3)
    block = mod["main"].body.blocks[0]
    for target, expected in [(mod["main"].params[0], 2 * x), (block.bindings[0].var, np.ones(3))]:
        adjoint = gg.transform.Gradient("main", target)(mod)
        np.testing.assert_allclose(run(adjoint, "main_adjoint", x)[1], expected, rtol=1e-6)


def test_target_index_and_original_results():
    def build(builder, x):
        total = builder.emit(relax.op.sum(x))
        square = builder.emit(relax.op.sum(relax.op.multiply(x, x)))
        return builder.emit(relax.Tuple([total, square]))

    mod = function(build, ((3,), F32))
    x = rand(3)
    adjoint = gg.transform.Gradient("main", target_index=1)(mod)
    total, square, gradient = run(adjoint, "main_adjoint", x)
    np.testing.assert_allclose([total, square], [x.sum(), (x * x).sum()], rtol=1e-5)
    np.testing.assert_allclose(gradient, 2 * x, rtol=1e-6)


def test_tuple_parameters_are_differentiated_through():
    adjoint = gg.transform.Gradient("main", [Tuples["main"].params[1]])(Tuples)
    vm = relax.VirtualMachine(gg.compile(adjoint), tvm.cpu())
    a, b, c, y = (rand(3, 3, seed=i) for i in range(4))
    tensor = tvm.runtime.tensor
    _, (found,) = vm["main_adjoint"]([[tensor(a), tensor(b)], tensor(c)], tensor(y))
    np.testing.assert_allclose(found.numpy(), a + c, rtol=1e-5)


def test_the_gradient_of_a_tuple_parameter_is_a_tuple():
    a, b, c, y = (rand(3, 3, seed=i) for i in range(4))
    tensor = tvm.runtime.tensor
    results = []
    for differentiate in (relax.transform.Gradient, gg.transform.Gradient):
        vm = relax.VirtualMachine(gg.compile(differentiate("main")(Tuples)), tvm.cpu())
        results.append(vm["main_adjoint"]([[tensor(a), tensor(b)], tensor(c)], tensor(y))[1])
    (theirs, _), (ours, _) = results
    assert len(ours) == 2 and len(ours[0]) == 2
    for mine, other in zip([*ours[0], ours[1]], [*theirs[0], theirs[1]], strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-5)


def test_symbolic_batch_and_two_blocks():
    @I.ir_module
    class Symbolic:
        @R.function
        def main(x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 2), "float32")):
            with R.dataflow():
                y = R.matmul(x, w)
                R.output(y)
            with R.dataflow():
                z = R.mean(y)
                R.output(z)
            return z

    x, w = rand(5, 3), rand(3, 2)
    _, dx, dw = run(gg.transform.Gradient("main")(Symbolic), "main_adjoint", x, w)
    np.testing.assert_allclose(dx, np.tile(w.sum(1) / 10, (5, 1)), rtol=1e-5)
    np.testing.assert_allclose(dw, np.tile(x.sum(0)[:, None] / 10, (1, 2)), rtol=1e-5)


def test_other_functions_stay_and_the_module_is_not_changed():
    mod = function(mlp_loss, *MLP)
    mod["other"] = function(lambda b, x: b.emit(relax.op.exp(x)), ((2,), F32), name="other")[
        "other"
    ]
    before = mod.script()
    names = {v.name_hint for v in gg.transform.Gradient("main")(mod).get_global_vars()}
    assert names == {"main", "other", "main_adjoint"}
    assert mod.script() == before


def test_runs_inside_a_pipeline():
    mod = function(mlp_loss, *MLP)
    passes = [gg.transform.Gradient("main"), relax.transform.LegalizeOps()]
    assert "main_adjoint" in {
        v.name_hint for v in tvm.transform.Sequential(passes)(mod).get_global_vars()
    }


def scalar(builder, x, i):
    return builder.emit(relax.Tuple([relax.op.sum(x), x, relax.op.sum(i)]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"func_name": "mian"}, gg.ArgumentError, "no Relax function 'mian'"),
        ({"target_index": 1}, gg.NotDifferentiableError, "float scalar"),
        ({"target_index": 2}, gg.NotDifferentiableError, "float scalar"),
        ({"target_index": 3}, gg.ArgumentError, "returns 3 value"),
        ({"require_grads": ["x0", "x0"]}, gg.ArgumentError, "each once"),
        ({"require_grads": ["nothing"]}, gg.ArgumentError, "no value 'nothing'"),
        ({"require_grads": relax.Var("z", relax.TensorType((2,), F32))}, gg.ArgumentError, "'z'"),
    ],
)
def test_bad_use(arguments, error, message):
    mod = function(scalar, ((3,), F32), ((3,), "int64"))
    with pytest.raises(error, match=message):
        gg.transform.Gradient(**{"func_name": "main", **arguments})(mod)
