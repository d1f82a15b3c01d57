"""The process of one contender: makes steps of a timed model when asked to.

    python racer.py resnet50-64 "torch eager fp32"

Speaks as ``worker.py`` does. The steps of a turn are timed in blocks, each begun and ended by
waiting for the device, and nothing is read back within a block. After a turn the memory that is
kept for the next step goes back to the device: the next contender needs it. So the first step of a
turn takes memory again, and the second is recorded as a graph: these are not timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import cudart
import numpy as np
import paths  # noqa: F401 (where `channel` is found)
from channel import private_output, send, told
from kit import Kit
from timed import MOMENTUM, RATE, draw_weights, step_name

BLOCKS = 5
SYSTEMS_IN_TURN = ("graphgrad", "torch eager", "torch compile", "graphgrad own")
CONTENDERS = [
    "graphgrad fp32",
    "torch eager fp32",
    *(f"{system} {precision}" for precision in ("bf16", "tf32") for system in SYSTEMS_IN_TURN),
    "graphgrad own fp32",
    "torch compile fp32",
]
"""The most telling first: two that agree on the initial loss, then what should be fast."""


@dataclass(frozen=True)
class Racer:
    """A contender that is ready.

    Attributes
    ----------
    includes : str
        What a step does, in words.
    step : function
        Starts one step and returns its loss without waiting for it.
    read : function
        Returns the number that such a loss is.
    wait : function
        Waits until the device has done everything that was started.
    release : function
        Gives memory back that the next step will ask for again.
    calls : function
        Makes so many steps; returns the calls of each step, by name and seconds.
    """

    includes: str
    step: Callable[[], Any]
    read: Callable[[Any], float]
    wait: Callable[[], None]
    release: Callable[[], None]
    calls: Callable[[int], list[tuple[str, float]]]


def main() -> None:
    name, contender = sys.argv[1:]
    channel = private_output()
    try:
        serve(Kit(), name, contender, channel)
    except Exception as error:
        send(channel, {"error": told(error)})


def serve(kit: Kit, name: str, contender: str, channel: TextIO) -> None:
    """Make the initial step, then those asked for, until the input ends."""
    meter = cudart.MemoryMeter()
    about = kit.about["timed"][name]
    weights = draw_weights(about["params"], about["state"])
    system, *_ = contender.split()
    start = time.perf_counter()
    racer = SYSTEMS[system](kit, name, weights, contender)
    loss = racer.read(racer.step())
    facts = {
        "includes": racer.includes,
        "initial_loss": loss,
        "first_step_seconds": time.perf_counter() - start,
        "memory": meter.now(),
    }
    racer.release()
    meter.end()
    send(channel, facts)
    for line in sys.stdin:
        request = json.loads(line)
        if "calls" in request:
            send(channel, {"calls": racer.calls(request["calls"])})
            continue
        meter.begin()
        timed_blocks(racer, request["untimed"], 1)
        seconds = timed_blocks(racer, request["timed"], BLOCKS)
        answer = {"seconds": seconds, "memory": meter.now()}
        racer.release()
        meter.end()
        send(channel, answer)


def timed_blocks(racer: Racer, steps: int, blocks: int) -> list[float]:
    """Make steps in up to so many blocks, and return the mean seconds of a step in each."""
    seconds = []
    for part in np.array_split(np.arange(steps), blocks):
        if not len(part):
            continue
        racer.wait()
        start = time.perf_counter()
        for _ in part:
            racer.step()
        racer.wait()
        seconds.append((time.perf_counter() - start) / len(part))
    return seconds


def graphgrad(kit: Kit, name: str, weights: dict[str, np.ndarray], contender: str) -> Racer:
    """Return the exported step."""
    import tvm  # noqa: PLC0415 (torch's process must not load it)
    from calls import call_times  # noqa: PLC0415 (as above)

    step = kit.load_step(step_name(name, contender), weights)
    step.learning_rate = RATE
    device = tvm.device(kit.device)
    inputs, labels = kit.timed(name).data()
    given = {key: tvm.runtime.tensor(array, device) for key, array in inputs.items()}
    return Racer(
        "exported train_step: forward, loss, backward, statistics, guarded SGD momentum",
        lambda: step.enqueue(given, labels),
        lambda loss: float(loss.numpy()),
        device.sync,
        step.release_memory,
        lambda steps: call_times(step, lambda: step(given, labels), steps),
    )


def torch(kit: Kit, name: str, weights: dict[str, np.ndarray], contender: str) -> Racer:
    """Return torch's step, eager or compiled, images in channels_last."""
    _, mode, precision = contender.split()
    import torch  # noqa: PLC0415 (graphgrad's process must not load it)
    import twins  # noqa: PLC0415

    is_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.allow_tf32 = is_tf32
    torch.backends.cudnn.benchmark = True
    timed = kit.timed(name)
    layout = torch.channels_last if timed.is_image else torch.contiguous_format
    net = twins.timed(timed.model, weights, **timed.sizes).to(kit.device, memory_format=layout)
    inputs, labels = timed.data()
    given = [torch.from_numpy(array).to(kit.device) for array in inputs.values()]
    given = [tensor.contiguous(memory_format=layout) for tensor in given]
    targets = torch.from_numpy(labels).to(kit.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    forward = torch.compile(net) if mode == "compile" else net

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kit.device, torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(forward(*given), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    on_gpu = kit.device == "cuda"
    return Racer(
        f"{mode}, {'channels_last' if timed.is_image else 'contiguous'}, {precision}: forward, "
        "loss, backward, statistics, fused SGD momentum",
        step,
        float,
        torch.cuda.synchronize if on_gpu else lambda: None,
        torch.cuda.empty_cache if on_gpu else lambda: None,
        lambda steps: [],
    )


SYSTEMS = {"graphgrad": graphgrad, "torch": torch}


if __name__ == "__main__":
    main()
