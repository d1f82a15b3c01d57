"""The example of docs/gradients-as-onnx.md runs as it stands."""

import re
from pathlib import Path

from tests.peers import peer

GUIDE = Path(__file__).parent.parent / "docs" / "gradients-as-onnx.md"


def test_example_runs(tmp_path, monkeypatch):
    peer("onnxruntime")
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(GUIDE), "exec"), {})
