"""What runs on what."""

import pytest

from graphgrad.errors import TargetError
from graphgrad.lower.cuda.architecture import architecture_of, check_architecture, runs_on


@pytest.mark.parametrize("name", ["sm_75", "sm_90", "sm_90a", "sm_100f", "sm_121", "sm_130"])
def test_known_names(name):
    check_architecture(name)


@pytest.mark.parametrize(
    "name", ["", "90", "sm90", "sm_9", "sm_70", "sm_99", "sm_90b", "compute_90", "sm_090"]
)
def test_unknown_names(name):
    with pytest.raises(TargetError, match=f"{name!r} is not served; those that are: sm_75, sm_80"):
        check_architecture(name)


def test_names_of_capabilities():
    assert [architecture_of(v) for v in ("8.6", "9.0", "12.1")] == ["sm_86", "sm_90", "sm_121"]


@pytest.mark.parametrize("name, device, runs", [
    ("sm_80", "8.0", True), ("sm_80", "8.6", True), ("sm_80", "9.0", True), ("sm_80", "7.5", False),
    ("sm_90", "8.9", False), ("sm_90", "10.0", True), ("sm_90", "12.0", True),
    ("sm_90a", "9.0", True), ("sm_90a", "10.0", False), ("sm_90a", "8.0", False),
    ("sm_100f", "10.0", True), ("sm_100f", "10.3", True), ("sm_100f", "12.0", False),
    ("sm_103f", "10.0", False), ("sm_120", "10.3", False),
])  # fmt: skip
def test_what_runs_where(name, device, runs):
    assert runs_on(name, device) == runs


@pytest.mark.parametrize("name, device, runs", [
    ("sm_80", "8.0", True), ("sm_80", "8.6", True), ("sm_86", "8.0", False),
    ("sm_80", "9.0", False), ("sm_90a", "9.0", True),
])  # fmt: skip
def test_machine_code_without_ptx_stays_in_its_major_version(name, device, runs):
    assert runs_on(name, device, ptx=False) == runs
