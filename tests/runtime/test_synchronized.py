"""What one thread does with a step waits for what another does: they share memory and frames."""

import threading

import pytest

from graphgrad.runtime.synchronized import Synchronized, one_at_a_time
from tests.labels import label
from tests.runtime.data import BATCH


def call(step, path):
    step(*BATCH)


def evaluate(step, path):
    step.evaluate(BATCH[0])


def save(step, path):
    step.save(path / "state")


def load(step, path):
    step.load(path / "saved")


def discard(step, path):
    step.discard()


def read_params(step, path):
    assert step.params


def read_statistics(step, path):
    assert not step.state


def read_buffers(step, path):
    assert step.optimizer_state


def count(step, path):
    assert step.skipped == 0


def set_rate(step, path):
    step.learning_rate = 0.5


def export(step, path):
    step.export(path / "export")


USES = [call, evaluate, save, load, discard, count, set_rate]
USES += [read_params, read_statistics, read_buffers]


def test_a_method_calls_others():
    class Counter(Synchronized):
        @one_at_a_time
        def twice(self):
            return self.once() + self.once()

        @one_at_a_time
        def once(self):
            return 1

    assert Counter().twice() == 2


@pytest.mark.parametrize("use", [*USES, export], ids=label)
def test_a_step_serves_one_thread_at_a_time(original, tmp_path, use):
    check_waits(original, use, tmp_path)


@pytest.mark.parametrize("use", USES, ids=label)
def test_an_exported_step_serves_one_thread_at_a_time(exported, tmp_path, use):
    check_waits(exported, use, tmp_path)


def check_waits(step, use, path):
    step.save(path / "saved")
    done = []

    def work():
        use(step, path)
        done.append(use)

    thread = threading.Thread(target=work)
    with step._calls:
        thread.start()
        thread.join(0.1)
        assert thread.is_alive() and not done
    thread.join(60)
    assert done
