import json

import pytest

from graphgrad.cli.main import main
from graphgrad.lower.codegen.cache.store import chosen_store


@pytest.fixture(autouse=True)
def filled(tmp_path, monkeypatch):
    """A cache of two entries."""
    monkeypatch.setenv("GRAPHGRAD_CACHE", "1")
    monkeypatch.setenv("GRAPHGRAD_CACHE_DIR", str(tmp_path / "cache"))
    for key in ("a", "b"):
        chosen_store().write(key, b"program")


def test_text(tmp_path, capsys):
    assert main(["cache"]) == 0
    assert f"{tmp_path / 'cache'}: 2 compiled programs" in capsys.readouterr().out


def test_json(tmp_path, capsys):
    assert main(["cache", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["folder"] == str(tmp_path / "cache")
    assert facts["programs"] == 2
    assert facts["bytes"] == sum(chosen_store().sizes())
    assert facts["most_bytes"] == 2048 << 20


def test_clear(capsys):
    assert main(["cache", "--clear"]) == 0
    assert "0 compiled programs" in capsys.readouterr().out
    assert chosen_store().read("a") is None


def test_without_a_cache(monkeypatch, capsys):
    monkeypatch.setenv("GRAPHGRAD_CACHE", "0")
    assert main(["cache", "--clear"]) == 0
    assert "not kept" in capsys.readouterr().out
    monkeypatch.setenv("GRAPHGRAD_CACHE", "1")
    assert chosen_store().read("a") == b"program"


def test_a_size_that_is_none(monkeypatch, capsys):
    monkeypatch.setenv("GRAPHGRAD_CACHE_SIZE", "much")
    assert main(["cache"]) == 2
    assert "GRAPHGRAD_CACHE_SIZE='much'" in capsys.readouterr().err
