"""Timing plans of cuDNN, with stand-ins for it and for the device: what is written, and read."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tvm

from graphgrad.lower.cuda.library import timed as read
from graphgrad.runtime import cuda_graph
from graphgrad.runtime.cudnn.plans import Plan
from graphgrad.runtime.cudnn.problem import Problem
from tests.lower.cuda.library.test_offline import convolutions

SECONDS = {1: 3e-3, 2: 1e-3}
"""That the engines of the stand-in take."""

REFUSED = (3, 4)
"""Engines that are proposed, of which one fails, and another is not loaded."""


@pytest.fixture
def problem():
    return convolutions("bfloat16")[0]


def plan(problem, engine_number):
    serialized = {"engine": {"engineId": engine_number, "knobChoices": {"TILE": 3, "SPLIT": -1}}}
    return Plan(problem, 64, engine_number, (), 92801, 90, json.dumps(serialized))


class Recorded:
    """Calls in the place of a graph."""

    is_recorded = True

    def __init__(self, work, *_):
        self._work = work

    def __call__(self, scratch):
        return self._work()


def entries(problem, computed, monkeypatch):
    import tune

    passed = [0.0]
    monkeypatch.setattr(tune, "time", SimpleNamespace(perf_counter=lambda: passed[0]))

    def compute(*arguments):
        (text,) = (each for each in arguments if isinstance(each, str))
        computed.append([each for each in arguments if not isinstance(each, str)])
        engine = Plan.from_json(text).engine
        if engine not in SECONDS:
            raise RuntimeError("no such engine")
        passed[0] += SECONDS[engine]

    graph = SimpleNamespace(Recorded=Recorded, empty=cuda_graph.empty)

    def loaded(text, index, workspace):
        proposed = Plan.from_json(text)
        assert workspace == proposed.workspace
        # In place of what cuDNN refuses another plan is made.
        return SimpleNamespace(plan=plan(problem, 1) if proposed.engine == 4 else proposed)

    library = SimpleNamespace(compute=compute, _loaded=loaded)
    runtime = {"cuda_graph": graph, "cudnn.engine": library}
    failures = []
    plans = [plan(problem, each) for each in (*SECONDS, *REFUSED)]
    timed = tune.timed(runtime, problem, plans, tvm.cpu(), failures)
    assert len(failures) == 2 and "no such engine" in failures[0]
    assert "does not load what it has proposed" in failures[1]
    return timed


def test_the_fastest_comes_first_and_is_read_again(problem, monkeypatch, tmp_path):
    import run
    import tune

    monkeypatch.setattr(tune, "REPEATS", 2)
    computed = []
    timed = entries(problem, computed, monkeypatch)
    assert [entry["configuration"][0] for entry in timed] == [2, 1]
    assert all(entry["seconds"] > 0 for entry in timed)
    sizes = [tensor.numel() for tensor in computed[0]]
    assert sizes == [*(form.size for form in problem.tensors), 64]
    bits = np.from_dlpack(computed[0][0]._create_view((sizes[0],), "uint16"))
    drawn = (bits.astype("uint32") << 16).view("float32")
    assert ((np.abs(drawn) >= 1) & (np.abs(drawn) < 2)).all() and len(np.unique(drawn)) > 100

    about = {"device": "NVIDIA H200", "cudnn": 92801}
    run.write_plans(tmp_path, about, [{"problem": problem.to_json(), "plans": timed}])
    (file,) = tmp_path.iterdir()
    assert file.name == "timed-nvidia-h200-92801.json"
    monkeypatch.setattr(read, "FOLDER", tmp_path)
    orders = read.timed_orders("NVIDIA H200", [problem])
    assert orders == {"92801": {problem.key: [(n, (("SPLIT", -1), ("TILE", 3))) for n in (2, 1)]}}
    assert Problem.from_json(json.loads(problem.key)) == problem


def test_what_a_process_says_until_its_time_is_over():
    import sys

    import run

    told = "print('{\"a\": 1}', flush=True)"
    program = f"import time; {told}; time.sleep(100); {told}"
    lines = list(run.lines_of([sys.executable, "-c", program], time.monotonic() + 3))
    assert lines == [{"a": 1}]


def test_properties_that_were_assumed_wrongly():
    from predictions import differences

    true = {"l2CacheSize": 1, "warpSize": 32, "other": 5}
    assert differences(true, {"l2CacheSize": 2, "warpSize": 32}) == {"l2CacheSize": [1, 2]}
    assert differences({}, {"l2CacheSize": 2}) == {}


def test_other_calls_than_those_predicted():
    from predictions import furthest

    predicted = [{"name": "a", "seconds": 1.0, "is_of_library": False}]
    with pytest.raises(ValueError, match="other calls"):
        furthest([("b", 1.0)], predicted)
    with pytest.raises(ValueError, match="other calls"):
        furthest([], predicted)
