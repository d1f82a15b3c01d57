"""Exports to test with, and a process that has nothing but one and TVM's runtime."""

import atexit
import json
import os
from contextlib import ExitStack
from functools import cache

import numpy as np

from graphgrad.runtime.folder import digest_of
from tests.forks import Forks, forks

RUNNER = """
import sys

folder, data, results = sys.argv[1:]
sys.path[0] = folder
sys.modules["graphgrad"] = None  # from here on its import fails

import numpy as np
import tvm
from exported_step import ExportedStep

assert not hasattr(tvm, "relax"), "the compiler is loaded"
arrays = dict(np.load(data))
step = ExportedStep(folder)
count = sum(name.startswith("inputs") for name in arrays)
losses = [float(step(arrays[f"inputs{i}"], arrays[f"targets{i}"])) for i in range(count)]
outputs = step.evaluate(arrays["inputs0"])
step.save(results + ".state")
np.savez(results, losses=losses, **{f"output {name}": array for name, array in outputs.items()})
"""


def run_alone(folder, batches, results, **variables):
    """Make the steps of an export in a process with TVM's runtime and the folder alone.

    Further variables go into its environment.

    Returns
    -------
    losses, outputs
        Of the steps, and by name of the inference on the first batch after them. The state is
        left beside `results`, in a file that ends in ``.state``.
    """
    data = results.with_suffix(".batches.npz")
    named = {}
    for index, (inputs, targets) in enumerate(batches):
        named |= {f"inputs{index}": inputs, f"targets{index}": targets}
    np.savez(data, **named)
    done = _runtime().run(
        RUNNER, folder, data, results, cwd=results.parent, environment=_environment() | variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(np.load(f"{results}.npz"))
    losses = found.pop("losses").tolist()
    return losses, {name.removeprefix("output "): array for name, array in found.items()}


def _environment() -> dict[str, str]:
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    environment.pop("PYTHONPATH", None)
    return environment


@cache
def _runtime() -> Forks:
    """A process with TVM's runtime, whose forks run exports."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(forks("numpy", "tvm", environment=_environment()))


def reseal(folder, **changes):
    """Change a manifest as its writer would have written it."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "sha256": digest_of(manifest)}), encoding="utf-8"
    )
