"""The order of lowering: what depends on another pass cannot change places with it."""

import itertools
import json

import pytest

from graphgrad.ir.passes import TARGETS, PassOrderError, Phase, Pipeline, When, declaration
from graphgrad.lower.__main__ import main
from graphgrad.lower.pipeline import PASSES, PIPELINES, Lowering

ENTRIES = [
    each
    for entry in PASSES
    for each in (
        [When(entry.condition, [own]) for own in entry.passes]
        if isinstance(entry, When)
        else [entry]
    )
]
"""All passes, each with its own condition."""


def own(entry):
    return declaration(entry.passes[0] if isinstance(entry, When) else entry)


def is_dependent(first, second):
    """Return whether one of two passes says that they are in this order."""
    return (
        first.name in {**second.requires, **second.after}
        or second.name in first.before
        or (first.to and len(second.phases) == 1)
        or (second.to and len(first.phases) == 1)
    )


def swapped(target, first, second):
    """Build the pipeline of a target with two passes that have changed places."""
    entries = list(ENTRIES)
    entries[first], entries[second] = entries[second], entries[first]
    return Pipeline(entries, target, Lowering)


@pytest.mark.parametrize("target", TARGETS)
def test_dependent_passes_cannot_change_places(target):
    places = [place for place, entry in enumerate(ENTRIES) if target in own(entry).targets]
    for first, second in itertools.combinations(places, 2):
        if is_dependent(own(ENTRIES[first]), own(ENTRIES[second])):
            with pytest.raises(PassOrderError) as refused:
                swapped(target, first, second)
            assert any(own(ENTRIES[i]).name in str(refused.value) for i in (first, second))


@pytest.mark.parametrize("target", TARGETS)
def test_every_phase_is_reached_by_one_pass(target):
    to = [step.declared.to for step in PIPELINES[target].steps if step.declared.to]
    assert to == list(Phase)[1:]


@pytest.mark.parametrize("target", TARGETS)
def test_passes_say_what_they_do_and_why(target):
    for step in PIPELINES[target].steps:
        assert step.declared.summary
        place = [step.declared.requires, step.declared.after, step.declared.before]
        assert all(reason for relation in place for reason in relation.values())


def test_each_pass_is_for_some_target():
    assert {own(entry).name for entry in ENTRIES} == {
        step.declared.name for pipeline in PIPELINES.values() for step in pipeline.steps
    }


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_prints_all_passes(target, capsys):
    main(["--target", target])
    text = capsys.readouterr().out
    main(["--target", target, "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in rows if "." not in r["number"]] == [
        step.declared.name for step in PIPELINES[target].steps
    ]
    assert len({row["number"] for row in rows}) == len(rows)
    assert all(row["name"] in text and row["summary"] in text for row in rows)
    assert ("split_axes" in text) == (target == "llvm")
