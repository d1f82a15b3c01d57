"""Maps that are computed where they are read, and those that are not."""

import numpy as np
import pytest
from tvm import relax, te

import graphgrad as gg
from graphgrad.ir.kernel_calls import is_kernel_call
from graphgrad.ir.rewrite import bindings_of
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.lower.cuda.row_chains import GPU
from graphgrad.lower.fusion import recompute_maps
from tests.lower.fusion.programs import called, fused, kernels, noted
from tests.running import function, run

op = relax.op
LARGE = ((64, 1024), "float32")
ROW = ((1024,), "float32")


HOST = processor_of(gg.target("llvm"))


def repeated(build, *types, processor=HOST):
    return fused(recompute_maps(noted(kernels(build, *types)), processor))


def read_twice(make):
    """Return a function of two sums of one map."""

    def build(b, *x):
        y = b.emit(make(b, *x))
        return relax.Tuple([b.emit(op.sum(y, axis=[0])), b.emit(op.max(y, axis=[0]))])

    return build


def difference(b, x, row):
    return op.subtract(x, row)


def test_a_difference_is_computed_in_both_readers():
    mod = kernels(read_twice(difference), LARGE, ROW)
    assert len(called(fused(noted(mod)))) == 3
    assert len(called(repeated(read_twice(difference), LARGE, ROW))) == 2


def test_so_is_what_it_is_computed_from():
    def scaled(b, x, row):
        return op.multiply(b.emit(op.subtract(x, row)), row)

    assert len(called(repeated(read_twice(scaled), LARGE, ROW))) == 2


