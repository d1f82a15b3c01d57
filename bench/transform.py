"""Time to differentiate: chains of operators, and an imported ResNet-50. Nothing is compiled.

    python bench/transform.py [--json] [--sizes 100,1000] [--repeats 3]

A linear transform has a growth exponent of 1: twice the operators take twice the time.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from machine import facts, versions
from table import table
from tvm import relax

import graphgrad as gg
from graphgrad.models import resnet50

SIZES = (100, 300, 1_000, 3_000, 10_000)
EXTENT = 16  # elements of the tensor that a chain computes on; no time depends on it

Link = Callable[[int, relax.Var, relax.Var], relax.Expr]


def product(index: int, x: relax.Var, y: relax.Var) -> relax.Expr:
    """x·(x·(x·…)): every operator reads the first value, whose gradient has as many parts."""
    return relax.op.multiply(x, y)


def tanh(index: int, x: relax.Var, y: relax.Var) -> relax.Expr:
    """tanh(tanh(…)): each operator has one reader, and its rule reads its output."""
    return relax.op.tanh(y)


def fan_out(index: int, x: relax.Var, y: relax.Var) -> relax.Expr:
    """Σ over many uses of x: a chain of sums, each with x itself as a term."""
    return relax.op.add(y, x)


def mixed(index: int, x: relax.Var, y: relax.Var) -> relax.Expr:
    """Unary and binary operators in turn, all of which keep values finite."""
    kinds: list[Callable[[], relax.Expr]] = [
        lambda: relax.op.sin(y),
        lambda: relax.op.multiply(x, y),
        lambda: relax.op.sigmoid(y),
        lambda: relax.op.subtract(x, y),
    ]
    return kinds[index % len(kinds)]()


CHAINS: dict[str, Link] = {
    "x*(x*(...))": product,
    "tanh": tanh,
    "sum over a fan-out": fan_out,
    "mixed": mixed,
}


def chain(link: Link, length: int) -> tvm.IRModule:
    """Return a module whose ``main`` applies a link `length` times to its parameter."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([EXTENT], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for index in range(length):
                y = builder.emit(link(index, x, y))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of some work, each time with the garbage of the last collected."""
    seconds = []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def growth_exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return the slope of log time over log size between the two largest sizes."""
    if len(sizes) < 2:
        return None
    return math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])


def measure_chain(name: str, sizes: Sequence[int], repeats: int) -> dict[str, Any]:
    """Time the differentiation of one kind of chain at every size."""
    seconds = []
    for size in sizes:
        differentiate = functools.partial(gg.vjp, chain(CHAINS[name], size))
        seconds.append(median_seconds(differentiate, repeats))
    return {
        "chain": name,
        "sizes": list(sizes),
        "seconds": seconds,
        "microseconds_per_op": [
            1e6 * time / size for time, size in zip(seconds, sizes, strict=True)
        ],
        "growth_exponent": growth_exponent(sizes, seconds),
    }


def measure_resnet50(size: int, repeats: int) -> dict[str, Any]:
    """Time import and differentiation of a ResNet-50 in training form, apart."""
    proto = resnet50(batch=1, size=size)
    import_seconds = median_seconds(lambda: gg.from_onnx(proto), repeats)
    model = gg.from_onnx(proto)
    wrt = model.trainable()
    seconds = median_seconds(lambda: gg.vjp(model.mod, wrt=wrt), repeats)
    calls = call_count(model.mod["main"])
    return {
        "model": "resnet50",
        "ops": calls,
        "parameters": len(wrt),
        "import_seconds": import_seconds,
        "differentiate_seconds": seconds,
        "microseconds_per_op": 1e6 * seconds / calls,
        "gradient_ops": call_count(gg.vjp(model.mod, wrt=wrt)["main_vjp"]),
    }


def call_count(function: relax.Function) -> int:
    """Return the number of operator calls bound in a function."""
    return sum(
        isinstance(binding.value, relax.Call)
        for block in function.body.blocks
        for binding in block.bindings
    )


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    rows = [
        [
            entry["chain"],
            f"{size:,}",
            f"{seconds:.3f}",
            f"{each:.0f}",
            _exponent(entry) if size == entry["sizes"][-1] else "",
        ]
        for entry in result["chains"]
        for size, seconds, each in zip(
            entry["sizes"], entry["seconds"], entry["microseconds_per_op"], strict=True
        )
    ]
    net = result["resnet50"]
    rows.append(
        [
            "ResNet-50",
            f"{net['ops']:,}",
            f"{net['differentiate_seconds']:.3f}",
            f"{net['microseconds_per_op']:.0f}",
            "",
        ]
    )
    machine = result["machine"]
    return "\n".join(
        [
            table(["differentiate", "ops", "seconds", "µs per op", "growth"], rows),
            f"ResNet-50 import from ONNX: {net['import_seconds']:.3f} s; its gradient has "
            f"{net['gradient_ops']:,} ops for {net['parameters']} parameters",
            f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}; "
            f"medians of {result['repeats']}; load average {machine['load_average'][0]}",
        ]
    )


def _exponent(entry: dict[str, Any]) -> str:
    exponent = entry["growth_exponent"]
    return "" if exponent is None else f"{exponent:.2f}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--sizes", type=sizes, default=SIZES, metavar="N,N", help="operators in each chain"
    )
    parser.add_argument("--repeats", type=positive, default=3, help="timings behind each median")
    parser.add_argument(
        "--image", type=positive, default=224, help="height and width of ResNet-50's input"
    )
    return parser.parse_args()


def sizes(text: str) -> tuple[int, ...]:
    """Read sizes separated by commas, in ascending order."""
    return tuple(sorted({positive(part) for part in text.split(",")}))


def positive(text: str) -> int:
    """Read a number above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number above zero, given {text}")
    return value


def main() -> None:
    arguments = parse_arguments()
    # The first call in a process also pays for what is loaded lazily.
    gg.vjp(chain(mixed, 16))
    result = {
        "benchmark": "transform",
        "machine": facts(),
        "versions": versions(),
        "repeats": arguments.repeats,
        "chains": [measure_chain(name, arguments.sizes, arguments.repeats) for name in CHAINS],
        "resnet50": measure_resnet50(arguments.image, arguments.repeats),
    }
    print(json.dumps(result, indent=1) if arguments.json else report(result))


if __name__ == "__main__":
    main()
