"""Checking gradient rules against finite differences in float64.

Every sample of a rule becomes a function of one module; all of them, their vjp and the vjp of that
are compiled together, because compiling one by one would take most of the time.

The derivative along a random direction u is taken by the five-point rule,
``(8 (f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h`` with an error of order h⁴, weighted with a random
cotangent and compared with ``⟨x̄, u⟩``. A wrong element shows with probability one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from .autodiff.vjp import vjp
from .errors import GradientMismatch
from .lower import arrays
from .lower.pipeline import compile as compile_module
from .ops.define import PREFIX, call_op
from .ops.tensor import is_float
from .registry.rule import Rule
from .registry.sample import Sample, Static, TensorArgument

Arrays = list[np.ndarray]

_SYMBOLIC_EXTENT = 3
"""The extent that a symbolic dimension of a sample gets when it runs."""

_DIRECTIONS = 2


class RuleChecker:
    """The samples of some rules, compiled together and ready to be checked one by one.

    Parameters
    ----------
    cases : sequence of (Rule, Sample)
    order : 1 or 2
        With 2, the vjp of the vjp is checked too, where the sample allows it.
    """

    def __init__(self, cases: Sequence[tuple[Rule, Sample]], order: int = 2):
        self.cases = list(cases)
        mod = tvm.IRModule()
        for index, (rule, sample) in enumerate(self.cases):
            single = vjp(sample_module(rule.op, sample, f"case{index}"), f"case{index}")
            if order == 2 and sample.second_order:
                single = vjp(single, f"case{index}_vjp")
            mod.update(single)
        self.vm = relax.VirtualMachine(compile_module(mod), tvm.cpu())
        self.order = order

    def check(self, index: int, seed: int = 0) -> None:
        """Check one case to the order that was asked for.

        Raises
        ------
        GradientMismatch
            Names the op, the sample, the order, the input and both numbers.
        """
        rule, sample = self.cases[index]
        generator = np.random.default_rng(seed)
        inputs = sample_inputs(sample, generator)
        label = f"{rule.op} [{sample}] ({rule.location})"
        name = f"case{index}"
        inputs = self._check_order(name, inputs, generator, f"{label}, order 1")
        if self.order == 2 and sample.second_order:
            self._check_order(f"{name}_vjp", inputs, generator, f"{label}, order 2")

    def run(self, name: str, inputs: Arrays) -> Arrays:
        """Call a compiled function; return its float outputs, flattened out of tuples."""
        outputs = self.vm[name](*[arrays.to_tensor(array) for array in inputs])
        return [array for array in flat(outputs) if is_float(str(array.dtype))]

    def gradients(self, index: int, inputs: Arrays, cotangents: Arrays) -> Arrays:
        """Return the gradients of one case for given cotangents of its float outputs."""
        tensors = [arrays.to_tensor(array) for array in [*inputs, *cotangents]]
        return flat(self.vm[f"case{index}_vjp"](*tensors)[1])

    def _check_order(
        self, name: str, inputs: Arrays, generator: np.random.Generator, label: str
    ) -> Arrays:
        """Check ``<name>_vjp`` against ``name``; return the inputs with the cotangents added."""
        outputs = self.run(name, inputs)
        cotangents = [generator.uniform(-1, 1, o.shape).astype(o.dtype) for o in outputs]
        tensors = [arrays.to_tensor(array) for array in [*inputs, *cotangents]]
        gradients = flat(self.vm[f"{name}_vjp"](*tensors)[1])
        compare_gradients(
            lambda *varied: self.run(name, list(varied)),
            inputs,
            cotangents,
            gradients,
            generator,
            label,
        )
        return [*inputs, *cotangents]


def sample_module(op: str, sample: Sample, name: str, dtype: str = "float64") -> tvm.IRModule:
    """Return a module with one function that makes the sample's call of an op."""
    symbols: dict[str, Any] = {}
    params: list[Any] = []

    def parameter(argument: TensorArgument) -> Any:
        shape = [
            symbols.setdefault(d, tvm.tirx.Var(d, "int64")) if isinstance(d, str) else d
            for d in argument.shape
        ]
        ty = relax.TensorType(shape, dtype if argument.dtype == "float" else argument.dtype)
        params.append(relax.Var(f"x{len(params)}", ty))
        return params[-1]

    def build(argument: Any) -> Any:
        if isinstance(argument, TensorArgument):
            return parameter(argument)
        if isinstance(argument, list):
            return [build(item) for item in argument]
        return argument

    arguments = [build(argument) for argument in sample.arguments]
    builder = relax.BlockBuilder()
    with builder.function(name, params):
        with builder.dataflow():
            value = builder.emit(_call(op, arguments, sample))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def _call(op: str, arguments: list[Any], sample: Sample) -> Any:
    if op.startswith(PREFIX):
        operands = [relax.ShapeExpr(a.value) if isinstance(a, Static) else a for a in arguments]
        attributes = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in sample.attributes.items()
        }
        return call_op(tvm.ir.Op.get(op), operands, **attributes)
    function: Any = relax.op
    for part in op.split(".")[1:]:
        function = getattr(function, part)
    operands = [a.value if isinstance(a, Static) else a for a in arguments]
    return function(*operands, **sample.attributes)


