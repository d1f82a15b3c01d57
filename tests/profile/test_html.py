"""Reports as pages, opened without a network in a headless browser."""

import json
import re
import time

import numpy as np
import pytest
from onnx import helper

import graphgrad as gg
from graphgrad import models
from graphgrad.profile.html import check_report_path, report_page, write_report
from graphgrad.profile.memory import LiveTensor, MemoryTimeline
from graphgrad.profile.profile import KernelTime, Profile
from graphgrad.report.graph import Subject
from tests.browser import Browser
from tests.frontend.graphs import model_of

CHOSEN = "document.querySelector('#graph .chosen title').textContent"
DETAILS = "document.getElementById('details').innerText"
FIGURES = "[...document.querySelectorAll('#graph text.figure')].map(e => e.textContent)"
FILLS = "[...document.querySelectorAll('#graph .node rect')].map(e => getComputedStyle(e).fill)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def view(browser, tmp_path):
    """Opens the text of a page; the console must stay silent, and the network unused."""

    def view(text):
        path = tmp_path / "page.html"
        path.write_text(text, "utf-8")
        browser.complaints.clear()
        browser.requests.clear()
        browser.open(path)
        return browser

    yield view
    assert browser.complaints == []
    assert {address.partition(":")[0] for address in browser.requests} <= {"file", "data"}


@pytest.fixture(scope="module")
def profiled():
    step = gg.train_step(gg.from_onnx(models.mlp((5, 7, 3))))
    generator = np.random.default_rng(0)
    images = generator.standard_normal((4, 5), np.float32)
    return gg.profile(step, images, generator.integers(0, 3, 4), steps=1)


def choose_color(browser, name):
    browser.run(
        f"(s => {{ s.value = '{name}'; s.dispatchEvent(new Event('change')); }})"
        "(document.getElementById('color'))"
    )


def page_of(model, profile=None, why_none=""):
    subject = Subject(model, tuple(model.trainable()))
    return report_page("a model", subject, subject.coverage(), profile, why_none)


def made_up_profile(subject):
    """A profile in which each node of a file has a kernel forward and one backward."""
    names = [node.name for node in subject.model.proto.graph.node]
    kernels = [
        KernelTime(
            "k", 1e-3 * (1 + call % 7), phase, "Op", (name,), ("hand",) * back, call, 1000, ()
        )
        for back, phase in enumerate(["forward", "backward"])
        for call, name in enumerate(names[:: 1 - 2 * back], back * len(names))
    ]
    sizes = tuple(1_000_000 * (1 + min(call, len(kernels) - call)) for call in range(len(kernels)))
    at_peak = tuple(LiveTensor(name, 1_000_000, "value", call) for call, name in enumerate(names))
    memory = MemoryTimeline(sizes, (0,) * len(kernels), 500_000, len(names), at_peak)
    return Profile("cpu:0", 1.0, (0.5,), tuple(kernels), 0.001, memory, subject)


def test_the_page_and_the_trace_are_written(profiled, tmp_path):
    (tmp_path / "step.html").write_text("an old one")
    text = profiled.to_html(tmp_path / "step.html")
    assert (tmp_path / "step.html").read_text("utf-8") == text
    trace = json.loads((tmp_path / "step.trace.json").read_text())
    assert sum(e["ph"] == "X" for e in trace["traceEvents"]) > len(profiled.kernels)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step.html", "step.trace.json"]
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []


