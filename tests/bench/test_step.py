import dataclasses
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from tests.peers import peer

TINY = ("--models", "resnet_digits", "--batch", "4", "--width", "0.0625")
ONE_TURN = ("--rounds", "1", "--attempts", "1", "--turn-seconds", "0", "--pause", "0")


@pytest.fixture
def step():
    peer("psutil")
    import step

    return step


@pytest.mark.parametrize(
    ("contenders", "options"),
    [
        # Held to an instruction set: the processor's peaks, which take long, are not measured.
        (["graphgrad"], ["--isa", "avx2"]),
        pytest.param(
            ["graphgrad", "torch", "torch_channels_last", "tvm"], [], marks=pytest.mark.slow
        ),
    ],
    ids=["one", "all"],
)
def test_json_form(bench, contenders, options):
    peer("psutil")
    peer("torch")
    named = ("--contenders", ",".join(contenders))
    result = bench("step.py", "--json", *TINY, *ONE_TURN, *named, *options)
    assert result["benchmark"] == "step"
    assert result["machine"].keys() >= {"processor", "cores", "python"}
    assert result["versions"]["torch"] and result["settings"]["rounds"] == 1
    model = result["models"]["resnet_digits"]
    assert model["batch"] == 4
    assert list(model["contenders"]) == contenders
    for figures in model["contenders"].values():
        assert figures["includes"]
        assert math.isfinite(figures["initial_loss"])
        assert figures["first_step_seconds"] > 0 and figures["step_ms"] > 0
        assert len(figures["turns"]) == figures["turns_taken"] == 1
        assert figures["turns"][0]["load"] >= 0 and len(figures["turns"][0]["step_ms"]) == 1
    assert model["contenders"]["graphgrad"]["ratio_to_graphgrad"] == 1


@pytest.mark.slow
def test_held_to_an_instruction_set(bench):
    """All contenders compute the same loss with fewer instructions; stock TVM knows of none."""
    peer("psutil")
    options = ("--contenders", "graphgrad,tvm", "--isa", "sse4.2")
    result = bench("step.py", "--json", *TINY, *ONE_TURN, *options)
    assert result["settings"]["isa"] == "sse4.2"
    contenders = result["models"]["resnet_digits"]["contenders"]
    assert list(contenders) == ["graphgrad"] and "error" not in contenders["graphgrad"]


def test_the_instruction_set_reaches_each_contender(step):
    known, environment = step.held_to("avx2")
    assert known["graphgrad"][1] == {"mcpu": "haswell"}
    assert known["graphgrad_derived"][1] == {"rules": "derived", "mcpu": "haswell"}
    assert "mcpu" not in known["torch"][1] and environment["ATEN_CPU_CAPABILITY"] == "avx2"
    assert step.held_to(None) == (step.CONTENDERS, {})


@pytest.mark.slow
def test_in_mixed_precision_each_competes_twice(bench):
    """All losses are equal, those in bfloat16 up to its rounding."""
    peer("psutil")
    options = ("--contenders", "graphgrad", "--precision", "bfloat16")
    result = bench("step.py", "--json", *TINY, *ONE_TURN, *options)
    contenders = result["models"]["resnet_digits"]["contenders"]
    assert list(contenders) == ["graphgrad", "graphgrad_bfloat16"]
    losses = {name: figures["initial_loss"] for name, figures in contenders.items()}
    assert losses["graphgrad"] != losses["graphgrad_bfloat16"]
    assert losses["graphgrad"] == pytest.approx(losses["graphgrad_bfloat16"], rel=2e-2)


def test_losses_that_differ_by_rounding_end_it_in_full_precision_alone(step):
    def running(**losses):
        return {n: SimpleNamespace(facts={"initial_loss": x}) for n, x in losses.items()}

    step.check_losses(running(graphgrad=1.0, torch_bfloat16=1.01))
    with pytest.raises(SystemExit, match="initial losses differ"):
        step.check_losses(running(graphgrad=1.0, torch=1.01))


