"""What the examples share: a kernel's two forms, a module that calls one, and its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

import graphgrad as gg

Arrays = dict[str, np.ndarray]
Sizes = Mapping[str, int]

FORMS = ("tensors", "script")


@dataclass(frozen=True)
class Example:
    """A kernel as tensor expressions and in TVMScript.

    Attributes
    ----------
    inputs : callable
        ``inputs(random, **sizes)``: the arguments by name.
    tensors : callable
        Maps te.Tensors, one for each argument, to the result.
    script : callable
        Maps the sizes to a PrimFunc, whose last parameter is the result.
    small, large : dict
        Sizes: to check, and to take the time of.
    settings : tuple of str
        The sizes that no argument's shape tells, which `tensors` is given by name.
    """

    inputs: Callable[..., Arrays]
    tensors: Callable[..., Any]
    script: Callable[..., tvm.tirx.PrimFunc]
    small: Sizes
    large: Sizes
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """That of the kernel."""
        return self.tensors.__name__

    def arrays(self, sizes: Sizes) -> Arrays:
        """The arguments, equal in every process; floats are float32."""
        drawn = self.inputs(np.random.default_rng(0), **sizes)
        return {n: a.astype("float32") if a.dtype.kind == "f" else a for n, a in drawn.items()}

    def module(self, form: str, sizes: Sizes) -> tvm.IRModule:
        """A module whose ``main`` calls the kernel in one of `FORMS`."""
        builder = relax.BlockBuilder()
        params = [
            relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
            for name, array in self.arrays(sizes).items()
        ]
        with builder.function("main", params):
            if form == "tensors":
                settings = {name: sizes[name] for name in self.settings}
                call = gg.call_te(self.tensors, *params, **settings)
            else:
                kernel = self.script(**sizes)
                out = kernel.params[-1].ty
                shape = [int(extent) for extent in out.shape]
                result = relax.TensorType(shape, str(out.dtype))
                call = relax.call_tir(builder.add_func(kernel, self.name), params, result)
            builder.emit_func_output(builder.emit(call))
        return builder.get()

    def show(self) -> None:
        """Check the gradient of each form against differences in float64."""
        for form in FORMS:
            mod, arrays = self.module(form, self.small), self.arrays(self.small)
            print(gg.coverage(mod))
            print(gg.check_grads(mod, arrays))
