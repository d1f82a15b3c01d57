"""What the machine can do at most: multiply-adds, exponentials, bytes from memory and cache.

    python peak.py THREADS CLOCK

Prints one JSON object. Started by `kernels.py`, in a process of its own like any contender.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script.parser import tirx as T

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cpu.tuning import processor_of

ROUNDS = 7
ITERATIONS = 1 << 22  # of each thread: tens of milliseconds
ELEMENTS = 1 << 24  # of the arrays that are copied: larger than any cache
WEIGHTS = 1 << 20  # of the array that is read again and again, as a step of a wide LSTM reads it
SWEEPS = 64
EXPONENTS = 1 << 16  # for each thread: with their results they fit a core's own cache


def main() -> None:
    threads, clock = sys.argv[1:]
    print(json.dumps(measured(int(threads), getattr(time, clock))))


def measured(
    threads: int,
    clock: Callable[[], float] = time.perf_counter,
    iterations: int = ITERATIONS,
    elements: int = ELEMENTS,
) -> dict[str, float]:
    """Return the best of some rounds: GFLOP/s in float32, GB/s, and exponentials.

    Those of a copy count both ways; those from the cache are of reads of 4 MB, shared by threads,
    which no core's own cache holds. Exponentials, in billions a second, are computed as graphgrad
    computes them, from a core's own cache and into it. TVM has `threads` threads, by the
    environment of this process.
    """

    def least(run: Callable[[], None]) -> float:
        seconds = []
        for _ in range(ROUNDS):
            start = clock()
            run()
            seconds.append(clock() - start)
        return min(seconds)

    lanes, chains = _registers()
    factors = to_tensor(np.full(2 * lanes, 0.5, np.float32))
    sums = to_tensor(np.zeros((threads, chains * lanes), np.float32))
    source = to_tensor(np.zeros(elements, np.float32))
    copy = to_tensor(np.zeros(elements, np.float32))
    operations = 2 * threads * iterations * chains * lanes
    adding = compiled(multiply_adds(threads, iterations, chains, lanes))
    copying = compiled(copies(threads, elements // threads, lanes))
    weights = to_tensor(np.zeros(WEIGHTS, np.float32))
    reading = compiled(reads(threads, WEIGHTS // threads, SWEEPS, chains, lanes))
    read_bytes = SWEEPS * weights.numpy().nbytes
    exponents = np.linspace(-8, 0, threads * EXPONENTS, dtype=np.float32)
    exponential, exponent_tensor = exponentials(exponents.size), to_tensor(exponents)

    def sweep_exponentials() -> None:
        for _ in range(SWEEPS):
            exponential(exponent_tensor)

    return {
        "gflops": operations / least(lambda: adding(factors, sums)) / 1e9,
        "gb_per_s": 2 * copy.numpy().nbytes / least(lambda: copying(source, copy)) / 1e9,
        "cache_gb_per_s": read_bytes / least(lambda: reading(weights, sums)) / 1e9,
        "giga_exponentials_per_s": SWEEPS * exponents.size / least(sweep_exponentials) / 1e9,
    }


def compiled(kernel: Any) -> Callable[..., None]:
    """Return a kernel, compiled for this host as it stands."""
    module: Callable[..., None] = tvm.compile(kernel, gg.target("llvm"))
    return module


def multiply_adds(tasks: int, iterations: int, chains: int, lanes: int) -> Any:
    """Return a kernel of independent chains ``x = x * a + b``, as many as registers hold."""

    @T.prim_func(s_tir=True)
    def main(
        factors: T.Buffer((2 * lanes,), "float32"),
        sums: T.Buffer((tasks, chains * lanes), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})  # else registers are stored after each sum
        for task in T.parallel(tasks):
            x = T.alloc_buffer((chains * lanes,), "float32", scope="local")
            for chain in T.unroll(chains):
                for lane in T.vectorized(lanes):
                    x[chain * lanes + lane] = sums[task, chain * lanes + lane]
            for _ in T.serial(iterations):
                for chain in T.unroll(chains):
                    for lane in T.vectorized(lanes):
                        x[chain * lanes + lane] = (
                            x[chain * lanes + lane] * factors[lane] + factors[lanes + lane]
                        )
            for chain in T.unroll(chains):
                for lane in T.vectorized(lanes):
                    sums[task, chain * lanes + lane] = x[chain * lanes + lane]

    return main


def copies(tasks: int, elements: int, lanes: int) -> Any:
    """Return a kernel in which each task copies its part of an array."""

    @T.prim_func(s_tir=True)
    def main(
        source: T.Buffer((tasks * elements,), "float32"),
        copy: T.Buffer((tasks * elements,), "float32"),
    ):
        for task in T.parallel(tasks):
            for i in T.serial(elements // lanes):
                for lane in T.vectorized(lanes):
                    copy[task * elements + i * lanes + lane] = source[
                        task * elements + i * lanes + lane
                    ]

    return main


def reads(tasks: int, elements: int, sweeps: int, chains: int, lanes: int) -> Any:
    """Return a kernel in which each task adds up its part of an array, again and again."""
    width = chains * lanes

    @T.prim_func(s_tir=True)
    def main(
        source: T.Buffer((tasks * elements,), "float32"),
        sums: T.Buffer((tasks, width), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for task in T.parallel(tasks):
            x = T.alloc_buffer((width,), "float32", scope="local")
            for chain in T.unroll(chains):
                for lane in T.vectorized(lanes):
                    x[chain * lanes + lane] = sums[task, chain * lanes + lane]
            for _ in T.serial(sweeps):
                for i in T.serial(elements // width):
                    for chain in T.unroll(chains):
                        for lane in T.vectorized(lanes):
                            x[chain * lanes + lane] = (
                                x[chain * lanes + lane]
                                + source[task * elements + i * width + chain * lanes + lane]
                            )
            for chain in T.unroll(chains):
                for lane in T.vectorized(lanes):
                    sums[task, chain * lanes + lane] = x[chain * lanes + lane]

    return main


def exponentials(elements: int) -> Callable[..., Any]:
    """Return a function of as many elements, compiled as any program is."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([elements], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    function: Callable[..., Any] = relax.VirtualMachine(gg.compile(builder.get()), tvm.cpu())[
        "main"
    ]
    return function


def _registers() -> tuple[int, int]:
    """Return the lanes of a vector register, and how many chains leave some registers free."""
    unit = processor_of(gg.target("llvm"))
    return unit.lanes("float32"), unit.registers * 3 // 4


if __name__ == "__main__":
    main()
