import json

import limits
import pytest


def entry(quiet=True, **milliseconds):
    names = {name: {"step_ms": ms, "quiet": quiet} for name, ms in milliseconds.items()}
    return {"contenders": names}


def result(models, **settings):
    return {"models": models, "settings": settings, "mcpu": "znver4"}


def test_the_best_of_torch_is_what_counts():
    models = {
        "a": entry(graphgrad=6.0, torch=9.0, torch_compile=8.0, torch_bfloat16=1.0),
        "b": entry(graphgrad=6.0, tvm=9.0),
        "c": {"contenders": {"graphgrad": {"error": "no"}, "torch": {"step_ms": 1.0}}},
    }
    (found,) = limits.reached(models)
    assert (found.model, found.best, found.ratio) == ("a", "torch_compile", 0.75)
    assert found.is_quiet and found.is_compiled


@pytest.mark.parametrize(
    "limit, words",
    [
        ({}, []),
        ({"ratio": {"znver4": 0.72}}, ["within 0.72"]),
        ({"ratio": {"znver5": 0.72}}, []),
        ({"ratio": {"znver4": 0.7}, "goal": 0.75}, ["SHORT of 0.70", "goal 0.75 reached"]),
        ({"goal": 0.7}, ["goal 0.70 not reached"]),
    ],
)
def test_what_is_said_of_a_ratio(limit, words):
    (found,) = limits.reached({"a": entry(graphgrad=6.0, torch=8.0)})
    assert found.verdict(limit, "znver4").split(", ")[1:] == words


def test_only_models_as_they_stand_are_compared():
    models = {"resnet50": entry(graphgrad=6.0, torch=8.0)}
    assert len(limits.verdicts(result(models, isa=None, batch=None))) == 1
    assert not limits.verdicts(result(models, isa="avx2"))
    assert not limits.verdicts(result(models, batch=1))


def test_the_ratchet_only_falls_and_only_by_full_results():
    before = {
        "a": {"goal": 0.5, "ratio": {"znver4": 0.6}},
        "b": {"ratio": {"znver4": 0.8, "znver5": 0.1}},
        "c": {"ratio": {"znver4": 0.9}},
    }
    models = {
        "a": entry(graphgrad=7.0, torch=9.0, torch_compile=10.0),
        "b": entry(graphgrad=7.0, torch=14.0, torch_compile=10.0),
        "c": entry(graphgrad=1.0, torch=9.0),
        "d": entry(graphgrad=1.0, torch=4.0, torch_compile=4.0),
        "e": entry(False, graphgrad=1.0, torch=4.0, torch_compile=4.0),
    }
    after = limits.ratcheted(before, limits.reached(models), "znver4")
    assert after == {
        **before,
        "b": {"ratio": {"znver4": 0.7, "znver5": 0.1}},
        "d": {"ratio": {"znver4": 0.25}},
    }


def test_every_model_has_a_limit_and_the_file_is_as_the_ratchet_writes_it(tmp_path, monkeypatch):
    from specs import FAMILIES, SPECS

    known = limits.read()
    assert set(known) == set(SPECS | FAMILIES)
    copy = tmp_path / "limits.json"
    text = limits.LIMITS.read_text("utf-8")
    copy.write_text(text, "utf-8")
    nothing = tmp_path / "step.json"
    nothing.write_text(json.dumps(result({})), "utf-8")
    monkeypatch.setattr(limits, "LIMITS", copy)
    monkeypatch.setattr("sys.argv", ["limits.py", str(nothing)])
    limits.main()
    assert copy.read_text("utf-8") == text
