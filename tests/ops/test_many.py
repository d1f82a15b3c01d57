import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.write import write_function
from graphgrad.ops.many import all_finite, sum_of_squares
from tests.labels import label

SHAPES = [
    [()],
    [(1,), (5,)],
    [(), (3, 1, 5), (0, 4), (70001,)],
    [(2,)] * 130,
]


def function(emit, types):
    """Return what a module computes that applies a function to tensors of some types."""
    params = [relax.Var(f"x{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(types)]
    mod = write_function(
        tvm.IRModule(), "main", params, lambda emitter: emit([emitter.lift(p) for p in params])
    )
    run = relax.VirtualMachine(gg.compile(mod), tvm.cpu())["main"]
    return lambda arrays: run(*[to_tensor(array) for array in arrays]).numpy()[()]


def arrays_of(types, seed=0):
    generator = np.random.default_rng(seed)
    return [np.asarray(generator.uniform(-2, 2, s)).astype(d) for s, d in types]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES[:3], ids=label)
def test_one_bad_element_is_found(shapes, dtype):
    types = [(shape, dtype) for shape in shapes]
    is_finite = function(all_finite, types)
    arrays = arrays_of(types)
    largest = [np.full_like(array, np.finfo(dtype).max) for array in arrays]
    assert is_finite(arrays) and is_finite(largest)
    for number, array in enumerate(arrays):
        for place in {0, array.size // 2, array.size - 1} if array.size else ():
            for bad in (np.nan, np.inf, -np.inf):
                wrong = [other.copy() for other in arrays]
                wrong[number].flat[place] = bad
                assert not is_finite(wrong), (number, place, bad)


def test_many_tensors_of_several_dtypes():
    types = [((3,), dtype) for dtype in ("float32", "float64", "float16") for _ in range(50)]
    is_finite = function(all_finite, types)
    arrays = arrays_of(types)
    assert is_finite(arrays)
    for number in (0, 49, 50, 99, 149):
        wrong = [array.copy() for array in arrays]
        wrong[number][1] = np.inf
        assert not is_finite(wrong)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES, ids=label)
def test_sum_of_squares(shapes, dtype):
    types = [(shape, dtype) for shape in shapes]
    arrays = arrays_of(types)
    found = function(sum_of_squares, types)(arrays)
    expected = sum(float((array.astype("float64") ** 2).sum()) for array in arrays)
    assert found == pytest.approx(expected, rel=1e-13)


def test_squares_do_not_overflow():
    types = [((3,), "float32")]
    assert function(sum_of_squares, types)([np.full(3, 1e30, "float32")]) == pytest.approx(
        3e60, rel=1e-6
    )
    assert np.isnan(function(sum_of_squares, types)([np.array([0, np.nan, 1], "float32")]))


def test_a_sum_does_not_depend_on_the_number_of_cores():
    types = [((50, 1001), "float32"), ((99999,), "float32")]
    arrays = arrays_of(types)
    params = [relax.Var(f"x{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(types)]
    mod = write_function(
        tvm.IRModule(),
        "main",
        params,
        lambda emitter: sum_of_squares([emitter.lift(p) for p in params]),
    )
    sums = set()
    for cores in (1, 2, 3):
        where = gg.target({**dict(gg.target("llvm").export()), "num-cores": cores})
        run = relax.VirtualMachine(gg.compile(mod, where), tvm.cpu())["main"]
        sums.add(float(run(*map(to_tensor, arrays)).numpy()))
    assert len(sums) == 1
