"""Random loops: do results and gradients follow PyTorch, and files also onnxruntime?

    python bench/campaigns/recurrences.py [--cases N] [--seed N] [--json] [...]

A case is a loop of `gg.scan` (`tests/ops/random_loops.py`), an ONNX Scan or Loop with such a body,
or an RNN, GRU or LSTM (`tests/frontend/random_recurrent.py`), with extents both tiny and of real
size, compiled as for a user. Every element of the results and of the gradients by all floats is
compared with PyTorch's in float64; where rounding decides, as at a kink, with how far that moves.
"""

from __future__ import annotations

import sys

from campaign import Campaign, Case, Disagreement, main

from tests.fallback.choices import Choices
from tests.frontend.random_recurrent import random_layer, random_scan
from tests.ops.loop_judge import DisagreementError, judge
from tests.ops.random_loops import random_loop

KINDS = ("loop", "layer", "scan")


def judge_loop(case: Case) -> None:
    """Make a loop, and compare its results and gradients."""
    rng = case.rng()
    kind = KINDS[case.index % len(KINDS)]
    choices, alone = Choices(int(rng.integers(2**31))), bool(rng.integers(2))
    try:
        if kind == "loop":
            loop = random_loop(choices)
            (case.folder / "loop.txt").write_text(f"{loop}\n")
            judge(loop.module(), loop.arrays, loop.in_torch, alone)
        else:
            model = random_layer(choices) if kind == "layer" else random_scan(choices)
            (case.folder / "loop.txt").write_text(f"{model.text}\n")
            (case.folder / "model.onnx").write_bytes(model.model.SerializeToString())
            model.judge(alone)
    except DisagreementError as error:
        (case.folder / "difference.txt").write_text(f"{error}\n")
        raise Disagreement(f"{kind}: {str(error).split(' at ')[0]}") from error


if __name__ == "__main__":
    sys.exit(main(Campaign("recurrences", judge_loop)))
