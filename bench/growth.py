"""How a training step, and the time until it can run, grow with depth and with the batch.

    python bench/growth.py [--json] [--depths resnet18,resnet34] [--batches 8,16] [--steps 5]
    python bench/growth.py --programs [--chains 50,500,5000]
    python bench/growth.py --imports

Each network is imported, differentiated, compiled without a cache, and trained on random images.
What is linear takes the same time for each operation of a step, and for each operator compiled.
``--programs`` does so, but for training, with what once took compilation too long: chains of
elementwise operators, and grid samples written out. It tells processor time too, which others on
the machine disturb less. ``--imports`` imports files alone: layers of many parameters, and long
chains; the least of some times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["GRAPHGRAD_CACHE"] = "0"

import numpy as np
import onnx
from growth_programs import chain, grid_sample
from machine import facts, versions
from roofline import contractions
from table import table

import graphgrad as gg
from graphgrad.models import mlp, resnet18, resnet34, resnet50, resnet101

DEPTHS: dict[str, Callable[..., onnx.ModelProto]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
}
BATCHES = (8, 16, 32, 64, 128)
CHAINS = (50, 100, 200, 500, 1000, 2000, 5000)
CLASSES = 10

LAYERS = {10: 3, 30: 8, 100: 25}
"""Dense layers of 2,000 units, by about how many million parameters they have."""

IMPORTED_CHAINS = (1000, 2000, 4000, 8000)


def measure(proto: onnx.ModelProto, steps: int) -> dict[str, Any]:
    """Return the seconds until a network's first step is done, and those of a later one."""
    generator = np.random.default_rng(0)
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    images = generator.standard_normal(shape, dtype=np.float32)
    labels = generator.integers(0, CLASSES, shape[0])
    start = time.perf_counter()
    model = gg.from_onnx(proto)
    step = gg.train_step(model, optimizer=gg.optim.SGD(0.01, momentum=0.9))
    float(step(images, labels))
    first = time.perf_counter() - start
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        float(step(images, labels))
        seconds.append(time.perf_counter() - start)
    products = sum(each.multiplications for each in contractions(proto))
    operators = len(proto.graph.node)
    later = statistics.median(seconds)
    return {
        "batch": shape[0],
        "operators": operators,
        "giga_multiplications": products / 1e9,
        "first_step_seconds": first,
        "first_step_ms_per_operator": 1e3 * first / operators,
        "step_ms": 1e3 * later,
        "step_ms_per_giga_multiplication": 1e12 * later / products,
    }


def measure_program(proto: onnx.ModelProto) -> dict[str, Any]:
    """Return the seconds until a program's gradient has been computed once."""
    generator = np.random.default_rng(0)
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.input, *proto.graph.output)
    }
    output = proto.graph.output[0].name
    arrays = {n: generator.uniform(-1, 1, s).astype("float32") for n, s in shapes.items()}
    cotangent = arrays.pop(output)
    start, start_processor = time.perf_counter(), time.process_time()
    function = gg.value_and_grad(gg.from_onnx(proto), wrt=list(arrays))
    function(arrays, cotangent=cotangent)
    seconds, processor = time.perf_counter() - start, time.process_time() - start_processor
    operators = len(proto.graph.node)
    return {
        "operators": operators,
        "seconds": seconds,
        "processor_seconds": processor,
        "processor_ms_per_operator": 1e3 * processor / operators,
    }


def programs(chains: Sequence[int]) -> dict[str, Any]:
    """Return the figures of the programs by name."""
    protos = {f"chain of {length}": chain(length) for length in chains}
    for corners, name in ((1, "nearest"), (2, "bilinear")):
        protos |= {f"grid sample, {name}, {n}×{n}": grid_sample(n, corners) for n in (4, 16)}
    measure_program(chain(5))
    results = {}
    for name, proto in protos.items():
        print(name, file=sys.stderr, flush=True)
        results[name] = measure_program(proto)
    return results


def measure_import(proto: onnx.ModelProto, path: Path) -> dict[str, Any]:
    """Return the seconds that the import of a file takes, the least of five times."""
    onnx.save(proto, path)
    seconds, processor = [], []
    for _ in range(5):
        start, start_processor = time.perf_counter(), time.process_time()
        gg.from_onnx(path)
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    return {
        "parameters": sum(int(np.prod(tensor.dims)) for tensor in proto.graph.initializer),
        "operators": len(proto.graph.node),
        "seconds": min(seconds),
        "processor_seconds": min(processor),
    }


