"""The page of examples/browser trains: in a browser it follows `train_step`.

It needs a browser, and onnxruntime-web: ``npm install`` in examples/browser.
"""

import functools
import http.server
import importlib.util
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.train.data import digits
from tests.browser import Browser

FOLDER = Path(__file__).parent.parent / "examples" / "browser"
PACKAGES = FOLDER / "node_modules"
STEPS = 100


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("write", FOLDER / "write.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and tells nobody."""

    def log_message(self, *_):
        """Write nothing."""


@pytest.fixture
def site(tmp_path):
    """A folder with the page, and the address at which it is served."""
    if not (PACKAGES / "onnxruntime-web").is_dir():
        pytest.skip("no onnxruntime-web: run npm install in examples/browser")
    folder = tmp_path / "site"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("node_modules", "*.onnx"))
    (folder / "node_modules").symlink_to(PACKAGES)
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "transformer"])
def test_the_page_follows_our_steps(name, example, site, tmp_path):
    folder, address = site
    example.write(name, folder)
    browser = Browser(tmp_path / "home", offline=False)
    try:
        browser.open(f"{address}/?steps={STEPS}")
        losses = browser.run("trained")
        curve = "document.getElementById('curve').getContext('2d')"
        pixels = browser.run(f"Array.from({curve}.getImageData(0, 0, 1440, 640).data)")
        line = browser.run("document.getElementById('line').textContent")
        assert browser.complaints == []
        assert all(request.startswith((address, "data:", "blob:")) for request in browser.requests)
    finally:
        browser.close()
    step = gg.train_step(example.network(name), "cross_entropy", example.OPTIMIZERS[name])
    ours = [float(step(*example.batch(name, number))) for number in range(STEPS)]
    assert losses == pytest.approx(ours, abs=1e-4)
    assert ours[-1] < ours[0]
    assert line.startswith(f"Step {STEPS} of {STEPS}")
    green = sum(1 for k in range(0, len(pixels), 4) if pixels[k : k + 3] == [0, 170, 102])
    assert green > STEPS


@pytest.mark.slow
def test_the_batches_of_the_page_are_the_digits(example, tmp_path):
    example.write("transformer", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"step.onnx", "start.onnx", "digits.json"}
    examples = digits().train
    batches = [example.batch("transformer", number) for number in range(45)]  # the last wraps
    images, labels = (
        np.concatenate(parts)[: len(examples)] for parts in zip(*batches, strict=True)
    )
    (x,) = examples.inputs.values()
    assert sorted(zip(labels.tolist(), images.reshape(-1, 64).tolist(), strict=True)) == sorted(
        zip(examples.targets.tolist(), x.reshape(-1, 64).tolist(), strict=True)
    )
