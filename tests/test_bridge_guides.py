"""The examples of the pages on other frameworks run as they stand."""

import re
from pathlib import Path

import pytest

from tests.peers import peer

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = [
    pytest.param(framework, code, id=f"{page}-{number}")
    for framework, page in [("torch", "pytorch.md"), ("jax_tvm_ffi", "jax.md")]
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize("framework, code", EXAMPLES)
def test_example_runs(framework, code):
    peer(framework)
    exec(compile(code, framework, "exec"), {})
