import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import campaign
import numpy as np
import pytest

import graphgrad as gg

PROGRAM = """
import sys, time
sys.path.insert(0, {folder!r})
import campaign

def judge(case):
    time.sleep(0.05)

campaign.main(campaign.Campaign("slow", judge), ["--cases", "1000", "--folder", {out!r}])
"""


def refused(case):
    raise gg.errors.ModelError("no such model")


def wrong(case):
    raise campaign.Disagreement("2 is not 1")


def foreign(case):
    return {}["key"]


def killed(case):
    os.kill(os.getpid(), signal.SIGSEGV)


def left(case):
    os._exit(1)  # as LLVM does where it cannot write


def hangs(case):
    (case.folder / "input").write_text("hangs", encoding="utf-8")
    time.sleep(60)


def computes(case):
    while True:
        pass


def grows(case):
    hoard = []
    while True:
        hoard.append(np.ones(4_000_000))


def bursts(case):
    np.ones(40_000_000).sum()  # too short for a look from outside


def runs_out(case):
    raise MemoryError("no 1 TB")


def agrees(case):
    return {"even": 2, "odd": 1}


JUDGES = [agrees, refused, wrong, foreign, killed, left, hangs, grows, bursts, runs_out]
EXPECTED = [
    campaign.AGREE,
    campaign.REFUSED,
    campaign.DISAGREE,
    campaign.FOREIGN,
    campaign.SIGNAL,
    campaign.SIGNAL,
    campaign.OVER_TIME,
    campaign.OVER_MEMORY,
    campaign.OVER_MEMORY,
    campaign.OVER_MEMORY,
]


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """The journal of a case of each kind."""
    every = campaign.Campaign("every", lambda case: JUDGES[case.index](case))
    journal = campaign.Journal(tmp_path_factory.mktemp("out"), "every", 0)
    limit = campaign.pool._Worker(print).resident() / 1e9 + 0.2
    hanging = JUDGES.index(hangs)
    others = [index for index in range(len(JUDGES)) if index != hanging]
    list(campaign.run(every, [hanging], journal, seconds=0.5))
    list(campaign.run(every, others, journal, seconds=300, gigabytes=limit))
    return journal


def test_outcomes(journal):
    outcomes = journal.outcomes()
    assert [outcomes[index].outcome for index in range(len(JUDGES))] == EXPECTED


def test_computing_takes_time_as_waiting_does(tmp_path):
    journal = campaign.Journal(tmp_path, "busy", 0)
    [outcome] = campaign.run(campaign.Campaign("busy", computes), [0], journal, seconds=0.3)
    assert outcome.outcome == campaign.OVER_TIME
    assert outcome.kind.endswith("test_campaign.py:computes")


def test_kinds_name_where_it_failed(journal):
    kinds = {index: outcome.kind for index, outcome in journal.outcomes().items()}
    assert kinds[3].startswith("KeyError") and kinds[3].endswith("test_campaign.py:foreign")
    assert kinds[4].endswith("test_campaign.py:killed")
    assert kinds[6].endswith("test_campaign.py:hangs")
    assert "exit status 1" in journal.outcomes()[5].reason


def test_failing_inputs_are_kept(journal):
    assert [file.read_text() for file in journal.folder.rglob("input")] == ["hangs"]
    assert len(list(journal.folder.rglob("reason.txt"))) == 8
    assert not (journal.folder / "scratch").exists()


def test_report_lists_every_kind(journal):
    result = campaign.summary(campaign.Campaign("every", print), 0, journal)
    assert result["cases"] == len(JUDGES)
    text = campaign.report(result)
    assert "2 is not 1" in text and "ModelError" in text
    assert result["counts"] == {"even": 2, "odd": 1} and "even" in text


def test_a_case_has_one_generator(tmp_path):
    first, again = (campaign.Case("a", 3, 7, tmp_path).rng().integers(1 << 60) for _ in range(2))
    others = [("b", 3, 7), ("a", 4, 7), ("a", 3, 8)]
    assert first == again
    assert all(first != campaign.Case(*o, tmp_path).rng().integers(1 << 60) for o in others)


def test_workers_serve_many_cases(tmp_path):
    def judge(case):
        raise campaign.Disagreement(str(os.getpid()))

    journal = campaign.Journal(tmp_path, "many", 0)
    list(campaign.run(campaign.Campaign("many", judge), range(50), journal))
    assert len({outcome.kind for outcome in journal.outcomes().values()}) <= 2


def test_an_interrupted_run_goes_on(tmp_path):
    """After kill -9, and a torn line, all that was judged counts."""
    text = PROGRAM.format(folder=str(Path(campaign.__file__).parent), out=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", text])
    file = tmp_path / "slow-0" / "journal.jsonl"
    while not file.exists() or file.read_text().count("\n") < 5:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    with open(file, "a", encoding="utf-8") as stream:
        stream.write('{"index": 99')
    before = set(campaign.Journal(tmp_path, "slow", 0).outcomes())
    assert len(before) >= 4 and 99 not in before
    judged = []
    quick = campaign.Campaign("slow", lambda case: None)
    code = campaign.main(quick, ["--cases", "100", "--folder", str(tmp_path)])
    outcomes = campaign.Journal(tmp_path, "slow", 0).outcomes()
    judged = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    assert code == 0 and set(outcomes) == set(range(100))
    assert sum("index" in line for line in judged) == 100  # none was judged twice
    assert sum("run" in line for line in judged) == 2


def test_failures_are_judged_again_if_asked(tmp_path, capsys):
    options = ["--cases", "4", "--folder", str(tmp_path), "--json"]
    assert campaign.main(campaign.Campaign("mend", foreign), options) == 1
    assert campaign.main(campaign.Campaign("mend", lambda case: None), options) == 1
    assert campaign.main(campaign.Campaign("mend", lambda case: None), [*options, "--again"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["outcomes"]["agree"] == 4


def test_one_case_is_shown(tmp_path, capsys):
    options = ["--only", "2", "--folder", str(tmp_path)]
    assert campaign.main(campaign.Campaign("one", foreign), options) == 1
    assert "KeyError" in capsys.readouterr().out


def test_a_tally_adds_up_over_seeds(tmp_path):
    tally = tmp_path / "tally.json"
    good = campaign.Campaign("sum", lambda case: None)
    for seed, cases in ((0, 6), (1, 4), (0, 8)):
        options = ["--cases", str(cases), "--seed", str(seed), "--tally", str(tally)]
        campaign.main(good, [*options, "--folder", str(tmp_path / "out")])
    seeds = json.loads(tally.read_text())["sum"]
    assert {seed: entry["cases"] for seed, entry in seeds.items()} == {"0": 8, "1": 4}
    assert seeds["0"]["versions"]["numpy"] == np.__version__


def test_a_worker_that_waits_for_its_own_thread_is_not_idle():
    """Else the time in which the thread waits for a core would count as the case's."""

    def wait_for_thread(case):
        thread = threading.Thread(target=computes, args=[case])
        thread.start()
        thread.join()

    worker = campaign.pool._Worker(wait_for_thread)
    try:
        worker.begin(None)
        while worker._usage()[0] < 0.2:  # until it computes
            time.sleep(0.05)
        runnable = [worker._usage()[1] for _ in range(20)]
        assert sum(runnable) > 10
    finally:
        worker.end()
