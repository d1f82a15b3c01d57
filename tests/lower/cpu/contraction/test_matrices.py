"""Contractions of bfloat16 in tile registers, on an emulated processor, and their machine code."""

import dataclasses
import random
import re

import numpy as np
import pytest
import tvm
from tvm import te

import graphgrad as gg
from graphgrad.errors import TargetError
from graphgrad.lower import device
from graphgrad.lower.cpu import schedule as cpu
from graphgrad.lower.cpu import tile_products
from graphgrad.lower.cpu.contraction import matrices, pairs, replace
from graphgrad.lower.cpu.features import used_features
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.lower.target import target
from graphgrad.runtime.machine import processor_flags
from models.mlp import mlp
from tests.lower import kernel_programs
from tests.lower.cpu.contraction import emulated_tiles, test_random
from tests.lower.cpu.contraction.test_pairs import PAIRS, product, run_recurrence
from tests.lower.cpu.contraction.test_random import (
    FORMS,
    contraction,
    random_costs,
    results_of,
    with_map,
)
from tests.lower.kernel_programs import HOST
from tests.running import compile_library

MATRICES = dataclasses.replace(PAIRS, multiplies_matrices=True)
SAPPHIRE_RAPIDS = {
    "kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+amx-bf16"],
    "mtriple": "x86_64-linux-gnu", "opt-level": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulated_tiles.load(tmp_path_factory.mktemp("tiles"))


@pytest.fixture
def emulated(monkeypatch, emulator):
    monkeypatch.setattr(tile_products, "_INSTRUCTIONS", emulated_tiles.DECLARATIONS)
    return emulator


def in_tiles(func):
    return "graphgrad_tile_add" in func.script()


def agrees(inputs, output, processor=MATRICES, seed=0):
    """Assert that a kernel computes the same by tiles; return the scheduled function."""
    func = te.create_prim_func([*inputs, output])
    scheduled = cpu.schedule_loops(func, processor, winograd=False)
    expected, actual = results_of(func, scheduled, inputs, output, seed)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    return scheduled


EXTENTS = {
    "n": [1, 2, 8], "c": [16, 24, 32], "k": [16, 33, 40], "h": [1, 4, 9], "w": [7, 8, 18],
    "r": [1, 3], "s": [1, 3], "i": [7, 16, 37, 65], "j": [16, 40, 31],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(16))
def test_random_contractions(seed, monkeypatch, emulated):
    rng = random.Random(seed)
    monkeypatch.setattr(replace, "SMALL", 100)
    monkeypatch.setattr(
        test_random, "extents", lambda rng, names: {n: rng.choice(EXTENTS[n]) for n in names}
    )
    monkeypatch.setattr(pairs, "_MAX_RELATIVE_COST", 100)
    monkeypatch.setattr(matrices, "_MIN_PRODUCTS_PER_CYCLE", 0.1)
    inputs, output = contraction(rng, list(FORMS)[seed % 4], "bfloat16")
    if rng.random() < 0.5:
        inputs, output = with_map(rng, inputs, output)
    costs = random_costs(rng)
    agrees(inputs, output, dataclasses.replace(MATRICES, contraction=costs), seed=seed)


@pytest.mark.parametrize("rows, columns", [(96, 96), (37, 40), (33, 31)])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
def test_products(rows, columns, flips, emulated, monkeypatch):
    """Rows that are not neighbors along the sum are copied so; ragged blocks are moved back."""
    monkeypatch.setattr(matrices, "_MIN_PRODUCTS_PER_CYCLE", 1)
    before = emulated.emulated_uses()
    func = agrees(*product(rows, 64, columns, *flips))
    assert in_tiles(func) and "add_pair_product" not in func.script()
    assert emulated.emulated_uses() > before


@pytest.mark.parametrize("transposed", [False, True])
def test_states_that_a_loop_rounds(transposed, emulated, monkeypatch):
    unit = dataclasses.replace(MATRICES, step_bytes=0)
    monkeypatch.setattr(kernel_programs, "UNIT", unit)
    runs = run_recurrence(16, 128, transposed)
    assert "graphgrad_tile_add" in runs.text
    np.testing.assert_array_equal(runs.scheduled[0], runs.stock[0])


