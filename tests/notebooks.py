"""Notebooks run as scripts; ``python -m tests.notebooks FILE.ipynb`` writes their outputs anew.

All cells share one namespace, as in Jupyter, which is not needed. What a cell prints is its output.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


def read(path: Path) -> dict:
    """Return the content of a notebook."""
    return json.loads(path.read_text("utf-8"))


def code_cells(notebook: dict) -> list[dict]:
    """Return the cells that hold code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict) -> str:
    """Return the output that a cell has kept."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def run(notebook: dict) -> Iterator[str]:
    """Execute all code in a folder of its own; yield what each cell prints."""
    namespace = {"__name__": "__main__"}
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, cell in enumerate(code_cells(notebook), 1):
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
                yield output.getvalue()
        finally:
            os.chdir(before)


def main() -> None:
    """Execute the notebook that is named, and write its outputs into it."""
    path = Path(sys.argv[1])
    notebook = read(path)
    for number, (cell, text) in enumerate(zip(code_cells(notebook), run(notebook), strict=True), 1):
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(True)}
        cell["outputs"] = [stream] if text else []
        cell["execution_count"] = number
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
