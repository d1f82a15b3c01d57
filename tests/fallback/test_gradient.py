"""Derived gradients against differences, both evaluated by the interpreter."""

import numpy as np
import pytest
from tvm import te

from graphgrad.fallback.gradient import te_gradient
from tests.fallback.expressions import random_program
from tests.fallback.interpreter import evaluate

STEP = 1e-6


def differences(program, head, generator):
    """Return, per input, a random direction and the derivative of ⟨head, output⟩ along it."""
    found = []
    for i, array in enumerate(program.arrays):
        direction = generator.standard_normal(array.shape)
        values = []
        for sign in (1, -1):
            moved = [a.copy() for a in program.arrays]
            moved[i] = array + sign * STEP * direction
            (value,) = evaluate([program.output], list(zip(program.inputs, moved, strict=True)))
            values.append((value * head).sum())
        found.append((direction, (values[0] - values[1]) / (2 * STEP)))
    return found


@pytest.mark.parametrize("block", range(8))
def test_random_programs_agree_with_differences(block):
    for seed in range(40 * block, 40 * (block + 1)):
        program = random_program(seed)
        generator = np.random.default_rng(seed)
        shape = [int(e) for e in program.output.shape]
        head_array = generator.standard_normal(shape)
        head = te.placeholder(shape, "float64", name="head")
        gradients = te_gradient(program.output, program.inputs, head)
        known = [*zip(program.inputs, program.arrays, strict=True), (head, head_array)]
        arrays = evaluate(gradients, known)
        for (direction, expected), gradient in zip(
            differences(program, head_array, generator), arrays, strict=True
        ):
            given = (gradient * direction).sum()
            scale = max(abs(expected), np.abs(gradient).sum(), 1e-3)
            assert abs(given - expected) < 1e-6 * scale, f"seed {seed}: {given} {expected}"
