"""The folder of compiled programs: damage, races, limits, other users, and where it is."""

import os
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from graphgrad.errors import ArgumentError
from graphgrad.lower.codegen.cache import store as module
from graphgrad.lower.codegen.cache.store import Store, chosen_store

KEY, OTHER = "a" * 64, "b" * 64

PLENTY = 1 << 20


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache", PLENTY)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(module, "_warned", set())


def only_file(store):
    (path,) = store.folder.iterdir()
    return path


def test_what_is_written_is_read(store):
    assert store.read(KEY) is None
    store.write(KEY, b"program")
    assert store.read(KEY) == b"program"
    assert store.read(OTHER) is None
    store.write(KEY, b"another")
    assert store.read(KEY) == b"another"


def test_the_folder_is_the_users_alone(store):
    store.write(KEY, b"program")
    assert store.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(store, mode):
    store.write(KEY, b"program")
    store.folder.chmod(mode)
    with pytest.warns(UserWarning, match="others may write to") as said:
        assert store.read(KEY) is None
        store.write(OTHER, b"program")
    assert len(said) == 1
    store.folder.chmod(0o700)
    assert store.read(KEY) == b"program"
    assert store.read(OTHER) is None


def test_a_folder_of_somebody_else_is_not_used(store, monkeypatch):
    store.write(KEY, b"program")
    monkeypatch.setattr(os, "geteuid", lambda: store.folder.stat().st_uid + 1)
    with pytest.warns(UserWarning, match="or own it"):
        assert store.read(KEY) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:10],
        lambda content: b"",
        lambda content: content + b"more",
        lambda content: content[:-3] + b"x" + content[-2:],
        lambda content: b"X" + content[1:],
    ],
    ids=["shorter", "header cut", "empty", "longer", "changed", "other format"],
)
def test_damaged_entries_are_dropped(store, damage):
    store.write(KEY, b"program")
    path = only_file(store)
    path.write_bytes(damage(path.read_bytes()))
    assert store.read(KEY) is None
    assert not path.exists()
    store.write(KEY, b"program")
    assert store.read(KEY) == b"program"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX systems")
def test_a_pipe_in_the_place_of_an_entry(store):
    """Nobody waits for somebody to write into it, and the next entry takes its place."""
    store.write(KEY, b"program")
    path = only_file(store)
    path.unlink()
    os.mkfifo(path)
    assert store.read(KEY) is None
    store.write(KEY, b"program")
    assert store.read(KEY) == b"program"


