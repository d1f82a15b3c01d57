"""A condition keeps others from reading where there is nothing to read."""

from functools import partial

import pytest
import tvm_ffi
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.lower.cpu.guarded_reads import guard_reads
from graphgrad.lower.pipeline import lower

FAR = 1 << 40
"""Elements beyond which no memory is mapped."""


ONE, ZERO = (tirx.const(value, "float32") for value in (1, 0))
CONDITIONS = {
    "nested": lambda a, b, c: choice(a, choice(b, ONE, ZERO), ZERO),
    "all": lambda a, b, c: choice(tirx.And(a, b), ONE, ZERO),
    "all, right first": lambda a, b, c: choice(tirx.And(a, tirx.And(b, c)), ONE, ZERO),
    "three nested": lambda a, b, c: choice(a, choice(b, choice(c, ONE, ZERO), ZERO), ZERO),
    "all in a nested one": lambda a, b, c: choice(a, choice(tirx.And(b, c), ONE, ZERO), ZERO),
    "any": lambda a, b, c: choice(tirx.Or(tirx.Not(a), tirx.Not(b)), ZERO, ONE),
    "any within all": lambda a, b, c: choice(tirx.And(a, tirx.Or(b, tirx.Not(c))), ONE, ZERO),
    "not": lambda a, b, c: choice(tirx.Not(tirx.And(a, b)), ZERO, ONE),
    "else": lambda a, b, c: choice(tirx.Not(a), ZERO, choice(tirx.Not(b), ZERO, ONE)),
}
"""Ways to look at an element, `b` and `c`, only where `a` says that there is one."""


def choice(*arguments):
    return tirx.if_then_else(*arguments)


def guarded(condition):
    """Of 8 places those in x are looked at."""
    x = te.placeholder((8,), "float32", name="x")
    places = te.placeholder((8,), "int64", name="places")

    def element(i):
        found = x[places[i]]
        return CONDITIONS[condition](places[i] < 8, found > 0.0, found < 5.0)

    return te.create_prim_func([x, places, te.compute((8,), element, name="is_positive")])


RUN = """
import numpy as np, tvm
from tvm import relax
import graphgrad as gg
from tests.lower.cpu.test_guarded_reads import CONDITIONS, FAR, guarded

x = np.array([1, -1, 1, -1] * 2, "float32")
places = np.where(np.arange(8) < 4, np.arange(8), FAR)
arguments = [tvm.runtime.tensor(array) for array in (x, places)]
for condition in CONDITIONS:
    print(condition, end=": ", flush=True)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    places = relax.Var("places", relax.TensorType((8,), "int64"))
    with builder.function("main", [x, places]):
        kernel = builder.add_func(guarded(condition), "is_positive")
        call = relax.call_tir(kernel, relax.Tuple([x, places]), relax.TensorType((8,), "float32"))
        builder.emit_func_output(builder.emit(call))
    if {ours}:
        executable = gg.compile(builder.get())
    else:
        lowering = gg.pipeline(gg.target("llvm"))
        executable = tvm.compile(builder.get(), gg.target("llvm"), relax_pipeline=lowering)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    print(*machine["main"](*arguments).numpy().astype(int))
"""


@pytest.mark.parametrize("ours", [True, False], ids=["compile", "pipeline"])
def test_nothing_is_read_behind_a_condition_that_does_not_hold(ours, python):
    """In a process of its own: what reads there ends it."""
    done = python.run(RUN.format(ours=ours))
    expected = [f"{condition}: 1 0 1 0 0 0 0 0" for condition in CONDITIONS]
    assert done.stdout.splitlines() == expected, done.stderr[-2000:]


def conjunctions(func):
    found = []
    tvm_ffi.structural_walk(func.body, (tirx.And, found.append))
    return found


def fraction(data, i):
    both = tirx.all(data[i] > 0.0, data[i] < 1.0)
    return tirx.if_then_else(both, data[i], tirx.const(0, "float32"))


