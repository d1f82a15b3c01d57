import numpy as np
import peak
from peak import compiled, copies, measured, multiply_adds

from graphgrad.ir.arrays import to_tensor


def test_each_chain_multiplies_and_adds_once_an_iteration():
    factors = to_tensor(np.repeat(np.float32([0.5, 3.0]), 8))
    sums = to_tensor(np.ones((1, 2 * 8), np.float32))
    compiled(multiply_adds(1, iterations=2, chains=2, lanes=8))(factors, sums)
    np.testing.assert_array_equal(sums.numpy(), np.full((1, 16), (0.5 + 3) * 0.5 + 3))


def test_every_element_is_copied():
    source = to_tensor(np.arange(2 * 32, dtype=np.float32))
    copy = to_tensor(np.zeros(2 * 32, np.float32))
    compiled(copies(2, 32, lanes=8))(source, copy)
    np.testing.assert_array_equal(copy.numpy(), source.numpy())


def test_sums_stay_in_registers():
    lanes, chains = peak._registers()
    executable = compiled(multiply_adds(1, 1000, chains, lanes))
    sources = [m for m in (executable.mod, *executable.mod.imports) if m.kind == "llvm"]
    loop = max(sources[0].inspect_source("asm").split("\n.LBB"), key=lambda part: part.count("fma"))
    sums = [line for line in loop.splitlines() if "fma" in line]
    assert len(sums) >= chains and not any("(%r" in line for line in sums)


def test_figures_are_positive():
    found = measured(1, iterations=1000, elements=1 << 12)
    assert len(found) == 4 and all(figure > 0 for figure in found.values())
