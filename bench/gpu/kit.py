"""A kit: the folder that `pack.py` writes and `run.py` runs from; where things lie in it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cudart
import paths
from timed import Timed

FORMAT = 2
MANIFEST = "kit.json"
CALLS, PROBLEMS = "calls.json", "problems.json"
"""What the calls of each timed step should take, and what cuDNN computes in these steps."""
PYTHON, STEPS, REFERENCES = "python", "steps", "references"

NO_TORCH = "torch is not installed"


class KitError(Exception):
    """There is no kit, or this machine cannot run it; the message says why."""


class Kit:
    """A packed folder.

    Parameters
    ----------
    root : path
        By default the folder in which this program lies.

    Attributes
    ----------
    about : dict
        ``format``, ``target``, ``python``, ``versions``, ``checks`` (names such as
        ``mlp.float32``), ``timed`` (by name: ``spec``, ``params``, ``state``), ``failed`` (by name:
        why graphgrad could not compile it), ``device`` (as plans and predictions assume it) and
        ``packed`` (the date).

    Raises
    ------
    KitError
        It is no kit.
    """

    def __init__(self, root: Path = paths.ROOT):
        self.root = root
        try:
            self.about: dict[str, Any] = json.loads((root / MANIFEST).read_text())
        except FileNotFoundError:
            raise KitError(f"{root} is no kit: it has no {MANIFEST}") from None
        if self.about["format"] != FORMAT:
            raise KitError(f"{root} has format {self.about['format']}, expected {FORMAT}")

    def check_python(self) -> None:
        """Raise KitError unless this Python is the one that the kit was packed for."""
        running = ".".join(platform.python_version_tuple()[:2])
        if running != self.about["python"]:
            raise KitError(
                f"the kit was packed for Python {self.about['python']}, this is {running}; pack it "
                f"again with --python {running}, or run it with that Python"
            )

    @property
    def device(self) -> str:
        """The device in torch's words."""
        return "cuda" if self.about["target"]["kind"] == "cuda" else "cpu"

    def steps(self, name: str) -> Path:
        """Return the folder of an exported step."""
        return self.root / STEPS / name

    def reference(self, family: str) -> Path:
        """Return the file of a family's reference."""
        return self.root / REFERENCES / f"{family}.safetensors"

    def timed(self, name: str) -> Timed:
        """Return what is timed under a name."""
        return Timed(**self.about["timed"][name]["spec"])

    def calls(self, name: str) -> list[dict[str, Any]] | None:
        """Return what each call of a step should take; None where that is not known."""
        return json.loads((self.root / CALLS).read_text(encoding="utf-8")).get(name)

    def problems(self) -> list[dict[str, Any]]:
        """Return what cuDNN computes in the timed steps, what takes most first."""
        return json.loads((self.root / PROBLEMS).read_text(encoding="utf-8"))

    def load_step(self, name: str, weights: Mapping[str, Any] | None = None) -> Any:
        """Return an exported step, loaded by the loader that lies beside it."""
        return self.loader(name).ExportedStep(self.steps(name), weights=weights)

    def loader(self, name: str) -> Any:
        """Return the package that lies beside an exported step, imported."""
        cudart.library()  # TVM finds it only once it is loaded
        sys.path.insert(0, str(self.steps(name)))
        return importlib.import_module("exported_step")


def has_torch() -> bool:
    """Whether this Python has torch, which is not imported."""
    return importlib.util.find_spec("torch") is not None


def environment() -> dict[str, str]:
    """Return the variables with which Python finds the packed TVM, and TVM only its runtime."""
    search = [str(paths.ROOT / PYTHON), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(search),
        "TVM_USE_RUNTIME_LIB": "1",
        # Else importing TVM imports torch too, and may even compile something for it.
        "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
    }
