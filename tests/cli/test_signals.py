import signal

import pytest

from graphgrad.cli.signals import STOPPING, exit_code, interruptible


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143),
                                          (signal.SIGHUP, 129)])  # fmt: skip
def test_signals_ask_to_stop(number, code):
    before = [signal.getsignal(each) for each in STOPPING]
    with interruptible() as stop_signal:
        assert stop_signal() is None
        signal.raise_signal(number)
        assert stop_signal() == number
        assert exit_code(number) == code
    assert [signal.getsignal(each) for each in STOPPING] == before


def test_ctrl_c_after_any_signal_stops_at_once():
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_a_second_signal_of_a_machine_that_shuts_down_leaves_the_time_to_save():
    with interruptible() as stop_signal:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        assert stop_signal() == signal.SIGHUP


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as stop_signal:
            signal.raise_signal(signal.SIGHUP)
            assert stop_signal() is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