def test_rounding_is_that_of_the_instruction(emulated):
    """First and second numbers are added up apart, and what is below the normal ones is zero."""
    inputs, output = product(64, 64, 64)
    scheduled = cpu.schedule_loops(te.create_prim_func([*inputs, output]), MATRICES)
    a, b = (np.zeros((64, 64), "bfloat16") for _ in inputs)
    a[0, :4], b[:4, 0] = [2.0**24, 1, 1, 1], 1  # one rounding to even for each addition of ones
    a[1, 0], b[0, 1] = 2.0**-127, 2.0**100
    a[2, 0], b[0, 2] = 2.0**-100, 2.0**-30
    results = run_scheduled(scheduled, [a, b], (64, 64))
    assert results[0, 0] == 2.0**24 + 2
    assert results[1, 0] == results[1, 1] == results[2, 2] == 0


def run_scheduled(func, values, shape):
    library = compile_library(func, HOST)
    result = tvm.runtime.tensor(np.zeros(shape, "float32"))
    library["main"](*map(tvm.runtime.tensor, values), result)
    return result.numpy()


@pytest.mark.parametrize(
    "mcpu, level", [("sapphirerapids", 1), ("sapphirerapids", 3), ("znver4", 2)]
)
def test_machine_code(mcpu, level):
    """Four sums stay in registers: there are as many loads as products, and all of factors.

    LLVM would give registers that its own intrinsics name other numbers for a znver4.
    """
    inputs, output = product(64, 256, 64)
    func = cpu.schedule_loops(te.create_prim_func([*inputs, output]), MATRICES)
    options = {**SAPPHIRE_RAPIDS, "mcpu": mcpu, "opt-level": level}
    library = tvm.compile(tvm.IRModule({"f": func.with_attr("global_symbol", "f")}), target=options)
    lines = [line.split() for line in str(library.mod.inspect_source("asm")).splitlines()]
    used = [line for line in lines if re.search("tmm|^ldtilecfg|^tilerelease", " ".join(line))]
    registers = {}
    for name, *operands in used:
        of_name = registers.setdefault(name, [])
        of_name.append(tuple(map(int, re.findall(r"%tmm(\d)", " ".join(operands)))))
    assert used[0][0] == "ldtilecfg" and used[-1][0] == "tilerelease"
    assert {name: set(of_name) for name, of_name in registers.items()} == {
        "ldtilecfg": {()},
        "tilezero": {(0,), (1,), (2,), (3,)},
        "tileloadd": {(4,), (5,), (6,), (7,)},
        "tdpbf16ps": {(6, 4, 0), (7, 4, 1), (6, 5, 2), (7, 5, 3)},
        "tilestored": {(0,), (1,), (2,), (3,)},
        "tilerelease": {()},
    }
    assert len(registers["tileloadd"]) == len(registers["tdpbf16ps"])
    assert len(registers["tilestored"]) == len(registers["tilezero"])


def test_ordinary_targets_have_none():
    """Neither the name of a processor nor the feature that it implies turns them on."""
    named = target({key: value for key, value in SAPPHIRE_RAPIDS.items() if key != "mattr"})
    assert not processor_of(named).multiplies_matrices
    assert "amx_bf16" not in used_features(named).values()
    asked = target(SAPPHIRE_RAPIDS)
    assert processor_of(asked).multiplies_matrices
    assert {"amx_bf16", "amx_tile"} <= set(used_features(asked).values())
    taken_away = target({**SAPPHIRE_RAPIDS, "mattr": ["+amx-bf16", "-amx-bf16"]})
    assert "amx_bf16" not in used_features(taken_away).values()
    with pytest.raises(TargetError, match="need the vector instructions of avx512bf16"):
        target({**SAPPHIRE_RAPIDS, "mcpu": "x86-64-v4"})


@pytest.mark.skipif("avx512_bf16" not in processor_flags(), reason="needs AVX512-BF16 beside tiles")
def test_a_step(emulated, monkeypatch):
    """Products and their gradients, as steps compile and link them, by several threads."""
    monkeypatch.setattr(device, "missing_features", lambda target: [])
    monkeypatch.setattr(device, "request_tiles", lambda: "")
    proto = mlp((64, 128, 32))
    inputs = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    batch = {"input": inputs, "targets": np.arange(64) % 32}
    ordinary = gg.target("llvm").export()
    tiles = {**ordinary, "mattr": [*ordinary.get("mattr", []), "+amx-bf16"]}
    gradients, uses = [], []
    for spec in (ordinary, tiles):
        options = {"loss": "cross_entropy", "precision": "bfloat16", "target": spec}
        gradients.append(gg.value_and_grad(gg.from_onnx(proto), **options)(batch)[1])
        uses.append(emulated.emulated_uses())
    assert uses[1] > uses[0]
    for name, expected in gradients[0].items():
        bound = 2**-8 * np.abs(expected).max()  # one may be rounded to the number beside
        np.testing.assert_allclose(gradients[1][name], expected, rtol=0, atol=bound)
