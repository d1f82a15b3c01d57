"""Write what the page beside this file trains with: a step, its first values, and the digits.

    python examples/browser/write.py
    cd examples/browser
    npm install
    python -m http.server

Then open http://localhost:8000. ``--network transformer`` trains one, with dropout.
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path

import numpy as np

import graphgrad as gg
from graphgrad import models
from graphgrad.train.data import digits

BATCH = 32
IMAGES = {"resnet": [1, 8, 8], "transformer": [8, 8]}
"""The shape in which each network takes an image; to a transformer its rows are words."""

OPTIMIZERS = {"resnet": gg.optim.SGD(0.01, momentum=0.9), "transformer": gg.optim.AdamW(3e-3)}


def network(name: str) -> gg.Model:
    """A network for the digits."""
    if name == "resnet":
        return gg.from_onnx(models.resnet_digits(activation="silu"))
    sizes = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 32, "sequence": 8}
    return gg.from_onnx(models.transformer_encoder(**sizes, norm_first=True, dropout=0.1))


def shuffled() -> tuple[np.ndarray, np.ndarray]:
    """Images, as integers from 0 to 16, and labels, in the order in which the page takes them."""
    examples = digits().train
    order = np.random.default_rng(0).permutation(len(examples))
    return np.rint(16 * examples.inputs["x"][order]).astype("uint8"), examples.targets[order]


def batch(name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of a step, as the page takes them."""
    images, labels = shuffled()
    chosen = np.arange(number * BATCH, (number + 1) * BATCH) % len(labels)
    return (images[chosen] / np.float32(16)).reshape(-1, *IMAGES[name]), labels[chosen]


def write(name: str, folder: Path) -> None:
    """Write all files for a network."""
    step, start = folder / "step.onnx", folder / "start.onnx"
    gg.step_to_onnx(network(name), step, "cross_entropy", OPTIMIZERS[name], start=start)
    images, labels = shuffled()
    facts = {
        "batch": BATCH,
        "shape": IMAGES[name],
        "images": base64.b64encode(images.tobytes()).decode(),
        "labels": labels.tolist(),
    }
    (folder / "digits.json").write_text(json.dumps(facts))


def main() -> None:
    """Write the files beside this one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", choices=IMAGES, default="resnet")
    write(parser.parse_args().network, Path(__file__).parent)


if __name__ == "__main__":
    main()
