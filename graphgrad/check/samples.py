"""Checking gradient rules on their samples, against differences in float64.

Every sample of a rule becomes a function of one module; all of them, their vjp and the vjp of that
are compiled together, because compiling one by one would take most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..autodiff.jvp import jvp
from ..autodiff.vjp import vjp
from ..errors import GradientMismatch
from ..ops.define import call_op
from ..registry.rule import Rule
from ..registry.sample import Sample, Static, TensorArgument
from .compare import DEFAULT, Arrays, InputCheck, Tolerances
from .machine import UNOPTIMIZED, Machine
from .point import check_orders

_SYMBOLIC_EXTENT = 3
"""The extent that a symbolic dimension of a sample gets when it runs."""


class RuleChecker:
    """The samples of some rules, compiled together and ready to be checked one by one.

    Parameters
    ----------
    cases : sequence of (Rule, Sample)
    order : 1 or 2
        With 2, the vjp of the vjp is checked too, where the sample allows it.
    tolerances : Tolerances
    jacobian : bool
        Compare every partial derivative, in place of derivatives along random directions alone.
    rules : "auto" or "derived"
        Which gradients are checked, see `graphgrad.vjp`.
    modes : sequence of "fwd" and "rev"
    """

    def __init__(
        self,
        cases: Sequence[tuple[Rule, Sample]],
        order: int = 2,
        tolerances: Tolerances = DEFAULT,
        jacobian: bool = False,
        rules: str = "auto",
        modes: Sequence[str] = ("rev",),
    ):
        self.cases = list(cases)
        self._modes = modes
        self.order = order
        self._tolerances = tolerances
        self._jacobian = jacobian
        mod = tvm.IRModule()
        for index, (rule, sample) in enumerate(self.cases):
            mod.update(sample_module(rule.op, sample, f"case{index}"))
            # In one module: kernels that are derived get names that no other has.
            for level in range(order if sample.second_order else 1):
                name = f"case{index}" + level * "_vjp"
                if "fwd" in modes:
                    mod = jvp(mod, name, rules=rules)
                mod = vjp(mod, name, rules=rules)
        self._machine = Machine(mod, UNOPTIMIZED)

    def check(self, index: int, seed: int = 0) -> list[InputCheck]:
        """Check one case to the order that was asked for.

        Raises
        ------
        GradientMismatch
            Names the op, the sample, the order, the input and both numbers. A sample on a kink is
            a mismatch: its points can be chosen.
        """
        rule, sample = self.cases[index]
        generator = np.random.default_rng(seed)
        point = sample_inputs(sample, generator)
        order = 2 if self.order == 2 and sample.second_order else 1
        try:
            return check_orders(
                self._machine,
                f"case{index}",
                point,
                order,
                generator,
                f"{rule.op} [{sample}] ({rule.location})",
                tolerances=self._tolerances,
                jacobian=self._jacobian,
                strict=True,
                modes=self._modes,
            )
        except GradientMismatch as error:
            error.op = rule.op
            raise

    def run(self, name: str, inputs: Arrays) -> Arrays:
        """Call a compiled function; return its float outputs, flattened out of tuples."""
        return self._machine.run(name, inputs)

    def gradients(self, index: int, inputs: Arrays, cotangents: Arrays) -> Arrays:
        """The gradients of one case for given cotangents of its float outputs."""
        return self._machine.gradients(f"case{index}", inputs, cotangents)


def sample_module(op: str, sample: Sample, name: str, dtype: str = "float64") -> tvm.IRModule:
    """A module with one function that makes the sample's call of an op."""
    symbols: dict[str, Any] = {}
    params: list[Any] = []

    def parameter(argument: TensorArgument) -> Any:
        shape = [
            symbols.setdefault(extent, tvm.tirx.Var(extent, "int64"))
            if isinstance(extent, str)
            else extent
            for extent in argument.shape
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
    """A sample's call of an op: by the function of `relax.op` if there is one, else directly.

    Such functions take static arguments, such as shapes, as plain values; an op takes expressions.
    """
    function: Any = relax.op if op.startswith("relax.") else None
    for attribute in op.split(".")[1:]:
        function = getattr(function, attribute, None)
    if function is not None:
        operands = [
            argument.value if isinstance(argument, Static) else argument for argument in arguments
        ]
        return function(*operands, **sample.attributes)
    operands = [
        relax.ShapeExpr(argument.value) if isinstance(argument, Static) else argument
        for argument in arguments
    ]
    attributes = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in sample.attributes.items()
    }
    return call_op(tvm.ir.Op.get(op), operands, **attributes)


def largest_sample(rule: Rule, generator: np.random.Generator) -> tuple[int, Arrays]:
    """The index of a rule's sample with the most elements, and its arguments."""
    drawn = [sample_inputs(sample, generator) for sample in rule.samples]
    sizes = [sum(array.size for array in arrays) for arrays in drawn]
    index = sizes.index(max(sizes))
    return index, drawn[index]


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
