"""A model's way through `train_step`: the modules that it is handed to, up to lowering.

    python bench/walk.py [--json] [--models lenet] [--way] [--root TREE]

A call counts when a function of graphgrad is handed the model in one of its forms: a Model, a
Recipe, an IRModule, a Relax function, a Program or a Forward. What a method is called on does not
count: to ask a form for something of its own is not to hand it on; nor do the constructors that
Python writes for dataclasses, and searches for nodes. The modules of these functions, in the order
in which they are entered, are the *way*; calls within one module are one stay there. The way begins
with ``gg.train_step`` and ends where the module of the first step is lowered.

- *visits*: the distinct modules of the way.
- *climbs*: stays that follow one in a lower layer of the contract in ``pyproject.toml``.
- *returns*: stays in a module that the way had left.
- *specialized*, *inlined*: calls of `frontend.mode.specialize` and `ir.inline.inline_calls`.

``--root`` measures another tree, for example of an older commit.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import tomllib
from field import some_of
from table import table

PACKAGE = "graphgrad"
HANDED = frozenset(
    {"Model", "Objective", "Recipe", "IRModule", "Function", "Program", "InlinedModel", "Forward"}
)
SPECIALIZE = f"{PACKAGE}.frontend.mode", "specialize"
INLINE = f"{PACKAGE}.ir.inline", "inline_calls"


SEARCHES = frozenset({f"{PACKAGE}.ir.visits", f"{PACKAGE}.tvm_fixes.hooks"})
"""Modules that look for nodes in a form, which is not to hand it on."""

MODELS = {"mlp": (64, 64), "lenet": (64, 1, 28, 28), "resnet_digits": (64, 1, 8, 8)}
"""The shape of a batch, by the function of `graphgrad.models` that builds the network."""


class AtLowering(Exception):
    """The way is over."""


@dataclass
class Way:
    """The modules that a model is handed to, in order.

    Attributes
    ----------
    stays : list of str
        Without the name of the package; no module follows itself.
    specialized, inlined : int
    """

    stays: list[str] = field(default_factory=list)
    specialized: int = 0
    inlined: int = 0

    def enter(self, module: str, function: str) -> None:
        """Add a call to the way."""
        self.specialized += (module, function) == SPECIALIZE
        self.inlined += (module, function) == INLINE
        stay = module.removeprefix(f"{PACKAGE}.")
        if self.stays[-1:] != [stay]:
            self.stays.append(stay)

    def facts(self, layers: dict[str, int]) -> dict[str, int]:
        """Return the figures of the way."""
        heights = [layers[stay.split(".")[0]] for stay in self.stays]
        distinct = len(set(self.stays))
        return {
            "visits": distinct,
            "climbs": sum(after > before for before, after in pairwise(heights)),
            "returns": len(self.stays) - distinct,
            "specialized": self.specialized,
            "inlined": self.inlined,
        }


class Follower:
    """A profile function of Python that writes a `Way`."""

    def __init__(self) -> None:
        self.way = Way()
        self._generators: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Look at a call: `sys.setprofile` calls this."""
        module = str(frame.f_globals.get("__name__", ""))
        is_ours = event == "call" and module.startswith(f"{PACKAGE}.")
        if not is_ours or module in SEARCHES or frame.f_code.co_filename == "<string>":
            return
        if frame in self._generators or not any(map(_is_model, _arguments(frame))):
            return
        if frame.f_code.co_flags & inspect.CO_GENERATOR:  # a call each time that it goes on
            self._generators.add(frame)
        self.way.enter(module, frame.f_code.co_name)


def _arguments(frame: FrameType) -> list[Any]:
    """Return the arguments of a call, without those of ``*`` and ``**``, and without self."""
    code: CodeType = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = names[1:] if names[:1] == ("self",) else names
    return [frame.f_locals[name] for name in names if name in frame.f_locals]


def _is_model(value: Any) -> bool:
    return type(value).__name__ in HANDED


def follow(build: str, shape: tuple[int, ...]) -> Way:
    """Return the way of a model of ten classes, to its first step on a batch of a shape.

    Graphgrad is imported here, once its tree is known.
    """
    gg, models = import_module(PACKAGE), import_module(f"{PACKAGE}.models")
    on_device = import_module(f"{PACKAGE}.train.on_device")

    def lowered(*_: Any) -> None:
        raise AtLowering

    model = gg.from_onnx(getattr(models, build)())
    inputs = np.zeros(shape, "float32")
    compiled_once, on_device.compiled_once = on_device.compiled_once, lowered
    follower = Follower()
    sys.setprofile(follower)
    try:
        gg.train_step(model)(inputs, np.zeros(shape[0], "int64"))
    except AtLowering:
        pass
    finally:
        sys.setprofile(None)
        on_device.compiled_once = compiled_once
    return follower.way


def layers(root: Path) -> dict[str, int]:
    """Return the height of each module at the top of the package, from its layers contract."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (rows,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return {
        name.strip(): height for height, row in enumerate(reversed(rows)) for name in row.split("|")
    }


def main() -> None:
    arguments = _parser().parse_args()
    sys.path.insert(0, str(arguments.root))
    heights = layers(arguments.root)
    ways = {name: follow(name, MODELS[name]) for name in arguments.models}
    figures = {name: way.facts(heights) for name, way in ways.items()}
    if arguments.json:
        print(json.dumps({n: {**figures[n], "way": ways[n].stays} for n in ways}, indent=1))
        return
    for name, way in ways.items() if arguments.way else ():
        print(f"{name}: {' > '.join(way.stays)}\n")
    header = ["model", *next(iter(figures.values()))]
    print(table(header, [[name, *map(str, facts.values())] for name, facts in figures.items()]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object, with the ways")
    add("--models", type=some_of(MODELS), default=list(MODELS), help=", ".join(MODELS))
    add("--way", action="store_true", help="print the modules in order")
    add("--root", type=Path, default=Path(__file__).parents[1], help="the tree that is measured")
    return parser


if __name__ == "__main__":
    main()
