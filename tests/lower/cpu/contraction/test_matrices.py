"""Contractions of bfloat16 in tile registers, on an emulated processor, and their machine code."""

import dataclasses
import random
import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.lower.cpu import schedule as cpu
from graphgrad.lower.cpu import tile_products
from graphgrad.lower.cpu.contraction import matrices, pairs, replace
from tests.lower.cpu.contraction import emulated_tiles, test_random
from tests.lower.cpu.contraction.test_pairs import PAIRS, product
from tests.lower.cpu.contraction.test_random import (
    FORMS,
    contraction,
    random_costs,
    results_of,
    with_map,
)

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


@pytest.mark.parametrize("seed", range(int(__import__("os").environ.get("SEEDS", 24))))
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
    f = agrees(inputs, output, dataclasses.replace(MATRICES, contraction=costs), seed=seed)
    import os
    open("/tmp/amx/fuzz.log","a").write(f"{seed} {in_tiles(f)} {os.getpid()}\n")
