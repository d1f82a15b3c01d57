import numpy as np
import pytest
from accuracy import (
    Trajectory,
    complaints_against,
    complaints_float64,
    distances,
    worst_tensor,
)

GENERATOR = np.random.default_rng(0)
PARAMS = {"a": GENERATOR.standard_normal((300, 40)), "b": 1e-3 * GENERATOR.standard_normal(7)}
TORCH = {"losses": 1e-7, "params": 3e-7}


def trajectory(noise=0.0, losses=(2.0, 1.0)):
    generator = np.random.default_rng(1)
    noisy = {n: a * (1 + noise * generator.standard_normal(a.shape)) for n, a in PARAMS.items()}
    return Trajectory([loss * (1 + noise) for loss in losses], {"params": noisy})


def judged(run):
    return complaints_against(distances(run, trajectory()), TORCH)


def test_rounding_is_allowed():
    assert judged(trajectory(noise=5e-7)) == []
    assert complaints_float64(trajectory(noise=1e-9), trajectory()) == []


@pytest.mark.parametrize("noise", [1e-5, np.nan])
def test_too_far_is_told(noise):
    found = judged(trajectory(noise))
    assert len(found) == 2 and found[1].startswith("params: ")
    assert len(complaints_float64(trajectory(noise), trajectory())) == 2


@pytest.mark.parametrize("name", PARAMS)
def test_one_wrong_element_is_seen(name):
    """Also in the small tensor, whose norm is a hundred-thousandth of the whole."""
    run = trajectory(noise=1e-7)
    run.changes["params"][name].flat[3] *= 2
    assert judged(run) and complaints_float64(run, trajectory())
    assert worst_tensor(run, trajectory())[0] == f"params {name}"


def test_a_lucky_loss_of_torch_is_no_bound():
    ours = {"losses": 5e-7, "params": 0.0}
    assert complaints_against(ours, {"losses": 0.0, "params": 0.0}) == []
    assert complaints_against(ours | {"losses": 2e-6}, {"losses": 0.0, "params": 0.0})


def test_other_tensors_are_an_error():
    other = Trajectory([2.0, 1.0], {"params": {"a": PARAMS["a"]}})
    with pytest.raises(ValueError, match="the params are not those of the reference"):
        distances(other, trajectory())
