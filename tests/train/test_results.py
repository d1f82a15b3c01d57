"""What a step returns besides what it has overwritten."""

import tvm
from tvm import relax

from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import generate, lower
from graphgrad.lower.target import target
from graphgrad.memory.donation import DONATED
from graphgrad.train.results import drop_arguments
from tests.frontend.graphs import random

HOST = target("llvm")
op = relax.op


def program(pairs):
    """(a, b, c) -> (sum of a, a + c, b · c): the pairs say what takes the place of what."""
    a, b, c = (relax.Var(name, relax.TensorType([4], "float32")) for name in "abc")
    builder = relax.BlockBuilder()
    with builder.function("main", [a, b, c], {DONATED: pairs}):
        with builder.dataflow():
            results = [op.sum(a), op.add(a, c), op.multiply(b, c)]
            results = [builder.emit_output(builder.normalize(result)) for result in results]
        builder.emit_func_output(relax.Tuple(results))
    return lower(builder.get(), HOST)


def called(mod, arrays):
    machine = relax.VirtualMachine(generate(mod, HOST), tvm.cpu())
    tensors = list(map(to_tensor, arrays))
    return list(machine["main"](*tensors)), tensors


def test_what_is_overwritten_is_not_returned():
    arrays = [random(4, seed=seed) for seed in range(3)]
    mod, kept = drop_arguments(program([[0, 1], [1, 2]]), "main")
    assert (kept.positions, kept.overwritten, kept.results) == ([0], [0, 1], [([], "float32")])
    results, (a, b, _) = called(mod, arrays)
    assert len(results) == 1
    assert abs(float(results[0].numpy()) - arrays[0].sum()) < 1e-5
    assert (a.numpy() == arrays[0] + arrays[2]).all() and (b.numpy() == arrays[1] * arrays[2]).all()


def test_what_is_new_stays():
    mod, kept = drop_arguments(program([[1, 2]]), "main")
    assert (kept.positions, kept.overwritten) == ([0, 1], [1])
    results, (a, _, _) = called(mod, [random(4, seed=seed) for seed in range(3)])
    assert len(results) == 2 and results[1].data_ptr() != a.data_ptr()
