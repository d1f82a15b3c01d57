"""Kernels with nests in place of stages: epilogues, accumulators, shared operands."""

import pytest
import tvm
import tvm_ffi
from tvm import te, topi

from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.cpu.tuning import Processor
from graphgrad.memory.overwrite import may_overwrite
from tests.labels import label
from tests.lower.cpu.contraction.stages import product
from tests.lower.kernel_programs import UNIT, run, tensor


def is_nest(result):
    """Return whether some contraction was written out as a nest."""
    return "registers" in result.text


@pytest.mark.parametrize("shape", [(64, 64, 64), (61, 67, 71), (17, 100, 300)], ids=label)
@pytest.mark.parametrize("flip", [False, True])
def test_accumulators_may_be_overwritten(shape, flip):
    """Each element is stored once, though the last tiles are not whole ones."""
    (a, b), c = product(*shape)
    total = topi.transpose(c) if flip else c
    old = tensor(*(int(n) for n in total.shape), name="old")
    result = run([a, b, old], [topi.add(old, total)])
    result.agree()
    assert is_nest(result)
    assert may_overwrite(result.func, result.func.params[2], result.func.params[3])


def test_operands_may_not_be_overwritten():
    (a, b), c = product(64, 64, 64)
    kernel = run([a, b], [c]).func
    assert not may_overwrite(kernel, kernel.params[0], kernel.params[2])


def test_a_long_sum_behind_which_a_map_is():
    (a, b), c = product(24, 40, 3000)
    row = tensor(40, name="row")
    result = run([a, b, row], [topi.nn.relu(topi.add(c, row))])
    result.agree()
    assert "partial_sums" in result.text


def test_two_contractions_of_one_operand():
    a, b = tensor(40, 33, name="a"), tensor(33, 48, name="b")
    c, d = topi.matmul(a, b), topi.matmul(a, b, False, False)
    result = run([a, b], [c, topi.multiply(d, 2.0)])
    result.agree()
    assert result.text.count("registers = ") == 2


def test_a_chain_of_contractions():
    a, b, c = tensor(40, 33, name="a"), tensor(33, 48, name="b"), tensor(48, 50, name="c")
    result = run([a, b, c], [topi.matmul(topi.nn.relu(topi.matmul(a, b)), c)])
    result.agree()
    assert is_nest(result)


@pytest.mark.parametrize(
    "unit", [Processor(32, 16), Processor(16, 16), Processor(16, 32)], ids=label
)
def test_other_vector_units(unit):
    (a, b), c = product(50, 52, 54)
    func = te.create_prim_func([a, b, c])
    text = schedule_loops(func, unit).script()
    assert f"T.vectorized({unit.vector_bytes // 4})" in text
    assert (
        f"T.vectorized({UNIT.vector_bytes // 4})" not in text
        or unit.vector_bytes == UNIT.vector_bytes
    )


def test_a_start_other_than_zero_is_kept():
    """Kernels of others may start their sums anywhere; nests start at zero."""
    (a, b), c = product(40, 40, 40)
    func = te.create_prim_func([a, b, c])

    def with_one(block):
        if block.init is None:
            return block
        one = tvm.tirx.BufferStore(
            block.init.buffer, tvm.tirx.const(1.0, "float32"), block.init.indices
        )
        fields = (block.iter_vars, block.reads, block.writes, block.name_hint, block.body, one)
        return tvm.s_tir.SBlock(*fields)

    started = tvm_ffi.structural_map(func.body, (tvm.s_tir.SBlock, with_one))
    text = schedule_loops(func.with_body(started), UNIT).script()
    assert "registers" not in text
    assert "T.float32(1.0)" in text
