"""Traces of profiles, as Perfetto reads them."""

import json
from dataclasses import replace

import pytest

from graphgrad.profile.trace import trace_json
from tests.profile.test_text import PROFILE


def events(profile, kind):
    return [e for e in json.loads(trace_json(profile))["traceEvents"] if e["ph"] == kind]


def track(profile, name):
    (thread,) = (e["tid"] for e in events(profile, "M") if e["args"]["name"] == name)
    return [event for event in events(profile, "X") if event["tid"] == thread]


def test_kernels_follow_each_other():
    kernels = track(PROFILE, "kernels")
    assert [e["name"] for e in kernels] == ["Conv", "Conv + Relu", "Conv", "unknown"]
    assert [e["dur"] for e in kernels] == pytest.approx([6000, 2000, 1000, 500])
    assert [e["ts"] for e in kernels] == pytest.approx([0, 6000, 8000, 9000])
    assert kernels[1]["args"]["nodes"] == "a, b" and kernels[1]["args"]["gradients"] == "hand"


def test_phases_span_their_kernels():
    phases = track(PROFILE, "phases")
    assert [(e["name"], round(e["ts"]), round(e["dur"])) for e in phases] == [
        ("forward", 0, 6000),
        ("backward", 6000, 2000),
        ("forward", 8000, 1000),
        ("unknown", 9000, 500),
    ]


def test_memory_is_a_counter():
    counters = events(PROFILE, "C")
    assert [e["args"]["tensors"] for e in counters] == [3_000_000, 5_000_000, 1_000_000]
    assert [e["args"]["held by kernels"] for e in counters] == [0, 500_000, 0]
    assert events(replace(PROFILE, memory=None), "C") == []
