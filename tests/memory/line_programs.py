"""Random programs for plans of memory, and what their steps compute, in symbols."""

import numpy as np

from graphgrad.memory.rematerialize import Step


def training(seed, layers=12):
    """A chain of layers with skips, and a backward pass that reads what they have computed."""
    rng = np.random.default_rng(seed)
    sizes, steps = [0, 0], []  # a parameter, and what impure steps leave behind

    def tensor():
        sizes.append(int(rng.integers(1, 40)) * 256)
        return len(sizes) - 1

    def step(reads, writes, is_pure=True):
        seconds = float(rng.uniform(0.1, 3))
        steps.append(Step(tuple(sorted(set(reads))), tuple(writes), seconds, is_pure))

    values = [tensor()]
    step([0], values)
    for _ in range(layers):
        skip = [values[int(rng.integers(len(values)))]] if rng.random() < 0.3 else []
        written = [tensor() for _ in range(int(rng.integers(1, 3)))]
        step([0, values[-1], *skip], written, rng.random() < 0.9)
        if rng.random() < 0.1:
            step([values[-1], 1], [1], False)
        values += written
    cotangent, gradients = tensor(), []
    step([values[-1]], [cotangent])
    for value, before in zip(reversed(values[1:]), reversed(values[:-1]), strict=True):
        new = tensor()
        step([0, cotangent, value], [new])
        gradients.append(tensor())
        step([cotangent, before], [gradients[-1]])
        cotangent = new
    step([0, *gradients], [0], False)  # the update
    return sizes, steps


def computed(schedule):
    """What the steps of a schedule read, in symbols, by step; their memory is one block.

    A tensor that is overwritten, in part or whole, holds nothing any more.
    """
    offsets, size = schedule.packed
    outside, block, results = {}, {}, {}

    def read(tensor):
        number = schedule.tensor_of[tensor]
        if tensor not in offsets:
            return outside.get(number, ("outside", number))
        assert tensor in block, f"tensor {number} is not there any more"
        assert block[tensor][1] == number
        return block[tensor]

    for position, step in zip(schedule.step_of, schedule.steps, strict=True):
        inputs = tuple(sorted(map(read, step.reads), key=str))
        assert results.setdefault(position, inputs) == inputs, "a step is repeated on other values"
        for tensor in step.writes:
            value = position, schedule.tensor_of[tensor], hash(inputs)
            if tensor not in offsets:
                outside[value[1]] = value
                continue
            begin, end = offsets[tensor], offsets[tensor] + schedule.sizes[tensor]
            assert end <= size
            for other in list(block):
                if offsets[other] < end and offsets[other] + schedule.sizes[other] > begin:
                    del block[other]
            block[tensor] = value
    return results