def test_values_do_not_change():
    x, row = np.random.default_rng(0).standard_normal((64, 1024)).astype("float32"), np.float32(2)
    results = run(function(read_twice(difference), LARGE, ROW), "main", x, np.full(1024, row))
    np.testing.assert_allclose(results[0], (x - row).sum(0), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(results[1], (x - row).max(0))


def test_a_maximum_finds_the_elements_that_it_was_computed_from():
    """Where a function is computed twice in two ways no element may equal the maximum."""

    def build(b, x):
        y = b.emit(op.erf(x))
        return relax.Tuple([b.emit(op.max(y, axis=0)), b.emit(op.sum(y, axis=0))])

    x = np.random.default_rng(0).uniform(-1, 1, (1024, 64)).astype("float32")
    mod = gg.vjp(function(build, (x.shape, "float32")))
    *_, x_bar = run(mod, "main_vjp", x, np.ones(64, "float32"), np.zeros(64, "float32"))
    slope = 2 / np.sqrt(np.pi) * np.exp(-(x.max(0) ** 2))
    np.testing.assert_allclose(x_bar, np.where(x == x.max(0), slope, 0), rtol=1e-5)


def logarithm(b, x):
    return op.log(x)


def exponential(b, x):
    return op.exp(b.emit(op.negative(x)))


def of_three(b, *x):
    return op.add(x[0], b.emit(op.add(x[1], x[2])))


def product(b, x, w):
    return op.nn.relu(b.emit(op.matmul(x, w)))


@pytest.mark.parametrize(
    "make, types, calls",
    [
        (logarithm, [LARGE], 3),  # dear
        (exponential, [LARGE], 3),  # another exponential than that of a map
        (exponential, [((64, 1024), "float64")], 3),  # a call of the library for each element
        (of_three, [LARGE, LARGE, LARGE], 2),
        (product, [((64, 32), "float32"), ((32, 1024), "float32")], 3),  # stored by the product
    ],
)
def test_what_pays(make, types, calls):
    assert len(called(repeated(read_twice(make), *types))) == calls


@pytest.mark.parametrize(("dtype", "calls"), [("float32", 2), ("float64", 3)])
def test_exponentials_are_repeated_in_maps(dtype, calls):
    """In float64 each is a call of the library."""

    def build(b, x, z):
        y = b.emit(exponential(b, x))
        return relax.Tuple([b.emit(op.multiply(y, z)), b.emit(op.matmul(z, b.emit(op.add(y, x))))])

    square = ((512, 512), dtype)
    assert len(called(repeated(build, square, square))) == calls + 1


def test_many_readers_of_a_map_of_several_tensors_read_the_map():
    def build(b, *x):
        y = b.emit(op.add(x[0], x[1]))
        sums = [
            b.emit(op.sum(b.emit(op.multiply(y, relax.const(float(i), "float32"))), axis=[0]))
            for i in range(2, 8)
        ]
        return relax.Tuple(sums)

    assert len(called(repeated(build, LARGE, LARGE))) == 7


def test_many_readers_of_an_exponential_read_it():
    """Each would compute it anew."""

    def build(count):
        def sums(b, x):
            y = b.emit(op.exp(x))
            kinds = [op.sum, op.max, op.min, op.prod][:count]
            return relax.Tuple([b.emit(kind(y, axis=[0])) for kind in kinds])

        return sums

    assert not any(name == "exp" for name in called(repeated(build(3), LARGE)))
    assert len(called(repeated(build(4), LARGE))) == 5


def test_readers_of_an_exponential_that_are_one_kernel_count_once():
    """As those of a gate's sigmoid: the gate, and its gradients by both factors."""

    def build(b, x, y, cotangent):
        s = b.emit(op.sigmoid(x))
        silu = b.emit(op.multiply(x, s))
        by_silu = b.emit(op.multiply(cotangent, y))
        by_sigmoid = b.emit(op.multiply(by_silu, x))
        slope = b.emit(op.multiply(s, b.emit(op.subtract(relax.const(1.0), s))))
        by_x = op.add(b.emit(op.multiply(by_silu, s)), b.emit(op.multiply(by_sigmoid, slope)))
        results = op.multiply(silu, y), op.multiply(cotangent, silu), by_x
        return relax.Tuple([b.emit(result) for result in results])

    names = called(repeated(build, LARGE, LARGE, LARGE))
    assert len(names) == 3 and all("sigmoid" in name for name in names)


@pytest.mark.parametrize("processor", [HOST, GPU], ids=["processor", "GPU"])
def test_readers_in_one_kernel_share_an_exponential(processor):
    """As the steps of a moving average do: a copy for each would be as many calls to be fused."""

    def build(b, weight, x):
        s, y = b.emit(op.sigmoid(weight)), x
        for _ in range(14):
            y = b.emit(op.multiply(y, s))
        square = b.emit(op.multiply(s, s))
        return relax.Tuple([y, b.emit(op.add(square, b.emit(op.multiply(square, s))))])

    mod = recompute_maps(noted(kernels(build, LARGE, LARGE)), processor)
    calls = [
        binding.value for binding in bindings_of(mod["main"].body) if is_kernel_call(binding.value)
    ]
    assert sum("sigmoid" in call.args[0].name_hint for call in calls) == 2
    assert len(called(fused(mod))) == 2


def test_an_operand_of_a_product_stays():
    def build(b, x, row):
        y = b.emit(op.subtract(x, row))
        return relax.Tuple([b.emit(op.matmul(y, b.emit(op.permute_dims(y)))), b.emit(op.sum(y))])

    assert len(called(repeated(build, LARGE, ROW))) == len(
        called(fused(noted(kernels(build, LARGE, ROW))))
    )


def test_a_result_of_the_function_stays():
    def build(b, x, row):
        y = b.emit(op.subtract(x, row))
        return relax.Tuple([y, b.emit(op.sum(y, axis=[0])), b.emit(op.max(y, axis=[0]))])

    names = called(repeated(build, LARGE, ROW))
    assert len(names) == 3
    assert "subtract" in names[0]


def test_copies_of_a_long_chain_grow_no_faster_than_it():
    """Each map has two readers: the next one, and a sum that is returned."""

    def build(length):
        def chain(b, x):
            sums = []
            for _ in range(length):
                x = b.emit(op.multiply(x, relax.const(0.5, "float32")))
                sums.append(b.emit(op.sum(x, axis=[0])))
            return relax.Tuple(sums)

        return chain

    def copies(length):
        mod = noted(kernels(build(length), LARGE))
        return len(called(recompute_maps(mod, HOST))) - len(called(mod))

    assert copies(2) == 1
    assert copies(120) < 120 * 24  # without a bound, 120 · 119 / 2


def test_a_dot_product_reads_a_map_as_a_reduction_does():
    """TVM takes this one for a contraction, because of its axis of one element."""

    def sums(b, x, row):
        y = b.emit(op.subtract(x, row))

        def dot(y, x):
            k = te.reduce_axis((0, 64), "k")
            return te.compute((1, 1024), lambda i, j: te.sum(y[k, j] * x[k, j], axis=k))

        return relax.Tuple([b.emit_te(dot, y, x), b.emit(op.max(y, axis=[0]))])

    assert len(called(repeated(sums, LARGE, ROW))) == 2


def test_a_product_of_matrices_does_not():
    def products(b, x, row):
        y = b.emit(op.subtract(x, row))
        return relax.Tuple([b.emit(op.matmul(op.permute_dims(y), y)), b.emit(op.max(y, axis=[0]))])

    assert "subtract" in {name.split("_")[0] for name in called(repeated(products, LARGE, ROW))}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_cast_behind_a_contraction_stays_narrow_in_memory(dtype):
    """A map of the same dtype would cost nothing where the contraction stores its results."""

    def build(b, x, w):
        y = b.emit(op.astype(b.emit(op.matmul(x, w)), "float32"))
        return relax.Tuple([b.emit(op.sum(y, axis=[0])), b.emit(op.max(y, axis=[0]))])

    mod = repeated(build, ((64, 64), dtype), ((64, 1024), dtype))
    calls = [b.value for b in bindings_of(mod["main"].body) if is_kernel_call(b.value)]
    assert [str(call.ty.dtype) for call in calls] == [dtype, "float32", "float32"]


def test_on_a_gpu_what_copies_read_in_the_end_counts():
    """Sums along a chain, each of a term that is made of two tensors."""

    def chain(b, x, *rest):
        results = []
        for pair in zip(rest[::2], rest[1::2], strict=True):
            x = b.emit(op.add(x, b.emit(op.multiply(*pair))))
            results.append(b.emit(op.sum(x, axis=[0])))
        return relax.Tuple(results)

    def copies(processor):
        mod = noted(kernels(chain, *[LARGE] * 13))
        return len(called(recompute_maps(mod, processor))) - len(called(mod))

    assert copies(HOST) > copies(GPU) > 0
