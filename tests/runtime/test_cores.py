"""How many cores there are, by what a system's files say."""

import platform

import pytest

from graphgrad.runtime import cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that makes a Linux machine of some files and counts its cores."""

    def make(processors, files):
        monkeypatch.setattr(cores, "processors", lambda: list(processors))
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return cores.usable_cores(tmp_path)

    return make


def siblings(*groups):
    """Return the files of cores, each a list of its processors."""
    return {
        f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list": text + "\n"
        for text, *members in groups
        for processor in members
    }


PAIRS = siblings(("0,4", 0, 4), ("1,5", 1, 5), ("2,6", 2, 6), ("3,7", 3, 7))
SINGLE = siblings(("0", 0), ("1", 1))
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu"


@pytest.mark.parametrize("processors, files, expected", [
    (range(8), PAIRS, 4),
    (range(2), SINGLE, 2),
    (range(4), {}, 4),
    ([0, 4], PAIRS, 1),
    ([0, 1, 5], PAIRS, 2),
    ([2], PAIRS, 1),
], ids=["hyper-threads", "cores", "silent", "one core", "part", "one"])  # fmt: skip
def test_cores_of_the_processors_that_may_be_used(machine, processors, files, expected):
    assert machine(processors, files) == expected


@pytest.mark.parametrize("files, expected", [
    ({f"{V2}/cpu.max": "max 100000"}, 4),
    ({f"{V2}/cpu.max": "200000 100000"}, 2),
    ({f"{V2}/cpu.max": "150000 100000"}, 2),
    ({f"{V2}/cpu.max": "10000 100000"}, 1),
    ({f"{V2}/cpu.max": "900000 100000"}, 4),
    ({f"{V2}/a/cpu.max": "300000 100000", f"{V2}/a/b/cpu.max": "max 100000"}, 3),
    ({f"{V2}/a/b/cpu.max": "100000 100000", f"{V2}/cpu.max": "max 100000"}, 1),
    ({f"{V2}/other/cpu.max": "100000 100000"}, 4),
    ({f"{V2}/cpu.max": "damaged"}, 4),
], ids=["none", "two", "part", "tenth", "more", "above", "own", "other", "damaged"])  # fmt: skip
def test_the_quota_of_a_control_group(machine, files, expected):
    assert machine(range(8), {**PAIRS, "proc/self/cgroup": "0::/a/b\n", **files}) == expected


@pytest.mark.parametrize("quota, expected", [("-1", 4), ("200000", 2)])
@pytest.mark.parametrize("folder", [f"{V1}/a", V1], ids=["named", "of the container"])
def test_the_quota_of_a_control_group_of_version_1(machine, folder, quota, expected):
    files = {
        "proc/self/cgroup": "4:memory:/m\n1:cpu,cpuacct:/a\n0::/\n",
        f"{folder}/cpu.cfs_quota_us": quota,
        f"{folder}/cpu.cfs_period_us": "100000",
    }
    assert machine(range(8), {**PAIRS, **files}) == expected


@pytest.mark.parametrize("name, expected", [("x86_64", 4), ("AMD64", 4), ("arm64", 8)])
def test_where_the_system_does_not_tell(monkeypatch, name, expected):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: name)
    monkeypatch.setattr(cores, "processors", lambda: list(range(8)))
    assert cores.usable_cores() == expected


def test_this_machine_has_some():
    assert 1 <= cores.usable_cores() <= len(cores.processors())
