"""Plans that were timed: which is taken, of which device and version, and what damaged files do.

The files are made up; what is taken is seen of cuDNN's own planner, where it is installed.
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from graphgrad import runtime
from graphgrad.lower.cuda.library import offline, timed
from graphgrad.lower.cuda.library.devices import PROFILES, capability_of
from graphgrad.lower.cuda.library.no_device import libraries
from graphgrad.lower.cuda.library.offline import plan_all
from graphgrad.runtime.cudnn.backend import library_path
from graphgrad.runtime.cudnn.plans import WORKSPACE_LIMIT, Plan
from tests.lower.cuda.library.test_offline import convolutions
from tests.peers import required

H200 = PROFILES["h200"]

CONFIGURATIONS = """
import ctypes, json, sys
sys.path.insert(0, sys.argv[1])
request = json.load(sys.stdin)
for path in request["libraries"]:
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
from cudnn.graphs import device
from cudnn.plans import plans_of
from cudnn.problem import Problem
target = device(request["properties"])
plans = plans_of(Problem.from_json(request["problem"]), target, request["architecture"])
print(json.dumps([plan.configuration for plan in plans]))
"""


@pytest.fixture(scope="module")
def problem():
    return convolutions("bfloat16")[0]


@pytest.fixture(scope="module")
def configurations(problem):
    """All that cuDNN proposes for the problem, in its order."""
    required("cuDNN", library_path() is not None)
    request = {
        "libraries": libraries(),
        "properties": dict(H200),
        "architecture": capability_of(H200),
        "problem": problem.to_json(),
    }
    command = [sys.executable, "-c", CONFIGURATIONS, str(Path(runtime.__file__).parent)]
    done = subprocess.run(
        command, input=json.dumps(request), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture
def write(tmp_path, monkeypatch, problem):
    """Write a file of timed plans, of which some are given by their configurations and seconds."""
    monkeypatch.setattr(timed, "FOLDER", tmp_path)
    monkeypatch.setattr(offline, "_answers", {})

    def write(plans, device=H200["deviceName"], cudnn=None, **changes):
        entry = {
            "problem": problem.to_json(),
            "plans": [{"configuration": each, "seconds": seconds} for each, seconds in plans],
        }
        content = {"format": 1, "device": device, "cudnn": cudnn, "problems": [entry], **changes}
        (tmp_path / "h200.json").write_text(json.dumps(content))
        timed._files.cache_clear()

    yield write
    timed._files.cache_clear()


def taken(problem):
    """The plan of the problem, and its configuration as JSON has it."""
    plan = plan_all([problem], H200)[problem]
    assert isinstance(plan, Plan), plan
    return plan, json.loads(json.dumps(plan.configuration))


def test_the_fastest_that_is_proposed_is_taken(write, problem, configurations):
    first, configuration = taken(problem)
    assert configuration == configurations[0] and len(configurations) > 2
    unknown = [9999, []]
    write(
        [(configurations[0], 3e-5), (unknown, 1e-6), (configurations[2], 1e-5)], cudnn=first.cudnn
    )
    offline._answers.clear()
    fastest, configuration = taken(problem)
    assert configuration == configurations[2]
    assert fastest.problem == problem and fastest.workspace <= WORKSPACE_LIMIT


@pytest.mark.parametrize("changes", [{"device": "NVIDIA A100-SXM4-80GB"}, {"cudnn": 90900}])
def test_other_devices_and_versions_say_nothing(write, problem, configurations, changes):
    version = {"cudnn": taken(problem)[0].cudnn} | changes
    write([(configurations[2], 1e-5)], **version)
    offline._answers.clear()
    assert taken(problem)[1] == configurations[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"problems": 3},
        {"problems": [{}]},
        {"cudnn": "new"},
        {"cudnn": float("inf")},
        {"problems": [[]]},
    ],
    ids=["format", "no list", "no plans", "version", "no number", "no object"],
)
def test_a_damaged_file_is_named_and_says_nothing(write, problem, changes):
    write([([1, []], 1e-5)], **{"cudnn": 92801} | changes)
    with pytest.warns(UserWarning, match=r"h200\.json is damaged"):
        assert timed.timed_orders(H200["deviceName"], [problem]) == {}


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1e-5, 10**400, "soon"])
def test_plans_that_take_no_time_are_damage(write, problem, seconds):
    write([([1, []], 1e-5), ([2, []], seconds)], cudnn=92801)
    with pytest.warns(UserWarning, match=r"h200\.json is damaged"):
        assert timed.timed_orders(H200["deviceName"], [problem]) == {}


def test_files_of_one_device_and_version_complete_each_other(write):
    """As of runs of the kit that were cut at different places."""
    problems = convolutions("bfloat16")[:2]
    for number, each in enumerate(problems):
        plans = [{"configuration": [number, []], "seconds": 1e-5}]
        write([], cudnn=92801, problems=[{"problem": each.to_json(), "plans": plans}])
        (timed.FOLDER / "h200.json").rename(timed.FOLDER / f"{number}.json")
    orders = timed.timed_orders(H200["deviceName"], problems)
    assert orders == {"92801": {each.key: [(n, ())] for n, each in enumerate(problems)}}


def test_a_file_that_is_cut_short_says_nothing(write, problem):
    write([], cudnn=92801)
    path = timed.FOLDER / "h200.json"
    path.write_text(path.read_text()[:-20])
    with pytest.warns(UserWarning, match="damaged"):
        assert timed.timed_orders(H200["deviceName"], [problem]) == {}


def test_what_was_committed_is_whole(problem):
    timed._files.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timed.timed_orders(H200["deviceName"], [problem])
