"""Sources of graphgrad and of TVM: changed, missing, and what editors leave beside them."""

import os
import time

import pytest

from graphgrad.lower.codegen.cache import sources

LONG_AGO = 1_000_000_000


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put two modules where those of graphgrad are looked for, as if loaded an hour from now."""
    folder = tmp_path / "package"
    (folder / "within").mkdir(parents=True)
    for name in ("first.py", "within/second.py"):
        (folder / name).write_text(f"# {name}\n")
    monkeypatch.setattr(sources, "_PACKAGE", folder)
    monkeypatch.setattr(sources, "_LOAD_TIME", time.time() + 3600)
    forget()
    yield folder
    forget()


@pytest.fixture
def tvm_package(package, monkeypatch):
    """Put a module and a library where those of TVM are looked for."""
    folder = package.with_name("compiler")
    (folder / "topi").mkdir(parents=True)
    (folder / "lib").mkdir()
    (folder / "topi" / "sum.py").write_text("one\n")
    name = sources._TVM_LIBRARY.replace("*", "so")
    (folder / "lib" / name).write_bytes(b"library")
    for path in folder.rglob("*.*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    monkeypatch.setattr(sources, "_TVM_PACKAGE", folder)
    return folder


def forget():
    for known in (sources._sources, sources.sources_digest, sources.tvm_identity):
        known.cache_clear()


def identity():
    forget()
    return sources.tvm_identity()


def digest():
    forget()
    return sources.sources_digest()


def test_the_digest_is_of_names_and_contents(package):
    first = digest()
    assert first == digest()
    (package / "first.py").write_text("# other\n")
    second = digest()
    (package / "first.py").rename(package / "third.py")
    assert len({first, second, digest()}) == 3


def test_sources_as_they_were_loaded(package):
    assert not sources.sources_changed()


def test_sources_that_were_written_since(package):
    later = time.time() + 7200
    os.utime(package / "first.py", (later, later))
    assert sources.sources_changed()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no time of the last change of a file")
def test_sources_put_in_place_with_old_times(package, monkeypatch):
    monkeypatch.setattr(sources, "_LOAD_TIME", time.time())
    for path in package.rglob("*.py"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert sources.sources_changed()


def test_sources_that_are_gone(package):
    assert digest() is not None
    (package / "first.py").unlink()
    assert sources.sources_changed()
    sources.sources_digest.cache_clear()
    assert sources.sources_digest() is None


def test_no_sources(package):
    for path in package.rglob("*.py"):
        path.unlink()
    assert digest() is None


def test_files_of_editors_are_no_sources(package):
    before = digest()
    os.symlink("nobody@nowhere.1", package / ".#first.py")
    (package / ".checkpoints").mkdir()
    (package / ".checkpoints" / "first.py").write_text("")
    assert digest() == before
    assert not sources.sources_changed()


def test_the_build_in_use_is_told(monkeypatch):
    monkeypatch.setattr(sources, "_LOAD_TIME", time.time() + 3600)  # it may be new
    assert digest() is not None
    assert identity() is not None
    forget()


def test_sources_of_tvm_count(tvm_package):
    first = identity()
    assert first is not None and first == identity()
    path = tvm_package / "topi" / "sum.py"
    path.write_text("two\n")
    os.utime(path, (LONG_AGO + 1, LONG_AGO + 1))
    second = identity()
    path.write_text("another size\n")
    os.utime(path, (LONG_AGO + 1, LONG_AGO + 1))
    third = identity()
    path.rename(path.with_name("product.py"))
    assert len({str(each) for each in (first, second, third, identity())}) == 4


def test_the_library_of_tvm_counts(tvm_package):
    first = identity()
    (library,) = (tvm_package / "lib").iterdir()
    os.utime(library, (LONG_AGO + 1, LONG_AGO + 1))
    assert identity() not in (first, None)
    library.unlink()
    assert identity() is None


def test_sources_of_tvm_that_were_written_since(tvm_package):
    later = time.time() + 7200
    os.utime(tvm_package / "topi" / "sum.py", (later, later))
    assert identity() is None
