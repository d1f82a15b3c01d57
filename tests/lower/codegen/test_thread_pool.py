import threading

import pytest

from graphgrad.lower.codegen.thread_pool import map_in_threads


def test_results_come_in_the_order_of_the_items():
    assert map_in_threads(lambda item: item * item, [3, 1, 2]) == [9, 1, 4]


def test_all_items_are_worked_on_at_once():
    """Each waits for the others, which one thread could not."""
    everybody = threading.Barrier(3, timeout=60)
    threads = map_in_threads(lambda _: (everybody.wait(), threading.current_thread())[1], range(3))
    assert len(set(threads)) == 3
    assert threading.current_thread() not in threads


def test_errors_pass_through():
    def work(item):
        if item:
            raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 1"):
        map_in_threads(work, [0, 1, 2])


def test_other_threads_keep_their_stacks():
    before = threading.stack_size()
    map_in_threads(abs, [1, 2])
    assert threading.stack_size() == before
