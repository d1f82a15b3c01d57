"""The identity of the compiler itself, for the cache's key: graphgrad's sources and TVM's build."""

from __future__ import annotations

import hashlib
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

_PACKAGE = Path(__file__).parents[3]

_TVM_PACKAGE = Path(tvm.__file__).parent

_TVM_LIBRARY = "tvm_compiler.dll" if sys.platform == "win32" else "libtvm_compiler.*"

_LOAD_TIME = time.time()

_LOADING_SECONDS = 30
"""The longest time, before this module was loaded, at which graphgrad's first one was read."""


def sources_changed() -> bool:
    """Whether sources of graphgrad may have been written after this process read them."""
    return _changed_since_loaded(_sources(_PACKAGE))


@cache
def sources_digest() -> str | None:
    """A digest of the sources of graphgrad; None if there are none, or one cannot be read.

    What was measured of a device decides as they do.
    """
    digest = hashlib.sha256()
    modules = _sources(_PACKAGE)
    paths = [*modules, *sorted(_PACKAGE.rglob("timed_plans/*.json"))]
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest.update(f"{path.relative_to(_PACKAGE)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest() if modules else None


@cache
def tvm_identity() -> list[Any] | None:
    """The identity of a build of TVM; None if that cannot be determined.

    Generated code depends on its Python sources too. They are many, so names, sizes and times stand
    for their content, and they are looked at once in a process.
    """
    libraries = sorted(_TVM_PACKAGE.rglob(_TVM_LIBRARY))
    sources = _sources(_TVM_PACKAGE)
    if not libraries or not sources or _changed_since_loaded(sources):
        return None
    digest = hashlib.sha256()
    try:
        for path in [*libraries, *sources]:
            file_stat = path.stat()
            name = path.relative_to(_TVM_PACKAGE)
            digest.update(f"{name} {file_stat.st_size} {file_stat.st_mtime_ns}\n".encode())
    except OSError:
        return None
    return [tvm.__version__, tvm_ffi.__version__, digest.hexdigest()]


@cache
def _sources(package: Path) -> list[Path]:
    """The modules of a package, without what editors leave beside them."""
    return sorted(
        path
        for path in package.rglob("*.py")
        if not any(part.startswith(".") for part in path.relative_to(package).parts)
    )


def _changed_since_loaded(paths: list[Path]) -> bool:
    """Whether files were changed since this process may have read them, or are gone.

    The time of the last change of status tells files that were put in place with old times.
    """
    try:
        stats = [path.stat() for path in paths]
    except OSError:
        return True
    # A file that changed while modules were being read may not be what was read.
    latest = max((max(file_stat.st_mtime, file_stat.st_ctime) for file_stat in stats), default=0.0)
    return latest > _LOAD_TIME - _LOADING_SECONDS