def test_a_page_without_a_file(profiled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert profiled.to_html().startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == []


def test_a_node_is_found(profiled, view):
    browser = view(profiled.to_html())
    browser.type("#search", "fc2")
    assert browser.run("document.getElementById('matches').textContent").startswith("1 of ")
    assert "fc2" in browser.run(CHOSEN)
    details = browser.run(DETAILS)
    assert "fc2.weight" in details and "relax.matmul: hand" in details and "backward" in details
    assert browser.run("document.querySelectorAll('#graph .dim').length") > 0
    browser.type("#search", "no such node")
    assert browser.run("document.getElementById('matches').textContent").startswith("0 of ")


def test_enter_goes_to_the_next_match(profiled, view):
    browser = view(profiled.to_html())
    browser.type("#search", "gemm")
    first = browser.run(CHOSEN)
    browser.press_enter()
    second = browser.run(CHOSEN)
    browser.press_enter()
    assert first != second and browser.run(CHOSEN) == first


def test_neighbors_are_a_click_away(profiled, view):
    browser = view(profiled.to_html())
    browser.type("#search", "fc2")
    browser.run("document.querySelector('#details button').click()")
    assert "Relu" in browser.run(CHOSEN)


def test_colors(profiled, view):
    browser = view(profiled.to_html())
    by_origin = browser.run(FILLS)
    assert set(browser.run(FIGURES)) == {""}
    assert "rule of graphgrad's" in browser.run("document.getElementById('legend').innerText")
    choose_color(browser, "time")
    by_time = browser.run(FILLS)
    assert sum(text.endswith(" ms") for text in browser.run(FIGURES)) >= 3
    assert by_time != by_origin and len(set(by_time)) > 2
    choose_color(browser, "memory")
    assert browser.run(FILLS) != by_time
    assert any(text.endswith(" MB") for text in browser.run(FIGURES))


def test_memory_and_tables(profiled, view):
    browser = view(profiled.to_html())
    memory = browser.run("document.getElementById('memory').innerText")
    peak = profiled.memory.peak
    assert f"kernel {peak + 1} of {len(profiled.kernels)}, the peak" in memory
    bars = browser.run("document.querySelectorAll('#memory svg rect').length")
    assert bars == len(profiled.kernels)
    slowest = browser.run("document.querySelector('#nodes table').innerText")
    assert "fc1" in slowest and "Gemm" in slowest
    classes = browser.run("document.querySelectorAll('#classes tr').length")
    assert classes == 1 + len(profiled.classes)
    assert "every weight trains" in browser.run("document.getElementById('untrained').innerText")


def test_what_does_not_train_is_told(view):
    model = gg.from_onnx(models.resnet_digits())
    frozen = next(name for name in model.params if name.startswith("conv1"))
    browser = view(page_of(model.freeze(frozen), None, "no step was made"))
    text = browser.run("document.getElementById('untrained').innerText")
    assert re.search(rf"frozen: 1\s+name\s+type\s+{re.escape(frozen)}\s+float32\[", text)
    assert f"batch norms update: {len(model.state)}" in text and "not needed" in text
    for section in ("nodes", "classes"):
        assert "no step was made" in browser.run(f"document.getElementById('{section}').innerText")
    choose_color(browser, "time")
    assert "no step was made" in browser.run("document.getElementById('legend').innerText")


@pytest.mark.parametrize(
    "name", ["</script><script>throw 1</script>", "<img src=x onerror=alert(1)>", "a'b\"c&d e#%"]
)
def test_names_are_only_ever_text(view, name):
    nodes = [helper.make_node("Relu", ["x"], ["y"], name=name)]
    proto = model_of(nodes, {"x": [2]}, {"y": [2]})
    proto.graph.name = name
    browser = view(page_of(gg.from_onnx(proto)))
    browser.type("#search", name)
    assert browser.run(CHOSEN) == f"Relu {name}"
    assert browser.run("document.querySelectorAll('img, script').length") == 2
    link, details = browser.run("location.hash"), browser.run(DETAILS)
    browser.run("document.querySelector('#details').replaceChildren()")
    browser.run("location.hash = ''")
    browser.run(f"location.hash = {json.dumps(link)}")
    assert browser.run(f"new Promise(done => setTimeout(() => done({DETAILS})))") == details


def test_a_large_model_opens_fast(view):
    model = gg.from_onnx(models.resnet50(size=32))
    subject = Subject(model, tuple(model.trainable()))
    text = report_page("ResNet-50", subject, subject.coverage(), made_up_profile(subject))
    assert len(text) < 1_000_000
    start = time.perf_counter()
    browser = view(text)
    assert time.perf_counter() - start < 10
    assert browser.run("document.querySelectorAll('#graph .node').length") > 120
    last = [node.name for node in model.proto.graph.node if node.op_type == "Conv"][-1]
    browser.type("#search", last)
    assert last in browser.run(CHOSEN)
    top = "document.querySelector('#graph .chosen').getBoundingClientRect().top"
    assert 0 < browser.run(top) < browser.run("innerHeight")
    browser.run("document.getElementById('fit').click()")
    fits = "document.getElementById('graph')"
    assert browser.run(f"{fits}.scrollHeight <= {fits}.clientHeight + 1")


def test_what_has_no_gradient_is_told(view, monkeypatch):
    from tests.unknown_ops import take_away

    take_away(monkeypatch, "relax.nn.relu")
    browser = view(page_of(gg.from_onnx(models.mlp((4, 5, 3)))))
    assert "missing at 1 node(s)" in browser.run("document.getElementById('tiles').innerText")
    assert "missing" in browser.run("document.getElementById('legend').innerText")
    assert "relax.nn.relu" in browser.run("document.getElementById('untrained').innerText")


@pytest.mark.parametrize(
    "path, error",
    [("a.txt", "must end in .html or .htm"), ("none/a.html", "none is none"), ("b.html", "folder")],
)
def test_bad_paths_are_refused_before_anything_is_written(tmp_path, path, error):
    (tmp_path / "b.html").mkdir()
    with pytest.raises(gg.ArgumentError, match=error):
        check_report_path(tmp_path / path)
    with pytest.raises(gg.ArgumentError, match=error):
        write_report(tmp_path / path, "text", None)
    assert [p.name for p in tmp_path.iterdir()] == ["b.html"]
