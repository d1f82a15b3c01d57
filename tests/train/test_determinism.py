"""The promise of docs/training.md: results depend neither on threads, nor on process or cache."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib
import sys

import numpy as np

import graphgrad as gg
from graphgrad.models import resnet_digits, transformer_encoder

rng = np.random.default_rng(0)
if sys.argv[1] == "images":
    model, inputs = resnet_digits(), rng.random((24, 1, 8, 8), dtype="float32")
else:
    model = transformer_encoder(layers=1, width=16, heads=2, feed_forward=32, sequence=24)
    inputs = rng.random((6, 24, 16), dtype="float32")
step = gg.train_step(gg.from_onnx(model), "cross_entropy", gg.optim.Adam(1e-3))
losses = [float(step(inputs, np.arange(len(inputs)) % 10)) for _ in range(3)]
digest = hashlib.sha256(repr(losses).encode())
for name, parameter in sorted(step.params.items()):
    digest.update(name.encode() + np.asarray(parameter).tobytes())
print(digest.hexdigest())
"""


def digest(kind: str, **variables: str) -> str:
    """The digest of losses and parameters after three steps, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind],
        env={**os.environ, **variables},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


@pytest.mark.parametrize("kind", ["sequences", pytest.param("images", marks=pytest.mark.slow)])
def test_neither_threads_nor_hashes_nor_the_cache_decide(kind, tmp_path):
    cache = {"GRAPHGRAD_CACHE": "1", "GRAPHGRAD_CACHE_DIR": str(tmp_path)}
    written = digest(kind, TVM_NUM_THREADS="1", PYTHONHASHSEED="1", **cache)
    assert len(written.strip()) == 64
    assert any(tmp_path.rglob("*"))
    assert digest(kind, TVM_NUM_THREADS="1", PYTHONHASHSEED="2", **cache) == written
    assert digest(kind, TVM_NUM_THREADS="2", PYTHONHASHSEED="3", GRAPHGRAD_CACHE="0") == written