def sample_inputs(sample: Sample, generator: np.random.Generator, dtype: str = "float64") -> Arrays:
    """Draw the tensor arguments of a sample, in order."""

    class Sizes(dict):
        def __missing__(self, name: str) -> int:
            return _SYMBOLIC_EXTENT

    drawn: Arrays = []

    def draw(argument: Any) -> None:
        if isinstance(argument, TensorArgument):
            drawn.append(argument.draw(generator, Sizes(), dtype))
        elif isinstance(argument, list):
            for item in argument:
                draw(item)

    for argument in sample.arguments:
        draw(argument)
    return drawn


def compare_gradients(
    function: Callable[..., Arrays],
    inputs: Arrays,
    cotangents: Arrays,
    gradients: Arrays,
    generator: np.random.Generator,
    label: str,
) -> None:
    """Compare gradients with finite differences of a function.

    Parameters
    ----------
    function : callable
        Maps the inputs to the list of float outputs.
    inputs : list of arrays
        Differences are taken in each float input in turn.
    cotangents : list of arrays
        One per output.
    gradients : list of arrays
        One per float input.
    generator : numpy.random.Generator
        Draws the directions.
    label : str
        Begins the error message.

    Raises
    ------
    GradientMismatch
    """
    positions = [k for k, array in enumerate(inputs) if is_float(str(array.dtype))]
    if len(positions) != len(gradients):
        raise GradientMismatch(f"{label}: {len(gradients)} gradients for {len(positions)} inputs")
    dtypes = {str(array.dtype) for array in [*inputs, *cotangents] if is_float(str(array.dtype))}
    exact = dtypes <= {"float64"}
    step, tolerance = (1e-3, 1e-8) if exact else (0.125, 1e-4)
    for position, gradient in zip(positions, gradients, strict=True):
        x = inputs[position]
        if gradient.shape != x.shape or gradient.dtype != x.dtype:
            raise GradientMismatch(
                f"{label}: the gradient of input {position} is {gradient.dtype}{gradient.shape}, "
                f"the input {x.dtype}{x.shape}"
            )
        for _ in range(_DIRECTIONS):
            direction = generator.uniform(-1, 1, x.shape)

            def along(t: float) -> float:
                moved = list(inputs)
                moved[position] = (x + t * direction).astype(x.dtype)  # noqa: B023
                return sum(
                    float(np.sum(ct.astype("float64") * out.astype("float64")))
                    for ct, out in zip(cotangents, function(*moved), strict=True)
                )

            near, far = along(step) - along(-step), along(2 * step) - along(-2 * step)
            expected = (8 * near - far) / (12 * step)
            given = float(np.sum(gradient.astype("float64") * direction))
            scale = max(1.0, abs(expected), float(np.sum(np.abs(gradient))))
            if not abs(expected - given) <= tolerance * scale:
                raise GradientMismatch(
                    f"{label}: along a random direction of input {position} finite differences "
                    f"give {expected:.12g}, the gradient gives {given:.12g}"
                )


def flat(value: Any) -> Arrays:
    """Return the arrays in a (nested) result of the virtual machine."""
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    return [array for item in value for array in flat(item)]
