"""The page of TVM's defects and of its private hooks, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from . import ledger
from .ledger import Defect
from .private_hooks import HOOKS, PINS, users

_HEAD = """\
# Defects of TVM

What graphgrad works around in TVM, one entry a defect: the smallest program that shows it, what is
expected, and the modules that exist because of it. An entry can be filed as it stands. Each is a
module of `graphgrad/tvm_fixes/defects/`; `python -m graphgrad.tvm_fixes` writes this page.

`pytest tests/tvm_fixes` runs every program with TVM alone and fails where `shows()` has become
false: then TVM is mended, and the work-around, its tests and the entry can go. With a new version
of TVM, begin there.

- [The list](#the-list)
- [Private hooks, and why TVM is pinned](#private-hooks-and-why-tvm-is-pinned)
- [The entries](#the-entries)
"""

_HOOKS = """\
## Private hooks, and why TVM is pinned

What graphgrad uses of TVM beyond its public interface. A new version may change any of it without
notice; `tests/tvm_fixes/test_private_hooks.py` finds uses that are not listed.

| hook | what for | what would make it needless | used in |
|---|---|---|---|
"""

_ENTRIES = """\
## The entries

Each program prints True while the defect is there, or ends the process where its entry says so.
"""


def page() -> str:
    """The whole page."""
    entries = [(name, ledger.defect(name)) for name in ledger.names()]
    entries.sort(key=lambda entry: (entry[1].title.partition("]")[0].lower(), entry[0]))
    written = (_entry(name, defect) for name, defect in entries)
    return "\n".join([_HEAD, *_index(entries), _hooks(), _pins(), _ENTRIES, *written])


def _index(entries: list[tuple[str, Defect]]) -> Iterator[str]:
    """Yield a table of the entries of each part of TVM."""
    yield f"## The list\n\n{len(entries)} defects, by the part of TVM that has them.\n"
    for part, group in groupby(entries, key=lambda entry: _parts(entry[1])[0]):
        rows = (f"| [{name}](#{name}) | {_parts(d)[1]} | {d.kind} |\n" for name, d in group)
        yield f"### {part}\n\n| entry | defect | kind |\n|---|---|---|\n{''.join(rows)}"


def _parts(defect: Defect) -> tuple[str, str]:
    part, _, rest = defect.title.removeprefix("[").partition("] ")
    return part, rest


def _entry(name: str, defect: Defect) -> str:
    kind = defect.kind[0].upper() + defect.kind[1:]
    reported = f"reported: {defect.report}" if defect.report else "no report is known"
    end = " The program ends the process, always or at times." if defect.crashes else ""
    return f"""\
### {name}

**{defect.title}**

*{kind}; seen in TVM {", ".join(defect.versions)}; {reported}.*{end}

{defect.happens}

Expected: {defect.expected}

```python
{ledger.program(name)}

print(shows())
```

Worked around in {", ".join(f"`{module}`" for module in defect.worked_around_in)}.
"""


def _hooks() -> str:
    rows = (
        f"| {hook.name} | {hook.purpose} | {hook.instead} | "
        f"{', '.join(f'`{user}`' for user in users(hook))} |\n"
        for hook in HOOKS
    )
    return _HOOKS + "".join(rows)


def _pins() -> str:
    return "The pins of `pyproject.toml`:\n\n" + "".join(f"- `{pin}`: {why}\n" for pin, why in PINS)