def test_reads_that_stay_inside_are_left_as_they_are():
    """Branches would keep them from being vectorized."""
    x = te.placeholder((8,), "float32", name="x")
    n = tirx.Var("n", "int64")
    z = te.placeholder((n,), "float32", name="z")
    for data in (x, z):
        func = te.create_prim_func([data, te.compute(data.shape, partial(fraction, data))])
        assert conjunctions(func)
        assert guard_reads(func).same_as(func)


@pytest.mark.parametrize("inside", [True, False])
def test_a_read_under_a_condition_of_its_own_is_judged_under_that(inside):
    """As a maximum that hands NaN on looks twice at an element of a border."""
    x = te.placeholder((8,), "float32", name="x")

    def element(i):
        at = choice(tirx.all(i >= 1, i < (9 if inside else 10)), x[i - 1], ZERO)
        return choice(tirx.Or(i > 5, at > 0.0), ONE, ZERO)

    func = te.create_prim_func([x, te.compute((12,), element)])
    assert guard_reads(func).same_as(func) == inside


@pytest.mark.parametrize("shift", [0, 1])
def test_a_read_that_has_been_made_may_be_made_again(shift):
    """As an element that is compared, and may be NaN."""
    x = te.placeholder((8,), "float32", name="x")
    places = te.placeholder((8,), "int64", name="places")

    def element(i):
        found = tirx.Or(x[places[i]] > 0.5, x[places[i] + shift] < 0.0)
        return choice(places[i] < 8, tirx.Select(found, ONE, ZERO), ZERO)

    func = te.create_prim_func([x, places, te.compute((8,), element)])
    assert guard_reads(func).same_as(func) == (shift == 0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_windows_beyond_the_border(layout):
    """Of max pooling's gradient no kernel reads behind the border of what it is given."""
    shape = (1, 2, 6, 6) if layout == "NCHW" else (1, 6, 6, 2)

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            pooled = relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout=layout)
            result = builder.emit_output(pooled)
        builder.emit_func_output(result)
    lowered = lower(gg.vjp(builder.get()), gg.target("llvm"))
    kernels = [f for f in lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert all(guard_reads(kernel).same_as(kernel) for kernel in kernels)


BESIDE = """
import numpy as np, tvm
from tvm import relax
import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from tests.differential import differential
from tests.running import function

op, generator = relax.op, np.random.default_rng(0)
layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
programs = [
    (lambda b, x, w: b.emit(op.nn.conv2d(x, w, padding=1, **layouts)), (3, 3, 32, 64)),
    (lambda b, x, w: b.emit(op.nn.conv2d(x, w, padding=1, strides=2, **layouts)), (3, 3, 32, 64)),
    (lambda b, x, w: b.emit(op.nn.max_pool2d(op.multiply(x, w), (3, 3), (2, 2), (1, 1),
                                             layout="NHWC")), (1, 1, 1, 32)),
]
for build, weight in programs:
    primal = function(build, ((4, 16, 16, 32), "float32"), (weight, "float32"))
    # What is in place is compiled for a processor with shorter vectors, too.
    for mod in (gg.vjp(primal), gg.vjp(primal, grad_req="add")):
        shapes = [[int(n) for n in param.ty.shape] for param in mod["main_vjp"].params]
        with differential() as state:
            machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
            for _ in range(2):  # with guards at the other ends
                arrays = [generator.standard_normal(shape, np.float32) for shape in shapes]
                machine["main_vjp"](*map(to_tensor, arrays))
            machine["main"](*map(to_tensor, arrays[:2]))
        print(state.compared)
"""


def test_windows_read_nothing_beside_their_tensors(python):
    """Each tensor lies beside a page that nobody may touch; in a process of its own."""
    done = python.run(BESIDE)
    assert done.stdout.split() == ["3"] * 6, done.stderr[-2000:]
