"""How a profile looks; the numbers are made up."""

import sys
from dataclasses import replace

import pytest

import graphgrad as gg
from graphgrad import models
from graphgrad.profile.memory import LiveTensor, MemoryTimeline
from graphgrad.profile.profile import KernelTime, Profile
from graphgrad.profile.text import (
    check_figure_path,
    timing_text,
    write_profile_figure,
)
from graphgrad.report.graph import Subject
from tests.peers import peer

PROFILE = Profile(
    target="cpu:0",
    compile_seconds=2.5,
    step_seconds=(0.010, 0.012, 0.011),
    kernels=(
        KernelTime("conv", 0.006, "forward", "Conv", ("conv1",), (), 0, 6_000_000, ("float32",)),
        KernelTime(
            "conv_gradient", 0.002, "backward", "Conv + Relu", ("a", "b"), ("hand",), 1, 1000, ()
        ),
        KernelTime("conv", 0.001, "forward", "Conv", ("conv2",), (), 2, 1_000_000, ("float32",)),
        KernelTime("packed", 0.0005, "unknown", "unknown", (), (), None, 0, ()),
    ),
    machine_seconds=0.0001,
    memory=MemoryTimeline(
        tensors=(3_000_000, 5_000_000, 1_000_000),
        scratch=(0, 500_000, 0),
        arguments=1_000_000,
        peak=1,
        at_peak=(
            LiveTensor("lv", 4_000_000, "value", 0),
            LiveTensor("weight", 1_000_000, "argument", None),
        ),
    ),
    subject=Subject(gg.from_onnx(models.mlp((4, 3))), ()),
)


def test_time_as_text():
    assert timing_text(PROFILE) == (
        "a step takes 11.00 ms (10.00 to 12.00 in 3 steps), compiled in 2.5 s; "
        "at most 5.5 MB are in use"
    )
    assert timing_text(replace(PROFILE, memory=None)).endswith("compiled in 2.5 s")


def test_classes_are_summed_and_sorted():
    lines = str(PROFILE).splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith("phase"))
    rows = [line.split() for line in lines[first + 2 : first + 5]]
    assert rows[0][:7] == ["forward", "Conv", "float32", "2", "7.000", "73.7", "%"]
    assert rows[1][:8] == ["backward", "Conv", "+", "Relu", "hand", "1", "2.000", "21.1"]
    assert rows[2][:2] == ["unknown", "unknown"]
    assert len(rows[0][-1]) > len(rows[1][-1])


def test_the_peak_says_what_is_live_and_who_made_it():
    text = str(PROFILE)
    assert "memory in use: 5.5 MB at the peak, of which arguments 1.0 MB" in text
    assert "the peak is at kernel 2 of 3, conv_gradient (backward, a, b)" in text
    (live,) = (line for line in text.splitlines() if line.startswith("lv "))
    assert live.split() == ["lv", "4.00", "value", "Conv,", "conv1"]
    assert not any(line.startswith("weight") for line in text.splitlines())


def test_without_kernels():
    nothing = replace(PROFILE, kernels=(), memory=MemoryTimeline((), (), 4, 0, ()))
    assert "at the peak" in str(nothing)
    assert "memory in use" not in str(replace(PROFILE, memory=None))


@pytest.mark.parametrize("ending, start", [("png", b"\x89PNG"), ("SVG", b"<?xml")])
@pytest.mark.parametrize("profile", [PROFILE, replace(PROFILE, memory=None)])
def test_figure(tmp_path, ending, start, profile):
    peer("matplotlib")
    path = tmp_path / f"profile.{ending}"
    write_profile_figure(path, profile)
    assert path.read_bytes().startswith(start)


def test_a_figure_that_cannot_be_written(tmp_path):
    peer("matplotlib")
    with pytest.raises(gg.OutputError, match=r"cannot write .*profile.png: No such file"):
        write_profile_figure(tmp_path / "none" / "profile.png", PROFILE)


def test_a_figure_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(gg.ArgumentError, match=r"graphgrad\[plot\]"):
        check_figure_path(tmp_path / "profile.png")
