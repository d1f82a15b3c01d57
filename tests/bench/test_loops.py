import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.peers import peer

TINY = ("--batch", "2", "--steps", "3", "--width", "5", "--vocabulary", "7")
ONE_TURN = ("--rounds", "1", "--attempts", "1", "--turn-seconds", "0", "--pause", "0")


@pytest.fixture
def loops():
    peer("psutil")
    import loops

    return loops


@pytest.mark.slow
def test_json_form(bench):
    peer("psutil")
    peer("torch")
    options = ("--contenders", "graphgrad,torch", "--loops", "selective_scan")
    result = bench("loops.py", "--json", *TINY, *ONE_TURN, *options)
    assert result["benchmark"] == "loops" and result["settings"]["steps"] == [3]
    (entry,) = result["loops"]
    assert (entry["batch"], entry["width"]) == (2, 5)
    assert entry["ratio"] > 0 and entry["memory_ratio"] > 0
    assert list(entry["contenders"]) == ["graphgrad", "torch", "copy"]
    for figures in entry["contenders"].values():
        assert figures["step_ms"] > 0 and len(figures["turns"]) == 1


LONG = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("lstm", "rnn", "bidirectional_lstm", "bidirectional_rnn", "layer_norm_cell")
]


@pytest.mark.parametrize("name", ["gru", "bidirectional_gru", "lstm_layer", *LONG])
def test_contenders_agree(loops, tmp_path, name):
    peer("torch")
    from contenders import loops_ours, loops_torch

    tiny = {"batch": 2, "steps": 3, "width": 5, "vocabulary": 7}
    workload = dataclasses.replace(loops.LOOPS[name], **tiny).write(tmp_path)
    first = {}
    for contender, module in (("graphgrad", loops_ours), ("torch", loops_torch)):
        step = module.prepare(workload, 1)
        first[contender] = {"initial_loss": step()}
        np.savez(tmp_path / f"{contender}.npz", **step.gradients())
    loops.check_agreement(first, tmp_path)


@pytest.mark.parametrize(
    "loss, gradients, text",
    [
        (1.01, {"w": np.ones(3)}, "initial losses differ"),
        (1.0, {"w": np.array([1, 1, 1.01])}, "that of w by graphgrad is"),
        (1.0, {"w": np.array([1, 1, np.nan])}, "that of w by graphgrad is"),
        (1.0, {"v": np.ones(3)}, "has gradients by"),
    ],
    ids=["loss", "gradient", "nan", "name"],
)
def test_what_differs_is_not_timed(loops, tmp_path, loss, gradients, text):
    first = {"torch": {"initial_loss": 1.0}, "graphgrad": {"initial_loss": loss}}
    np.savez(tmp_path / "torch.npz", w=np.ones(3))
    np.savez(tmp_path / "graphgrad.npz", **gradients)
    with pytest.raises(SystemExit, match=text):
        loops.check_agreement(first, tmp_path)


def test_extents_of_the_command_line_are_combined(loops, monkeypatch):
    peer("torch")
    given = ["--loops", "lstm,rnn", "--batch", "1,16", "--steps", "8", "--contenders", "torch"]
    monkeypatch.setattr("sys.argv", ["loops.py", *given])
    arguments = loops.parse_arguments()
    chosen = [(name, loop.batch, loop.steps) for name, loop in loops.chosen_loops(arguments)]
    assert chosen == [("lstm", 1, 8), ("lstm", 16, 8), ("rnn", 1, 8), ("rnn", 16, 8)]
    entry = {"kind": "selective scan"}
    assert "copy" in loops.chosen_contenders(SimpleNamespace(**entry), arguments)


def figures(ms, megabytes):
    return {
        "step_ms": ms,
        "memory": {"peak_growth_mb": megabytes},
        "first_step_seconds": 2.0,
        "first_step_again_seconds": 1.0,
        "quiet": True,
        "turns": [{"load": 0.05, "step_ms": [ms]}],
    }


def test_report_compares_with_torch_at_its_best_and_loops_with_each_other(loops):
    def entry(name, ours, **others):
        contenders = {"graphgrad": figures(ours, 30), **others}
        measured = dataclasses.asdict(loops.LOOPS[name]) | {"loop": name, "contenders": contenders}
        return measured | loops.ratios(contenders)

    torch = {"torch": figures(40, 10), "torch_compile": figures(20, 20)}
    result = {
        "loops": [
            entry("lstm", 10, **torch),
            entry("gru", 40, **torch),
            entry("lstm_layer", 8),
            entry("layer_norm_cell", 10, torch={"error": "no"}),
            entry("selective_scan", 6, copy=figures(2, 1)),
        ],
        "machine": {"processor": "P", "cores": 2, "python": "3"},
        "settings": {"threads": 2},
    }
    text = loops.report(json.loads(json.dumps(result)))
    lstm = next(line for line in text.splitlines() if line.startswith("lstm, batch 16, 64 steps"))
    assert lstm.endswith("30        1.50           2.0      1.0  0.05")
    assert lstm.split()[-9:-5] == ["10.00", "40.00", "20.00", "0.50"]
    assert "language models, one direction: 1.00 as a geometric mean" in text
    assert "1.25 of the layer" in text and "3.0 of a copy" in text
    assert "torch failed: no" in text
