"""The examples of the pages about ONNX files run as they stand."""

import re
from pathlib import Path

import pytest

from tests.peers import peer

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize(
    "page", ["gradients-as-onnx.md", "steps-as-onnx.md", "from-onnxruntime-training.md"]
)
def test_example_runs(page, tmp_path, monkeypatch):
    peer("onnxruntime")
    text = (DOCS / page).read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, page, "exec"), {})
