"""Contractions as the scheduler meets them, and nests of explicit plans, run."""

import numpy as np
import tvm
from tvm import te

from graphgrad.fallback import create_prim_func
from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.contraction import PlainStore, blocks_of, emit, replace_stages
from graphgrad.lower.kernels.contraction import contraction_of
from tests.guarded_memory import guarded_tensor
from tests.lower.kernel_programs import HOST, random_values, tensor
from tests.running import compile_library


def product(rows, columns, terms, flip_a=False, flip_b=False, flip=False, dtype="float32"):
    """Return the inputs and the output of a matrix product; each may lie transposed."""
    a = tensor(*((terms, rows) if flip_a else (rows, terms)), dtype=dtype, name="a")
    b = tensor(*((columns, terms) if flip_b else (terms, columns)), dtype=dtype, name="b")
    k = te.reduce_axis((0, tvm.tirx.IntImm("int64", terms)), "k")

    def element(i, j):
        return te.sum((a[k, i] if flip_a else a[i, k]) * (b[j, k] if flip_b else b[k, j]), axis=k)

    def flipped(j, i):
        return element(i, j)

    shape = (columns, rows) if flip else (rows, columns)
    return [a, b], te.compute(shape, flipped if flip else element, name="c")


def convolution(batch, size, channels, filters, window, step=1):
    """Return the inputs and the output of a convolution with channels last."""
    padded = (size - 1) * step + window
    x = tensor(batch, padded, padded, channels, name="x")
    w = tensor(window, window, channels, filters, name="w")
    r, s, c = (
        te.reduce_axis((0, n), v) for n, v in ((window, "r"), (window, "s"), (channels, "c"))
    )
    y = te.compute(
        (batch, size, size, filters),
        lambda n, h, v, k: te.sum(
            x[n, h * step + r, v * step + s, c] * w[r, s, c, k], axis=[r, s, c]
        ),
        name="y",
    )
    return [x, w], y


def weight_gradient(batch, size, channels, filters, window):
    """Return the inputs and the output of the gradient of a convolution's weights."""
    x = tensor(batch, size + window - 1, size + window - 1, channels, name="x")
    g = tensor(batch, size, size, filters, name="g")
    n, p, q = (te.reduce_axis((0, e), v) for e, v in ((batch, "n"), (size, "p"), (size, "q")))
    dw = te.compute(
        (window, window, channels, filters),
        lambda r, s, c, k: te.sum(x[n, p + r, q + s, c] * g[n, p, q, k], axis=[n, p, q]),
        name="dw",
    )
    return [x, g], dw


def depthwise(batch, size, channels, window):
    """Return the inputs and the output of a depthwise convolution with channels last."""
    x = tensor(batch, size + window - 1, size + window - 1, channels, name="x")
    w = tensor(window, window, channels, name="w")
    r, s = (te.reduce_axis((0, window), v) for v in "rs")
    y = te.compute(
        (batch, size, size, channels),
        lambda n, h, v, c: te.sum(x[n, h + r, v + s, c] * w[r, s, c], axis=[r, s]),
        name="y",
    )
    return [x, w], y


class Kernel:
    """A kernel of one contraction.

    Attributes
    ----------
    contraction : Contraction
    result_store : PlainStore
    """

    def __init__(self, built):
        self._inputs, self._output = built
        self._func = create_prim_func([*self._inputs, self._output])
        (stage,) = stages(self._func)
        realize = blocks_of(self._func.body)[stage.name]
        self._name = stage.name
        self.contraction = contraction_of(stage, realize)
        self.result_store = PlainStore(realize)

    def axis(self, name):
        """Return the axis of a name in the tensor expression."""
        (found,) = [a for a in self.contraction.axes if str(a.var.name) == f"v_{name}"]
        return found

    def emitted(self, plan):
        """Return the kernel with the nest of a plan."""
        nest = emit(self.contraction, plan, self.result_store)
        return self._func.with_body(replace_stages(self._func.body, {self._name: nest}, []))

    def error(self, plan):
        """Return how far the nest of a plan is off, relative to the largest element."""
        mod = tvm.IRModule(
            {
                "stock": self._func.with_attr("global_symbol", "stock"),
                "emitted": self.emitted(plan).with_attr("global_symbol", "emitted"),
            }
        )
        library = compile_library(mod, HOST)
        values = [
            random_values([int(n) for n in t.shape], str(t.dtype), seed)
            for seed, t in enumerate(self._inputs)
        ]
        results = []
        for name in ("stock", "emitted"):
            shape = [int(n) for n in self._output.shape]
            result = guarded_tensor(np.full(shape, 77).astype(str(self._output.dtype)))
            library[name](*(guarded_tensor(value) for value in values), result)
            results.append(result.numpy().astype("float64"))
        return np.abs(results[0] - results[1]).max() / np.abs(results[0]).max()
