"""The costliest calls, and what falls short."""

from budget import Budget, costliest, shortfalls

from graphgrad.lower.cuda.costs import Cost


def test_the_costliest_call_comes_first():
    calls = [Cost("short", 1, 10, 1e-6), Cost("long", 1, 20_000_000, 5e-6)] + [
        Cost("often", 1, 30, 2e-6)
    ] * 4
    lines = costliest(calls, 2).splitlines()
    assert [line.split()[-1] for line in lines] == ["often", "long"]
    assert "4 x" in lines[0]
    assert "20.0 MB" in lines[1]


def test_what_is_worse_than_the_ratchet_is_named():
    known = {"net bfloat16 sm_90": {"kernels": 10, "gigabytes": 1.0, "milliseconds": 1.0}}
    better = Budget("net", "bfloat16", "sm_90", 9, 3, 10, 0.5, 0.9)
    worse = Budget("net", "bfloat16", "sm_90", 9, 3, 10, 1.5, 0.9)
    new = Budget("other", "bfloat16", "sm_90", 9, 3, 10, 1.5, 0.9)
    assert not shortfalls([better], known)
    assert [line.split()[-4] for line in shortfalls([worse], known)] == ["1.5"]
    assert "--ratchet" in shortfalls([new], known)[0]
