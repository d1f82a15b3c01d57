"""Which maps become a part of the contraction whose result they read, and that they compute it."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.lower.cuda.library import select
from graphgrad.lower.cuda.library.select import call_libraries
from graphgrad.runtime.cudnn.plans import Plan
from graphgrad.runtime.cudnn.problem import Problem
from tests.emulator.library import Library
from tests.running import function, run

op, nn = relax.op, relax.op.nn
GPU = gg.target({"kind": "cuda", "arch": "sm_90"})
HALF, SINGLE = "bfloat16", "float32"
M, N, K = 6, 4, 5
OPERANDS = [((M, K), HALF), ((K, N), HALF)]


@pytest.fixture
def library(monkeypatch):
    """A library that has a plan for all, and pays."""
    monkeypatch.delenv(select.SWITCH)
    monkeypatch.setattr(select, "is_installed", lambda: True)
    monkeypatch.setattr(select, "library_pays", lambda plan: True)
    monkeypatch.setattr(select, "epilogue_pays", lambda plan, alone: True)
    monkeypatch.setattr(
        select, "plan_all", lambda problems, _: {p: Plan(p, 96, 0, (), 0, 90, "") for p in problems}
    )


def calls(mod):
    """The problems of a module, in order, and the ops that are left."""
    problems, ops = [], []
    for block in mod["main"].body.blocks:
        for value in (binding.value for binding in block.bindings):
            if not isinstance(value, relax.Call):
                continue
            text = [a for a in value.args if isinstance(a, tvm.ir.StringImm)]
            if isinstance(value.args[0], relax.ExternFunc):
                text = [a for a in value.args[1].fields if isinstance(a, tvm.ir.StringImm)]
            if text:
                problems.append(Plan.from_json(str(text[0].value)).problem)
            else:
                ops.append(str(value.op.name))
    return problems, ops


def selected(build, *types):
    mod = call_libraries(function(build, *types), GPU)
    relax.analysis.well_formed(mod)  # raises
    return calls(mod)


def steps(problem):
    return [each.op for each in problem.epilogue]


def product(b, x, w):
    return b.emit(op.matmul(x, w, out_dtype=SINGLE))


def cast(b, x, dtype=HALF):
    return b.emit(op.astype(x, dtype))


def test_bias_and_activation(library):
    def build(b, x, w, bias):
        z = b.emit(op.add(cast(b, product(b, x, w)), cast(b, bias)))
        return b.emit(nn.gelu(z))

    (found,), ops = selected(build, *OPERANDS, ((N,), SINGLE))
    assert steps(found) == ["add", "multiply", "erf", "multiply", "add", "multiply"] and not ops
    # The bias is read before it is rounded, and broadcast along the rows.
    assert (found.inputs[2].shape, found.inputs[2].dtype) == ((1, 1, N), SINGLE)
    assert [form.dtype for form in found.outputs] == [HALF]
    assert Problem.from_json(found.to_json()) == found


def test_what_the_gradient_reads_is_written_too(library):
    def build(b, x, w, bias):
        z = b.emit(op.add(product(b, x, w), bias))
        y = b.emit(nn.silu(z))
        slope = b.emit(op.multiply(b.emit(op.sigmoid(z)), z))
        total = b.emit(op.sum(slope))
        return b.emit(relax.Tuple([b.emit(op.permute_dims(y)), total]))

    (found,), ops = selected(build, *OPERANDS, ((N,), SINGLE))
    assert found.results == (2, 4) and steps(found) == ["add", "sigmoid", "multiply"]
    assert ops == ["relax.sigmoid", "relax.multiply", "relax.sum", "relax.permute_dims"]


def test_a_residual_and_a_cast(library):
    def build(b, x, w, residual):
        return b.emit(op.add(residual, cast(b, cast(b, product(b, x, w)), SINGLE)))

    (found,), ops = selected(build, *OPERANDS, ((M, N), SINGLE))
    assert steps(found) == ["add"] and not ops and found.outputs[0].dtype == SINGLE

    def narrowed(b, x, w):
        half = cast(b, product(b, x, w))
        return b.emit(op.permute_dims(cast(b, half, SINGLE)))

    (found,), ops = selected(narrowed, *OPERANDS)
    assert found.outputs[0].dtype == HALF and not found.epilogue
    assert ops == ["relax.astype", "relax.permute_dims"]


def test_the_gradient_of_a_convolution_with_that_of_relu(library):
    def build(b, ct, w, y, other):
        dx = b.emit(nn.conv2d(ct, w, padding=1, data_layout="NHWC", kernel_layout="OHWI"))
        both = b.emit(op.add(dx, other))
        zero = relax.const(0.0, HALF)
        return b.emit(op.where(b.emit(op.less_equal(y, zero)), zero, both))

    image = ((2, 5, 5, 8), HALF)
    (found,), ops = selected(build, image, ((8, 3, 3, 8), HALF), image, image)
    assert sorted(steps(found)) == ["add", "less_equal", "select"] and not ops
    assert found.inputs[2] == found.output  # channels are innermost, as cuDNN is told


@pytest.mark.parametrize(
    "build, types",
    [
        # What the epilogue reads is made of its own result.
        (lambda b, z: b.emit(op.multiply(z, b.emit(op.sum(z, axis=[1], keepdims=True)))), []),
        # Another shape.
        (lambda b, z, y: b.emit(op.add(z, y)), [((3, M, N), SINGLE)]),
        # Not float.
        (lambda b, z: cast(b, z, "int32"), []),
        (lambda b, z: cast(b, z, "float64"), []),
    ],
    ids=["cycle", "larger", "integers", "float64"],
)
def test_what_stays_apart(library, build, types):
    def whole(b, x, w, *others):
        return build(b, product(b, x, w), *others)

    (found,), ops = selected(whole, *OPERANDS, *types)
    assert not found.epilogue and found.output.dtype == SINGLE and ops


def test_rows_of_a_stack_are_no_broadcast_of_one_matrix(library):
    def build(b, x, w, y):
        return b.emit(op.add(b.emit(op.matmul(x, w)), y))

    # Three rows for each of two matrices, which are six rows of one for the library.
    (found,), ops = selected(build, ((2, 3, K), HALF), ((K, N), HALF), ((3, N), HALF))
    assert not found.epilogue and ops == ["relax.add"]
    (found,), ops = selected(build, ((2, 3, K), HALF), ((K, N), HALF), ((2, 3, 1), HALF))
    assert steps(found) == ["add"] and found.inputs[2].shape == (1, 6, 1)


def test_no_plan_no_epilogue(library, monkeypatch):
    def plan_all(problems, _):
        return {
            p: "cuDNN has no plan" if p.epilogue else Plan(p, 0, 0, (), 0, 90, "") for p in problems
        }

    monkeypatch.setattr(select, "plan_all", plan_all)
    (found,), ops = selected(
        lambda b, x, w, y: b.emit(op.add(product(b, x, w), y)), *OPERANDS, ((M, N), SINGLE)
    )
    assert not found.epilogue and ops == ["relax.add"]


UNARY = [op.tanh, op.sigmoid, op.erf, nn.relu, nn.silu, op.negative, op.abs, op.square]
BINARY = [op.add, op.subtract, op.multiply]


def random_program(rng):
    """Two products, and random maps, reductions and transpositions of them, and what they give."""

    def build(b, x, w, y, row, column):
        values = [y, product(b, x, w), product(b, x, w)]
        for _ in range(rng.integers(3, 14)):
            pick = [values[i] for i in rng.integers(0, len(values), 3)]
            kind = rng.integers(0, 10)
            if kind < 3:
                new = UNARY[rng.integers(len(UNARY))](pick[0])
            elif kind < 6:
                new = BINARY[rng.integers(len(BINARY))](pick[0], pick[1])
            elif kind == 6:
                other = [row, column, relax.const(0.5, SINGLE)][rng.integers(3)]
                new = BINARY[rng.integers(len(BINARY))](pick[0], other)
            elif kind == 7:
                new = op.where(b.emit(op.less(pick[0], pick[1])), pick[2], pick[0])
            elif kind == 8:
                new = op.multiply(pick[0], b.emit(op.mean(pick[1], axis=[0], keepdims=True)))
            else:
                new = op.permute_dims(b.emit(op.permute_dims(pick[0])))
            values.append(b.emit(new))
        # The last is read, and a few others.
        return b.emit(
            relax.Tuple(
                [values[-1], *(values[i] for i in rng.integers(0, 9, 2) if i < len(values))]
            )
        )

    return function(
        build,
        ((M, K), SINGLE),
        ((K, N), SINGLE),
        ((M, N), SINGLE),
        ((N,), SINGLE),
        ((M, 1), SINGLE),
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_compute_the_same(library, seed):
    rng = np.random.default_rng(seed)
    count = 0
    for _ in range(6):
        mod = random_program(rng)
        arrays = [rng.standard_normal([int(n) for n in p.ty.shape]) for p in mod["main"].params]
        arrays = [each.astype(SINGLE) for each in arrays]
        changed = call_libraries(mod, GPU)
        relax.analysis.well_formed(changed)  # raises
        count += sum(bool(each.epilogue) for each in calls(changed)[0])
        with Library():
            results = run(changed, "main", *arrays)
        for found, expected in zip(results, run(mod, "main", *arrays), strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    assert count
