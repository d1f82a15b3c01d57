import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.peers import peer


@pytest.fixture
def kernels():
    peer("psutil")
    import kernels

    return kernels


@pytest.fixture(scope="module")
def contenders():
    peer("torch")
    from contenders import kernels_ours, kernels_torch

    return kernels_ours, kernels_torch


def small_cases():
    from kernel_cases import Case, Convolution, Product

    images = [
        Convolution(2, 5, 7, 6, 3, 1, 1),
        Convolution(2, 4, 7, 6, 3, 2, 1),
        Convolution(2, 6, 5, 6, 3, 1, 1, groups=6),
    ]
    products = [Product(5, 7, 3), Product(5, 7, 3, "NT"), Product(5, 7, 3, "TN", batch=2)]
    return [Case(work, part) for work in (*images, *products) for part in work.PARTS]


@pytest.mark.parametrize("case", small_cases(), ids=lambda case: f"{case.work.name} {case.part}")
def test_contenders_compute_the_same(contenders, case):
    ours, other = contenders
    found = [
        other.prepare(case, threads=1)[1](),
        other.prepare(case, threads=1, channels_last=True)[1](),
        ours.prepare(case, threads=1)[1](),
        ours.prepare(case, threads=1, rules="derived")[1](),
    ]
    assert found[0].shape == case.work.shapes[case.writes]
    for values in found[1:]:
        np.testing.assert_allclose(values, found[0], rtol=1e-5, atol=1e-5)


def test_a_gradient_alone_takes_what_it_reads(contenders):
    ours, _ = contenders
    for case in small_cases()[:6]:
        params = ours.program(case, "auto")["main"].params
        assert params[0].name == case.reads[0]
        assert len(params) == 2


@pytest.mark.slow
def test_json_form(bench):
    peer("psutil")
    peer("torch")
    told = bench(
        *("kernels.py", "--json", "--groups", "sgemm,derived", "--threads", "1", "--cpu-time"),
        *("--match", "^64x64x64 NT|^16x128x64x128 NN data", "--rounds", "1"),
    )
    assert told["benchmark"] == "kernels" and told["peaks"]["1"]["gflops"] > 1
    product, batch = told["cases"]
    assert product["name"] == "64x64x64 NT" and product["groups"] == ["sgemm"]
    assert list(product["contenders"]) == ["graphgrad", "torch"]
    assert list(batch["contenders"]) == ["graphgrad", "graphgrad derived", "torch"]
    for found in (*product["contenders"].values(), *batch["contenders"].values()):
        assert found["gflops"] > 0 and found["ms"] > 0 and found["of_roofline"] > 0
        assert found["turns_taken"] == len(found["loads"]) == 1
    assert told["summary"].keys() == {"sgemm forward", "derived data"}


def test_a_wrong_kernel_has_no_time(kernels, monkeypatch, tmp_path):
    from kernel_cases import Case, Product
    from kernel_entrants import REFERENCE, Entrant

    case = Case(Product(2, 2, 2), "forward")
    values = {REFERENCE: np.eye(2), "right": np.eye(2) + 1e-6, "wrong": np.eye(2) + 1e-3}
    values |= {"undefined": np.full((2, 2), np.nan), "other": np.eye(3)}

    def prepared(entrant, case, file):
        np.save(file, values[entrant.name])
        return SimpleNamespace(pid=0, run=lambda timed, untimed=0: [1.0] * timed)

    forgotten = []
    pool = SimpleNamespace(
        all=[Entrant(name, "", 1) for name in values],
        prepared=prepared,
        forget=forgotten.extend,
    )
    monkeypatch.setattr("field.LoadMeter", lambda pid: SimpleNamespace(foreign_cores=lambda: 0.0))
    monkeypatch.setattr("sys.argv", ["kernels.py", "--rounds", "1"])
    peaks = {"1": {"gflops": 1.0, "gb_per_s": 1.0}}
    arguments = kernels.parse_arguments()
    found = kernels.measure(case, False, pool, peaks, arguments, tmp_path)["contenders"]
    assert found["right"]["ms"] == found[REFERENCE]["ms"] == 1000
    assert "differ from torch's by 1.0e-03" in found["wrong"]["error"]
    assert "ms" not in found["undefined"] and "inf" in found["other"]["error"]
    assert set(forgotten) == {"wrong", "undefined", "other"}
    assert not list(tmp_path.iterdir())


def test_report_names_the_slowest_and_the_failed(kernels):
    def figures(ms):
        return {"ms": ms, "gflops": 1 / ms, "of_peak": 0.5, "of_roofline": 0.6, "quiet": ms < 3}

    def entry(name, **contenders):
        return {"name": name, "part": "data", "groups": ["net"], "contenders": contenders}

    cases = [
        entry("slow", graphgrad=figures(2), torch=figures(1)),
        entry("fast", graphgrad=figures(2), torch=figures(4)),
        entry("bad", graphgrad={"error": "ValueError: no"}, torch=figures(1)),
    ]
    summary = kernels.summary(cases)
    assert summary == {
        "net data": {
            "cases": 3,
            "failed": 1,
            "mean_ratio": pytest.approx(1.0),
            "least_ratio": 0.5,
            "least_of": "slow data",
            "below_0.9": 1,
            "mean_of_peak": 0.5,
        }
    }
    text = kernels.report(
        {
            "cases": cases,
            "summary": summary,
            "peaks": {"2": {"gflops": 100.0, "gb_per_s": 10.0}},
            "machine": {"processor": "P", "cores": 2, "python": "3"},
            "settings": {"threads": 2},
        }
    )
    assert "bad data: graphgrad failed: ValueError: no" in text
    assert "others kept the machine busy during: fast data" in text
    assert "peak of 2 thread(s): 100 GFLOP/s" in text and json.dumps(summary)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--groups", "alexnet"], r"unknown: \['alexnet'\]"),
        (["--cpu-time", "--threads", "2"], "--cpu-time adds up"),
        (["--cpu-time", "--threads", "1", "--scaling"], "--cpu-time adds up"),
    ],
)
def test_bad_arguments(kernels, monkeypatch, capsys, arguments, text):
    import re

    monkeypatch.setattr("sys.argv", ["kernels.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        kernels.parse_arguments()
    assert re.search(text, capsys.readouterr().err)


def test_quick_takes_few_cases_of_each_group(kernels, monkeypatch):
    monkeypatch.setattr("sys.argv", ["kernels.py", "--quick", "--groups", "sgemm,depthwise"])
    chosen = kernels.chosen_cases(kernels.parse_arguments())
    groups = [groups[0] for groups in chosen.values()]
    assert groups.count("sgemm") == groups.count("depthwise") == kernels.QUICK_CASES