def imports() -> dict[str, Any]:
    """Return the figures of imports by name."""
    protos = {f"{m} M parameters": mlp((2000,) * (n + 1)) for m, n in LAYERS.items()}
    protos |= {f"chain of {length}": chain(length) for length in IMPORTED_CHAINS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        measure_import(chain(5), path)
        return {name: measure_import(proto, path) for name, proto in protos.items()}


def report_imports(result: dict[str, Any]) -> str:
    """Return the figures of imports as text."""
    rows = [
        [
            name,
            f"{entry['parameters'] / 1e6:.1f}",
            str(entry["operators"]),
            f"{entry['seconds']:.2f}",
            f"{entry['processor_seconds']:.2f}",
        ]
        for name, entry in result["imports"].items()
    ]
    machine = result["machine"]
    return "\n".join(
        [
            table(["file", "10⁶ parameters", "operators", "s", "processor s"], rows),
            f"{machine['processor']}; load average {machine['load_average'][0]}",
        ]
    )


def report_programs(result: dict[str, Any]) -> str:
    """Return the figures of programs as text."""
    rows = [
        [
            name,
            str(entry["operators"]),
            f"{entry['seconds']:.2f}",
            f"{entry['processor_seconds']:.2f}",
            f"{entry['processor_ms_per_operator']:.1f}",
        ]
        for name, entry in result["programs"].items()
    ]
    header = ["program", "operators", "s", "processor s", "processor ms per operator"]
    machine = result["machine"]
    load = machine["load_average"][0]
    return "\n".join(
        [
            table(header, rows),
            f"{machine['processor']}, {machine['cores']} cores; load average {load}",
        ]
    )


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    rows = [
        [
            entry["network"],
            str(entry["batch"]),
            str(entry["operators"]),
            f"{entry['first_step_seconds']:.1f}",
            f"{entry['first_step_ms_per_operator']:.0f}",
            f"{entry['step_ms']:.0f}",
            f"{entry['step_ms_per_giga_multiplication']:.1f}",
        ]
        for entry in (*result["depth"], *result["batch"])
    ]
    header = ["network", "batch", "operators", "first step s", "ms per operator"]
    machine = result["machine"]
    return "\n".join(
        [
            table([*header, "step ms", "ms per 10⁹ products"], rows),
            f"depth at {result['image']}×{result['image']}, batch at 32×32; products are those of "
            "the forward pass",
            f"{machine['processor']}, {machine['cores']} cores; medians of {result['steps']} "
            f"steps; load average {machine['load_average'][0]}",
        ]
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--depths", default=",".join(DEPTHS), help=f"of {', '.join(DEPTHS)}")
    parser.add_argument("--image", type=int, default=112, help="height and width, over depth")
    parser.add_argument("--depth-batch", type=int, default=4, help="batch size, over depth")
    parser.add_argument(
        "--batches", type=_numbers, default=BATCHES, help="of ResNet-18 for images of 32×32"
    )
    parser.add_argument("--width", type=float, default=1.0, help="multiplies all channels")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each")
    parser.add_argument("--programs", action="store_true", help="chains and grid samples instead")
    parser.add_argument("--imports", action="store_true", help="imports of files instead")
    parser.add_argument("--chains", type=_numbers, default=CHAINS, help="lengths of chains")
    return parser.parse_args()


def _numbers(text: str) -> Sequence[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    arguments = parse_arguments()
    result: dict[str, Any]
    if arguments.programs:
        result = {"benchmark": "growth of programs", "machine": facts(), "versions": versions()}
        result["programs"] = programs(arguments.chains)
        print(json.dumps(result, indent=2) if arguments.json else report_programs(result))
        return
    if arguments.imports:
        result = {"benchmark": "growth of imports", "machine": facts(), "versions": versions()}
        result["imports"] = imports()
        print(json.dumps(result, indent=2) if arguments.json else report_imports(result))
        return
    options = {"width": arguments.width, "classes": CLASSES}
    networks = [
        *(
            (
                "depth",
                name,
                DEPTHS[name](batch=arguments.depth_batch, size=arguments.image, **options),
            )
            for name in arguments.depths.split(",")
        ),
        *(
            ("batch", "resnet18", resnet18(batch=batch, size=32, stem="cifar", **options))
            for batch in arguments.batches
        ),
    ]
    result = {
        "benchmark": "growth",
        "machine": facts(),
        "versions": versions(),
        "image": arguments.image,
        "steps": arguments.steps,
        "depth": [],
        "batch": [],
    }
    # The first network of a process also pays for what is loaded lazily.
    measure(resnet18(batch=1, size=32, width=0.125, classes=CLASSES, stem="cifar"), 1)
    for kind, name, proto in networks:
        print(f"{name}, {kind}", file=sys.stderr, flush=True)
        result[kind].append({"network": name, **measure(proto, arguments.steps)})
    print(json.dumps(result, indent=2) if arguments.json else report(result))


if __name__ == "__main__":
    main()