def test_an_interrupted_write_leaves_nothing(store, monkeypatch):
    store.write(KEY, b"program")
    with monkeypatch.context() as interrupted:
        interrupted.setattr(os, "fsync", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.write(OTHER, b"program")
    assert only_file(store) == store._path(KEY)


def test_an_entry_under_another_name_is_dropped(store):
    store.write(KEY, b"program")
    path = only_file(store)
    path.rename(path.with_name(path.name.replace(KEY, OTHER)))
    assert store.read(OTHER) is None
    assert store.sizes() == []


def test_the_oldest_entries_make_room(tmp_path):
    size = 1000
    store = Store(tmp_path / "cache", 3 * size + 500)
    for age, key in enumerate("abc"):
        store.write(key, key.encode() * size)
        os.utime(store._path(key), (age, age))
    assert store.read("a") is not None  # used just now
    store.write("d", b"d" * size)
    assert [store.read(key) is not None for key in "abcd"] == [True, False, True, True]
    assert sum(store.sizes()) <= store.most_bytes


def test_an_entry_that_is_too_large_is_not_kept(tmp_path):
    store = Store(tmp_path / "cache", 1000)
    store.write(KEY, b"x" * 1000)
    assert store.read(KEY) is None


def test_what_a_dead_writer_left_is_dropped_and_what_one_writes_is_not(store):
    store.write(KEY, b"program")
    dead, alive = (store.folder / f"{name}{module.UNFINISHED}" for name in ("dead", "alive"))
    for path in (dead, alive):
        path.write_bytes(b"half")
    os.utime(dead, (0, 0))
    store.write(OTHER, b"program")
    assert not dead.exists()
    assert alive.exists()


def test_clear(store):
    store.clear()
    store.write(KEY, b"program")
    (store.folder / f"half{module.UNFINISHED}").write_bytes(b"")
    (store.folder / "notes").write_bytes(b"of the user")
    store.clear()
    assert [path.name for path in store.folder.iterdir()] == ["notes"]


def test_a_failed_write_leaves_nothing_and_is_said_once(store, monkeypatch):
    store.write(KEY, b"program")

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(UserWarning, match="no space left.*GRAPHGRAD_CACHE_DIR") as said:
        store.write(OTHER, b"program")
        store.write(OTHER, b"program")
    assert len(said) == 1
    assert len(list(store.folder.iterdir())) == 1


def test_readers_and_writers_at_once(store):
    """Whoever reads finds a whole entry or none."""
    contents = [bytes([number]) * 50_000 for number in range(4)]
    wrong = []

    def work(content):
        for _ in range(30):
            store.write(KEY, content)
            found = store.read(KEY)
            if found is not None and found not in contents:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.read(KEY) in contents


# --- the environment ---


def test_the_cache_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("GRAPHGRAD_CACHE", "0")
    assert chosen_store() is None
    monkeypatch.setenv("GRAPHGRAD_CACHE", "1")
    assert chosen_store() is not None


@pytest.mark.skipif(os.name == "nt", reason="the usual folders of POSIX systems")
def test_where_it_is(monkeypatch):
    monkeypatch.delenv("GRAPHGRAD_CACHE")
    monkeypatch.delenv("GRAPHGRAD_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert chosen_store().folder == Path.home() / ".cache" / "graphgrad"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert chosen_store().folder == Path("/somewhere/graphgrad")
    monkeypatch.setenv("GRAPHGRAD_CACHE_DIR", "/elsewhere")
    assert chosen_store().folder == Path("/elsewhere")


def without_home():
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_home_is_told_once(monkeypatch):
    monkeypatch.delenv("GRAPHGRAD_CACHE")
    for name in ("GRAPHGRAD_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", without_home)
    with pytest.warns(UserWarning, match="no home directory.*GRAPHGRAD_CACHE_DIR") as said:
        assert chosen_store() is None
        assert chosen_store() is None
    assert len(said) == 1


def test_a_folder_in_the_home_of_nobody(monkeypatch):
    monkeypatch.delenv("GRAPHGRAD_CACHE")
    monkeypatch.setenv("GRAPHGRAD_CACHE_DIR", "~no such user/cache")
    with pytest.raises(ArgumentError, match="GRAPHGRAD_CACHE_DIR='~no such user/cache'"):
        chosen_store()


@pytest.mark.parametrize(
    "system, name, rest",
    [("posix", "XDG_CACHE_HOME", "graphgrad"), ("nt", "LOCALAPPDATA", "graphgrad/cache")],
)
def test_no_home_is_needed_where_the_system_names_a_folder(monkeypatch, system, name, rest):
    monkeypatch.setattr(Path, "home", without_home)
    monkeypatch.setattr(module, "os", SimpleNamespace(name=system, environ={name: "/somewhere"}))
    assert chosen_store().folder == Path("/somewhere") / rest


def test_how_large_it_may_be(monkeypatch):
    monkeypatch.delenv("GRAPHGRAD_CACHE")
    monkeypatch.delenv("GRAPHGRAD_CACHE_SIZE", raising=False)
    assert chosen_store().most_bytes == 2048 << 20
    monkeypatch.setenv("GRAPHGRAD_CACHE_SIZE", "7")
    assert chosen_store().most_bytes == 7 << 20
    monkeypatch.setenv("GRAPHGRAD_CACHE_SIZE", "7 MB")
    with pytest.raises(ArgumentError, match="GRAPHGRAD_CACHE_SIZE='7 MB'"):
        chosen_store()


def test_nothing_is_said_where_all_is_well(store):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.write(KEY, b"program")
        store.read(KEY)
        store.clear()
