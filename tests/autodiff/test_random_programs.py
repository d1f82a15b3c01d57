"""Random programs: gradients against finite differences, to order two on a sample of them."""

import numpy as np
import tvm
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tvm import relax

import graphgrad as gg
from graphgrad.autodiff.activity import has_cotangent
from graphgrad.check import compare_gradients, flat
from graphgrad.ir.arrays import to_tensor
from tests.autodiff.programs import Writer, new_builder

PROGRAMS = 8
"""Programs that one module holds: compiling one by one would take most of the time."""

bounded = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=12,
    suppress_health_check=list(HealthCheck),
)


class Program:
    """One random function, and its vjp for a random choice of values in a random order."""

    def __init__(self, choose, name):
        self.name = name
        builder = new_builder()
        self.params, perturbed = Writer(choose, builder, name).write()
        self.mod = builder.finalize()
        note(self.mod[name].script())
        tensors = [p for p in self.params if isinstance(p.ty, relax.TensorType)]
        wrt = [p for p in tensors if has_cotangent(p.ty)]
        # A perturbation is always there with the value that it perturbs.
        self.perturbed = [pair for pair in perturbed if choose(3)]
        kept = {e for _, e in self.perturbed}
        wrt = [p for p in wrt if p in kept or choose(4)] or wrt[:1]
        wrt += [value for value, _ in self.perturbed]
        self.wrt = [wrt.pop(choose(len(wrt))) for _ in range(len(wrt))]
        self.mod = gg.vjp(self.mod, name, wrt=self.wrt)
        self.order = 2 if choose(4) == 0 else 1
        if self.order == 2:
            self.mod = gg.vjp(self.mod, f"{name}_vjp", wrt=["x", "y", "row"])

    def inputs(self, generator):
        arrays = {}
        for param in self.params:
            if param.name == "whole":
                arrays[param] = generator.integers(0, 4, (2, 3))
            elif param.name.startswith("e"):
                arrays[param] = np.zeros((2, 3))
            elif isinstance(param.ty, relax.TensorType):
                arrays[param] = generator.uniform(-1, 1, [int(d) for d in param.ty.shape])
            else:
                arrays[param] = [generator.uniform(-1, 1, (2, 3)) for _ in param.ty.fields]
        return arrays

    def check(self, vm, generator):
        arrays = self.inputs(generator)
        outputs = call(vm, self.name, arrays.values())
        cotangents = [generator.uniform(-1, 1, out.shape) for out in outputs]
        arguments = [*arrays.values(), *cotangents]
        gradients = dict(
            zip(self.wrt, call(vm, f"{self.name}_vjp", arguments)[len(outputs) :], strict=True)
        )
        for value, perturbation in self.perturbed:
            np.testing.assert_allclose(gradients[value], gradients[perturbation], rtol=1e-12)
        varied = [p for p in self.wrt if p in arrays]
        self._compare(vm, self.name, arrays, varied, cotangents, gradients, generator)
        if self.order == 2:
            self._check_second(vm, arrays, cotangents, generator)

    def _check_second(self, vm, arrays, cotangents, generator):
        name = f"{self.name}_vjp"
        extended = {**arrays, **{f"ct{k}": ct for k, ct in enumerate(cotangents)}}
        outputs = call(vm, name, extended.values())
        weights = [generator.uniform(-1, 1, out.shape) for out in outputs]
        varied = [p for p in self.params if p.name in ("x", "y", "row")]
        found = call(vm, f"{name}_vjp", [*extended.values(), *weights])[len(outputs) :]
        gradients = dict(zip(varied, found, strict=True))
        self._compare(vm, name, extended, varied, weights, gradients, generator)

    def _compare(self, vm, name, arrays, varied, cotangents, gradients, generator):
        def function(*moved):
            changed = {**arrays, **dict(zip(varied, moved, strict=True))}
            return call(vm, name, changed.values())

        compare_gradients(
            function,
            [arrays[p] for p in varied],
            cotangents,
            [gradients[p] for p in varied],
            generator,
            name,
        )


def call(vm, name, arguments):
    """Return the float results of a function."""

    def tensors(value):
        return [to_tensor(a) for a in value] if isinstance(value, list) else to_tensor(value)

    results = flat(vm[name](*[tensors(value) for value in arguments]))
    return [array for array in results if array.dtype == np.float64]


@bounded
@given(st.data())
def test_gradients_of_random_programs(data):
    programs = [
        Program(lambda n: data.draw(st.integers(0, n - 1)), f"program{k}") for k in range(PROGRAMS)
    ]
    mod = tvm.IRModule()
    for program in programs:
        mod.update(program.mod)
    vm = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    for index, program in enumerate(programs):
        program.check(vm, np.random.default_rng(index))
