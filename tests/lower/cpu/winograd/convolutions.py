"""Convolutions with windows of 3 by 3 and their gradients, as tensor expressions and in numpy."""

from dataclasses import dataclass

import numpy as np
from tvm import te

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.contraction import blocks_of
from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.ops.conv import Layouts, Window, convolution, data_gradient, weight_gradient
from tests.guarded_memory import guarded_tensor
from tests.lower.kernel_programs import HOST, UNIT, tensor
from tests.running import compile_library

CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True)
class Layer:
    """Data (batch, height, width, channels), filters, and padding: top, left, bottom, right."""

    batch: int
    height: int
    width: int
    channels: int
    filters: int
    padding: tuple[int, ...] = (1, 1, 1, 1)

    def __str__(self):
        sizes = (self.batch, self.height, self.width, self.channels, self.filters)
        return "x".join(map(str, sizes)) + "-" + "".join(map(str, self.padding))

    @property
    def data(self):
        return (self.batch, self.height, self.width, self.channels)

    @property
    def weight(self):
        return (3, 3, self.channels, self.filters)

    @property
    def result(self):
        top, left, bottom, right = self.padding
        return (self.batch, self.height + top + bottom - 2, self.width + left + right - 2,
                self.filters)  # fmt: skip

    @property
    def window(self):
        return Window((1, 1), self.padding, (1, 1), 1)


def expression(kind, layer, dtype="float32", result_dtype=None):
    """Return the inputs and the output of a convolution ("forward"), or of one of its gradients."""
    result_dtype = result_dtype or dtype
    x = tensor(*layer.data, dtype=dtype, name="x")
    w = tensor(*layer.weight, dtype=dtype, name="w")
    ct = tensor(*layer.result, dtype=dtype, name="ct")
    if kind == "forward":
        result = convolution(x, w, layer.result, layer.window, CHANNELS_LAST, result_dtype)
        return [x, w], result
    if kind == "data":
        return [ct, w], data_gradient(ct, w, layer.data, layer.window, CHANNELS_LAST, result_dtype)
    return [x, ct], weight_gradient(x, ct, layer.weight, layer.window, Layouts("NHWC", "HWIO"))


def reference(kind, layer, first, second):
    """Return the result in float64."""
    first, second = first.astype("float64"), second.astype("float64")
    top, left, bottom, right = layer.padding
    _, rows, columns, _ = layer.result
    border = ((0, 0), (top, bottom), (left, right), (0, 0))
    taps = [(i, j) for i in range(3) for j in range(3)]
    if kind == "data":
        whole = np.zeros(np.pad(np.zeros(layer.data, "float32"), border).shape)
        for i, j in taps:
            whole[:, i : i + rows, j : j + columns] += first @ second[i, j].T
        return whole[:, top : top + layer.height, left : left + layer.width]
    x = np.pad(first, border)
    parts = {(i, j): x[:, i : i + rows, j : j + columns] for i, j in taps}
    if kind == "forward":
        return sum(part @ second[at] for at, part in parts.items())
    summed = [np.tensordot(part, second, ((0, 1, 2), (0, 1, 2))) for part in parts.values()]
    return np.reshape(summed, layer.weight)


def values(tensors, seed=0):
    """Return normally distributed arrays of the shapes of tensors."""
    generator = np.random.default_rng(seed)
    shapes = [[int(extent) for extent in t.shape] for t in tensors]
    return [generator.standard_normal(shape).astype("float32") for shape in shapes]


def is_filtered(func):
    """Return whether a scheduled function computes a convolution by minimal filtering."""
    return "factors" in func.script()


def scheduled(inputs, outputs, winograd=True):
    """Return a function as scheduled for this host."""
    return schedule_loops(te.create_prim_func([*inputs, *outputs]), UNIT, winograd)


def run(func, arrays, shape):
    """Return the result of a scheduled function, of some shape."""
    library = compile_library(func, HOST)
    result = guarded_tensor(np.full(shape, 77).astype(str(func.params[-1].ty.dtype)))
    library["main"](*map(guarded_tensor, arrays), result)
    return result.numpy().astype("float32")


def error(result, expected):
    """Return the norm of the difference, relative."""
    return np.linalg.norm(result - expected) / np.linalg.norm(expected)


def stages_of(inputs, output):
    """Return the stages of a function as built, and its blocks by name."""
    func = te.create_prim_func([*inputs, output])
    return stages(func), blocks_of(func.body)
