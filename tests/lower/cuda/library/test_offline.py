"""Plans without a device: of cuDNN where it is installed, and of processes that fail."""

import json
import sys
from dataclasses import replace

import pytest

from graphgrad.lower.cuda.library import offline
from graphgrad.lower.cuda.library.cost import (
    RATES,
    library_pays,
    seconds_by_library,
    seconds_by_own,
)
from graphgrad.lower.cuda.library.devices import PROFILES, capability_of, profile_of
from graphgrad.lower.cuda.library.offline import plan_all
from graphgrad.runtime.cudnn.backend import Note, library_path
from graphgrad.runtime.cudnn.plans import WORKSPACE_LIMIT, Plan, forbidden_notes
from graphgrad.runtime.cudnn.problem import MATMUL, Problem, Step, TensorForm, strides_of
from tests.peers import required

WINDOW = {
    "strides": (1, 1),
    "padding_before": (1, 1),
    "padding_after": (1, 1),
    "dilation": (1, 1),
}


def last(n, c, h, w, dtype):
    """The form of images with the channels innermost."""
    return TensorForm((n, c, h, w), (c * h * w, 1, c * w, c), dtype)


def convolutions(dtype, tf32=False):
    x, w, y = last(8, 64, 14, 14, dtype), last(128, 64, 3, 3, dtype), last(8, 128, 14, 14, dtype)
    return [
        Problem("conv_forward", (x, w), (y,), tf32, **WINDOW),
        Problem("conv_data_gradient", (y, w), (x,), tf32, **WINDOW),
        Problem("conv_weight_gradient", (x, y), (w,), tf32, **WINDOW),
    ]


def product(dtype, tf32=False):
    forms = [TensorForm(s, strides_of(s), dtype) for s in ((1, 64, 32), (1, 32, 48), (1, 64, 48))]
    return Problem(MATMUL, tuple(forms[:2]), (forms[2],), tf32)


@pytest.fixture(scope="module")
def cudnn():
    required("cuDNN", library_path() is not None)


@pytest.mark.parametrize("device", PROFILES)
def test_every_contraction_has_a_plan(cudnn, device):
    problems = [
        *convolutions("bfloat16"),
        *convolutions("float32", tf32=True),
        *convolutions("float32"),
        product("bfloat16"),
    ]
    for problem, plan in plan_all(problems, PROFILES[device]).items():
        assert isinstance(plan, Plan), f"{problem}: {plan}"
        assert plan.problem == problem and plan.workspace <= WORKSPACE_LIMIT
        assert not {note.name for note in forbidden_notes(problem)} & set(plan.notes)
        assert plan.architecture == capability_of(PROFILES[device])
        on_tensor_cores = "TENSOR_CORE" in plan.notes
        assert on_tensor_cores == (problem.tf32 or problem.output.dtype != "float32")
        assert Plan.from_json(plan.to_json()) == plan
        assert json.loads(plan.serialized)["cudnnVersion"] == plan.cudnn


EPILOGUES = {
    "activation": ((Step("add", (0, 1)), Step("erf", (3,)), Step("multiply", (4, 3))), (3, 5)),
    "gradient": (
        (Step("less_equal", (2, 0.0)), Step("select", (3, 0.0, 0)), Step("multiply", (4, 1))), (5,)
    ),
    "cast": ((), (0,)),
}  # fmt: skip
"""Steps of a product, a bias (1) and a tensor (2), and what of them is written."""


@pytest.mark.parametrize("device", PROFILES)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_have_plans(cudnn, device, name):
    steps, results = EPILOGUES[name]
    alone = product("bfloat16")
    bias = TensorForm((1, 1, 48), (48, 48, 1), "float32")
    others = (bias, alone.output) if steps else ()
    forms = tuple(replace(alone.output, dtype=d) for d in ("bfloat16", "float32")[-len(results) :])
    problem = replace(
        alone, inputs=(*alone.inputs, *others), outputs=forms, epilogue=steps, results=results
    )
    (plan,) = plan_all([problem], PROFILES[device]).values()
    assert isinstance(plan, Plan), plan
    assert "TENSOR_CORE" in plan.notes and Plan.from_json(plan.to_json()) == plan


def test_operands_of_an_epilogue_allow_no_tensor_cores():
    alone = product("float32")
    half = replace(alone.output, dtype="bfloat16")
    problem = replace(alone, inputs=(*alone.inputs, half), epilogue=(Step("add", (0, 1)),))
    assert Note.TENSOR_CORE in forbidden_notes(problem)


def test_plain_float32_products_are_left_to_us(cudnn):
    (answer,) = plan_all([product("float32")], PROFILES["h200"]).values()
    assert isinstance(answer, str) and "TENSOR_CORE" in answer


def test_a_process_that_crashes_costs_one_problem(monkeypatch, tmp_path):
    # It answers once, and dies at the second problem that it is asked for.
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os, sys\n"
        "asked = json.load(sys.stdin)\n"
        "for each in asked['problems']:\n"
        "    if each['inputs'][0]['dtype'] == 'float16':\n"
        "        print('Could not load symbol', file=sys.stderr, flush=True)\n"
        "        os.abort()\n"
        "    print(json.dumps({'error': each['inputs'][0]['dtype']}), flush=True)\n"
    )
    monkeypatch.setattr(offline, "WORKER", [sys.executable, str(program)])
    monkeypatch.setattr(offline, "_answers", {})
    problems = [product(dtype) for dtype in ("bfloat16", "float16", "float32")]
    answers = list(plan_all(problems, PROFILES["h200"]).values())
    assert answers[0] == "bfloat16" and answers[2] == "float32"
    assert "Could not load symbol" in answers[1]


def test_small_and_depthwise_problems_stay_ours():
    def plan(problem, notes=("TENSOR_CORE",)):
        return Plan(problem, 0, 0, notes, 0, 90, "")

    assert not library_pays(plan(product("bfloat16")))
    large = last(64, 256, 28, 28, "bfloat16"), last(256, 256, 3, 3, "bfloat16")
    assert library_pays(plan(Problem("conv_forward", large, large[:1], **WINDOW)))
    depthwise = large[0], last(256, 1, 3, 3, "bfloat16")
    assert not library_pays(plan(Problem("conv_forward", depthwise, large[:1], **WINDOW)))


def test_our_contractions_are_timed_on_the_units_that_compute_them():
    large = last(64, 256, 28, 28, "bfloat16"), last(256, 256, 3, 3, "bfloat16")
    half = Problem("conv_forward", large, large[:1], **WINDOW)
    wide = tuple(replace(form, dtype="float32") for form in large)
    single = Problem("conv_forward", wide, wide[:1], **WINDOW)
    times = [seconds_by_own(each, 90) for each in (half, replace(single, tf32=True), single)]
    assert times == sorted(times) and times[1] * 4 < times[2]
    # Not as fast as the library, and never faster than memory.
    assert seconds_by_library(Plan(half, 0, 0, ("TENSOR_CORE",), 0, 90, "")) < times[0]
    assert times[0] > half.bytes / RATES[90].bytes
    # A tile would be padding for the most part.
    forms = [TensorForm(s, strides_of(s), "float16") for s in ((1, 4, 4096), (1, 4096, 4096))]
    narrow = Problem(MATMUL, tuple(forms), (forms[0],))
    assert seconds_by_own(narrow, 90) >= narrow.operations / RATES[90].single


def test_profiles_by_architecture():
    assert profile_of("sm_90") is profile_of("sm_90a") is PROFILES["h200"]
    assert profile_of("sm_75") is None