def test_report_names_failures_and_loaded_machines(step):
    measured = {
        "includes": "everything",
        "first_step_seconds": 1.0,
        "step_ms": 12.5,
        "ratio_to_graphgrad": None,
        "memory": None,
        "quiet": False,
        "turns_taken": 3,
        "turns": [{"load": 0.75, "step_ms": [12.5]}],
    }
    contenders = {"graphgrad": {"error": "ValueError: no"}, "torch": measured}
    entry = {"batch": 8, "roofline_ms": 5.0, "contenders": contenders}
    text = step.report(
        {
            "models": {"net": entry},
            "machine": {"processor": "P", "cores": 2, "python": "3"},
            "mcpu": "znver4",
            "settings": {"threads": 2},
        }
    )
    assert "net: graphgrad failed: ValueError: no" in text
    assert "net: torch never had the machine to itself" in text
    assert any(
        {"torch", "12.50", "2.50", "0.75"} <= set(line.split()) for line in text.splitlines()
    )


def test_different_initial_losses_end_it(step):
    losses = {"a": 2.3, "b": 2.3001, "c": 2.31}
    running = {name: SimpleNamespace(facts={"initial_loss": x}) for name, x in losses.items()}
    with pytest.raises(SystemExit, match="initial losses differ"):
        step.check_losses(running)
    del running["c"]
    step.check_losses(running)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--models", "alexnet"], r"unknown: \['alexnet'\]; there are .*resnet_digits"),
        (["--contenders", "jax"], r"unknown: \['jax'\]"),
        (["--rounds", "0"], "above zero"),
    ],
)
def test_bad_arguments(step, monkeypatch, capsys, arguments, text):
    monkeypatch.setattr("sys.argv", ["step.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        step.parse_arguments()
    assert re.search(text, capsys.readouterr().err)


def test_missing_torch_names_the_extra(step, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["step.py"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        step.parse_arguments()
    assert "graphgrad[bench]" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["step.py", "--contenders", "graphgrad,tvm"])
    assert step.parse_arguments().contenders == ["graphgrad", "tvm"]


def test_every_spec_writes_a_workload(tmp_path):
    from specs import SPECS, write

    for name, spec in SPECS.items():
        folder = tmp_path / name
        folder.mkdir()
        small = {"layers": 1} if "layers" in spec.settings else {}
        changes = {"batch": 2, "width": 0.125, "settings": spec.settings | small}
        workload = write(dataclasses.replace(spec, **changes), folder)
        images, labels = workload.batch()
        assert images.shape[0] == 2 and labels.shape[0] in (2, images.size)
        assert (images.dtype == np.int64) == bool(spec.words)
        assert workload.weights()


def test_without_a_compiler_of_c_nothing_is_compiled(step, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    settings = SimpleNamespace(threads=1, before=None, isa=None, clock="perf_counter")
    with pytest.raises(step.ContenderError, match=r"needs a C\+\+ compiler: one of g\+\+"):
        step.started("torch_compile", None, settings)
    monkeypatch.setattr(step, "Contender", lambda *given: given)
    given = ("torch", None, 1, step.CONTENDERS, None, "perf_counter", {})
    assert step.started("torch", None, settings) == given


FORMS = [
    {"channels_last": True},
    {"precision": "bfloat16"},
    pytest.param({"compiled": True}, marks=pytest.mark.slow),
    pytest.param({"channels_last": True, "compiled": True}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_torch_trains_alike_in_every_form(tmp_path, form):
    peer("torch")
    from contenders import torch_step
    from specs import SPECS, write

    spec = dataclasses.replace(SPECS["vgg16_cifar"], batch=4, width=0.125)
    workload = write(spec, tmp_path)
    losses = []
    for options in ({}, form):
        run = torch_step.prepare(workload, 1, **options)
        losses.append([run(), run()])
    tolerance = 1e-1 if "precision" in form else 1e-4
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    assert losses[0][1] < losses[0][0]


def test_a_transformer_trains_as_its_twin(tmp_path):
    peer("torch")
    from contenders import ours, torch_step
    from specs import SPECS, write

    spec = SPECS["transformer_encoder"]
    settings = spec.settings | {"layers": 2, "sequence": 12}
    workload = write(dataclasses.replace(spec, batch=2, width=0.125, settings=settings), tmp_path)
    assert workload.batch()[0].shape == (2, 12, 32)
    losses = []
    for prepare, options in [
        (ours.prepare, {}),
        (torch_step.prepare, {}),
        (torch_step.prepare, {"channels_last": True}),
    ]:
        run = prepare(workload, 1, **options)
        losses.append([run() for _ in range(3)])
    assert losses[1] == losses[2]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][2] < losses[0][0]
