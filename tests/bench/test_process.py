import os
import signal
import sys
from dataclasses import replace

import pytest
from contenders import CONTENDERS
from process import Contender, ContenderError
from workload import Workload

from tests.peers import peer


@pytest.fixture
def workload(tmp_path):
    from specs import SPECS, write

    digits = SPECS["resnet_digits"]
    return write(replace(digits, batch=2, width=0.0625), tmp_path)


def process_state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.fixture
def contender(workload):
    peer("torch")
    started = Contender("torch", workload, 1, CONTENDERS)
    yield started
    started.close()


def test_runs_only_in_its_turn(contender):
    assert process_state(contender.pid) == "T"
    assert len(contender.run(timed=3, untimed=1)) == 3
    assert process_state(contender.pid) == "T"
    assert contender.memory["peak_growth_mb"] >= contender.memory["growth_mb"]


def test_a_crash_is_an_error_with_the_status(contender):
    os.kill(contender.pid, signal.SIGKILL)
    with pytest.raises(ContenderError, match="status -9"):
        contender.run(timed=1)


def test_a_hanging_process_is_an_error():
    from process import Stepping

    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(ContenderError, match="no answer within 1 s"):
        Stepping("sleeper", command, {}, limit=1.0)


def test_a_failing_start_is_an_error_with_its_message(tmp_path):
    peer("torch")
    with pytest.raises(ContenderError, match=r"FileNotFoundError.*model\.onnx"):
        Contender("torch", Workload(tmp_path), 1, CONTENDERS)
