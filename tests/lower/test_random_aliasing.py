"""Random programs with aliases, tuples, calls, branches, closures and mutations.

Each is compared with an interpreter that has no memory to reuse, no fusion and no views; gradients
with its differences.
"""

from collections import Counter
from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import generate, lower
from graphgrad.lower.target import target
from graphgrad.memory.donation import DONATED, DONATED_DONE
from graphgrad.registry import unregister
from tests.lower import aliasing
from tests.lower.aliasing import DTYPE, SHAPE, Interpreter, flat, outside
from tests.lower.random_aliasing import Author

PROGRAMS = 16
"""How many share a module: most of the time is the compiler's, and they share kernels."""

randoms = st.integers(0, 2**32).map(Random)
few, more = (
    settings(derandomize=True, max_examples=count, deadline=None, database=None) for count in (2, 5)
)


def programs(random, calm=False):
    builder = relax.BlockBuilder()
    pairs = {}
    for number in range(PROGRAMS):
        author = Author(builder, random, f"program{number}", calm)
        pairs[author.name] = author.write(0 if calm else random.randint(1, 2))
    mod = builder.get()
    for name, donations in pairs.items():
        if donations:
            mod[name] = mod[name].with_attr(DONATED, donations)
    return mod, list(pairs)


def arguments(mod, name, condition):
    """Return random tensors for all parameters but the last, which is the condition."""
    generator = np.random.default_rng(1)
    count = len(mod[name].params) - 1
    return [*(generator.uniform(-1, 1, SHAPE) for _ in range(count)), np.array(condition)]


def shared(tensors, key):
    """Return which tensors are one another, as a matrix."""
    return [[key(a) == key(b) for a in tensors] for b in tensors]


def check(mod, machine, name, arrays, done):
    """Compare results, what shares memory, and what is left in arguments and outside."""
    tensors = [to_tensor(array) for array in arrays]
    with outside() as held:
        expected = flat(Interpreter(mod).run(name, *arrays))
        left = [*expected, *held.kept, *held.seen]
    with outside() as held:
        got = flat(machine[name](*tensors))
        got_left = [t if isinstance(t, np.ndarray) else t.numpy() for t in (*got, *held.kept)]
        got_left += held.seen
    overwritten = [parameter for parameter, _ in done]
    for number, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        if number not in overwritten:
            left.append(array)
            got_left.append(tensor.numpy())
    for a, b in zip(left, got_left, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12)
    for parameter, output in done:
        assert got[output].data_ptr() == tensors[parameter].data_ptr()
        arrays[parameter] = expected[output]
    everything = shared([*expected, *arrays], id)
    assert shared([*got, *tensors], lambda tensor: tensor.data_ptr()) == everything
    for tensor in got:  # a caller's own from now on
        tensor.copyfrom(np.full(SHAPE, 7.0, DTYPE))


@given(randoms)
@more
def test_values_and_memory(random):
    mod, names = programs(random)
    host = target("llvm")
    lowered = lower(mod, host)
    machine = relax.VirtualMachine(generate(lowered, host), tvm.cpu())
    for name in names:
        honored = (lowered[name].attrs or {}).get(DONATED_DONE, [])
        done = [(int(parameter), int(output)) for parameter, output in honored]
        for condition in (True, False, True):
            check(mod, machine, name, arguments(mod, name, condition), done)


@pytest.fixture(scope="module")
def rules():
    """The gradients of two packed functions."""
    gg.register_gradient(aliasing.DECLARED_DOUBLE)(lambda i, o, c, a: [c[0] * 2.0])
    gg.register_gradient(aliasing.DECLARED_SAME)(lambda i, o, c, a: [c[0]])
    yield
    unregister(aliasing.DECLARED_DOUBLE)
    unregister(aliasing.DECLARED_SAME)


def differences(mod, name, arrays, cotangents):
    """Return the gradients of all tensors but the condition, by central differences."""

    def value(changed):
        with outside():
            results = flat(Interpreter(mod).run(name, *[array.copy() for array in changed]))
        return sum((c * r).sum() for c, r in zip(cotangents, results, strict=True))

    gradients = []
    for number, array in enumerate(arrays[:-1]):
        gradient = np.zeros(SHAPE)
        for index in np.ndindex(*SHAPE):
            step = np.zeros(SHAPE)
            step[index] = 1e-6
            up, down = (
                [*arrays[:number], array + sign * step, *arrays[number + 1 :]] for sign in (1, -1)
            )
            gradient[index] = (value(up) - value(down)) / 2e-6
        gradients.append(gradient)
    return gradients


@given(randoms)
@few
def test_gradients_are_right_or_refused(rules, random):
    mod, names = programs(random, calm=True)
    outcomes = Counter()
    both = mod
    for name in names:
        wrt = [param.name for param in mod[name].params[:-1]]
        try:
            both = gg.vjp(both, name, wrt=wrt)
            outcomes[name] = 1
        except gg.MissingGradientError as error:
            assert "tests.aliasing.declared" in str(error)
    assert len(outcomes) >= PROGRAMS // 4
    machine = relax.VirtualMachine(gg.compile(both), tvm.cpu())
    for name in outcomes:
        for condition in (True, False):
            arrays = arguments(mod, name, condition)
            with outside():
                expected = flat(Interpreter(mod).run(name, *[array.copy() for array in arrays]))
            cotangents = [np.cos(3.0 * i + np.arange(SHAPE[0])) for i in range(len(expected))]
            with outside():
                returned, gradients = machine[f"{name}_vjp"](
                    *map(to_tensor, [*arrays, *cotangents])
                )
            for a, b in zip(expected, flat(returned), strict=True):
                np.testing.assert_allclose(b.numpy(), a, rtol=1e-9, atol=1e-12)
            exact = differences(mod, name, arrays, cotangents)
            for a, b in zip(exact, flat(gradients), strict=True):
                np.testing.assert_allclose(b.numpy(), a, rtol=1e-5, atol=1e-6)
