"""A few cases of the campaigns of runs and of saved steps; and that what is lost is noticed."""

import crashes
import faults
import numpy as np
import pytest
import run_jobs
import runs
import saved_steps
from campaign import Disagreement

from graphgrad.train.step import TrainStep


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """What one run compiles serves the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHGRAD_CACHE", "1")
        patch.setenv("GRAPHGRAD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def judge(job, folder, seed):
    folder.mkdir()
    return runs.judge_job(run_jobs.JOBS[job], folder, np.random.default_rng(seed))


@pytest.mark.parametrize(
    "job", ["accumulating", pytest.param("frozen twin", marks=pytest.mark.slow)]
)
def test_runs_that_are_ended_give_the_bits_of_those_that_are_not(tmp_path, job):
    assert judge(job, tmp_path / "case", 1)


@pytest.mark.slow
def test_a_state_that_is_not_loaded_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainStep, "load", lambda step, path: {})
    with pytest.raises(Disagreement, match="not the bits"):
        for seed in range(10):
            judge("accumulating", tmp_path / str(seed), seed)


@pytest.mark.parametrize("name, fault", [
    *(("save", fault) for fault in faults.FAULTS),
    pytest.param("export", faults.KILLED, marks=pytest.mark.slow),
    pytest.param("export", faults.LATE, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_saved_step_is_the_old_or_the_new(tmp_path, name, fault):
    writer, rng = saved_steps.WRITERS[name], np.random.default_rng(0)
    crashes.judge_writer(writer, fault, tmp_path, rng)
