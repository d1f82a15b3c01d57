"""The kernels of examples/kernels: each form, value and gradients, against PyTorch in float64."""

import re

import numpy as np
import pytest
from user_kernel import FOLDER, KERNELS, cotangent, example_of

import graphgrad as gg
from graphgrad.check.promote import promote_to_float64
from tests.peers import peer
from tests.running import run

FORMS = ("tensors", "script")


@pytest.fixture(scope="module")
def expected():
    """What PyTorch computes of a kernel in float64, by its name."""
    torch = peer("torch")
    from contenders.user_kernels_torch import Step

    known = {}

    def of(kernel):
        if kernel not in known:
            step = Step(kernel, large=False, compiled=False, dtype=torch.float64)
            step()
            known[kernel] = step.gradients()
        return known[kernel]

    return of


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_value_and_gradients_are_those_of_torch(kernel, form, expected):
    value, *gradients = expected(kernel).values()
    example, sizes = example_of(kernel, large=False)
    mod, obstacles = promote_to_float64(example.module(form, sizes))
    assert obstacles == []
    arrays = [
        a.astype("float64") if a.dtype.kind == "f" else a for a in example.arrays(sizes).values()
    ]
    head = cotangent(value.shape).astype("float64")
    found = run(gg.vjp(mod), "main_vjp", *arrays, head)
    for ours, theirs in zip(found, [value, *gradients], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_an_example_checks_its_gradients(python):
    done = python.run(FOLDER / "spline.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("derived") == done.stdout.count("in float64") == len(FORMS)


def test_there_are_twelve():
    assert len(KERNELS) == 12


@pytest.mark.slow
def test_json_form(bench):
    peer("psutil")
    peer("torch")
    options = ("--small", "--kernels", "spline", "--rounds", "1", "--turn-seconds", "0")
    result = bench("user_kernels.py", "--json", *options)
    (entry,) = result["kernels"]
    assert entry["ratios"]["tensors"] > 0 and result["geometric_mean"]["script"] > 0


def test_ratios_are_paired_by_round():
    peer("psutil")
    import user_kernels
    from rounds import Record, Rules, Turn

    rules = Rules(3, 1.0, 3, 10.0, 0.0)
    ours = Record(rules, [Turn([s], 0.0) for s in (1.0, 10.0, 2.0)])
    theirs = Record(rules, [Turn([s], 0.0) for s in (2.0, 20.0, 2.0)])
    assert user_kernels.paired(ours, theirs) == 0.5
    # A round in which one of them was not alone counts only if there is no other.
    theirs = Record(rules, [Turn([4.0], 2.0), Turn([20.0], 0.0), Turn([2.0], 2.0)])
    assert user_kernels.paired(ours, theirs) == 0.5
    assert user_kernels.paired(ours, Record(rules, theirs.turns[:1])) == 0.25


def test_the_example_of_the_page_runs():
    page = (FOLDER.parents[1] / "docs" / "user-kernels.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "user-kernels.md", "exec"), {})
