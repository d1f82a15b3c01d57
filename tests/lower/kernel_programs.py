"""Running a PrimFunc as built and as scheduled, side by side."""

import re
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import te, tirx

from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.lower.target import target
from tests.guarded_memory import guarded_tensor
from tests.running import compile_library

HOST = target({"kind": "llvm", "opt-level": 0})
UNIT = processor_of(HOST)
TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-12}


def tensor(*shape, dtype="float32", name="x"):
    """Return a placeholder with 64-bit extents, as Relax makes them."""
    return te.placeholder(tuple(tirx.IntImm("int64", n) for n in shape), dtype, name)


@dataclass
class Runs:
    """The outputs of both versions, and the scheduled function."""

    stock: list[np.ndarray]
    scheduled: list[np.ndarray]
    func: tirx.PrimFunc
    changed: bool

    @property
    def text(self):
        return self.func.script()

    @property
    def vectors(self):
        """The lengths of vectors in the scheduled function."""
        return {int(n) for n in re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", self.text)}

    def agree(self):
        """Assert equal outputs, up to the order of additions."""
        for a, b in zip(self.stock, self.scheduled, strict=True):
            bound = TOLERANCE.get(str(a.dtype), 0)
            scale = np.abs(a.astype("float64")).max(initial=1e-30)
            np.testing.assert_allclose(b, a, rtol=0, atol=bound * scale)


def run(
    inputs,
    outputs,
    shapes=None,
    seed=0,
    values=None,
    then=lambda func: func,
    make=te.create_prim_func,
):
    """Run the function of TE tensors both ways on the same inputs, which are random if not given.

    `shapes`, for symbolic functions, gives the shape of each input and output; `then` is what is
    made of the scheduled function; `make` makes the function as built.
    """
    func = make([*inputs, *outputs])
    scheduled = then(schedule_loops(func, UNIT))
    mod = tvm.IRModule(
        {
            "stock": func.with_attr("global_symbol", "stock"),
            "scheduled": scheduled.with_attr("global_symbol", "scheduled"),
        }
    )
    library = compile_library(mod, HOST)
    shapes = shapes or [[int(n) for n in t.shape] for t in (*inputs, *outputs)]
    if values is None:
        pairs = zip(shapes, inputs, strict=False)
        values = [random_values(s, str(t.dtype), seed) for s, t in pairs]
    arguments = [guarded_tensor(value) for value in values]
    results = []
    for name in ("stock", "scheduled"):
        given = [
            guarded_tensor(np.full(s, 77).astype(str(t.dtype)))
            for s, t in zip(shapes[len(inputs) :], outputs, strict=True)
        ]
        library[name](*arguments, *given)
        results.append([g.numpy() for g in given])
    return Runs(*results, scheduled, not scheduled.same_as(func))


def sums_of_bound_values():
    """A tensor, and sums whose terms keep a value in local memory.

    A condition on loops may not be bound in the expression.
    """
    x = tensor(64, 96)
    k = te.reduce_axis((0, tirx.IntImm("int64", 8)), "k")
    var = tirx.Var("v", "float32")

    def term(i, j):
        read = te.if_then_else(j >= k, x[i, j - k], 0.0)
        return te.sum(tirx.Let(var, read, var * te.exp(var) + var), axis=k)

    return x, te.compute((64, 96), term, name="y")


def random_values(shape, dtype, seed):
    generator = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return generator.uniform(-0.5, 1, shape).astype(dtype)
    return generator.integers(-5, 6, shape).astype(dtype)
