import dataclasses

import pytest
import scaling
from parallel_regions import Cores, Region, predicted, regions_of
from tvm.script.parser import tirx as T

MACHINE = Cores(core_bandwidth=1e9, saturating=4.0, launch=0.0, round_trip=0.0, wake=0.0)


@T.prim_func(s_tir=True)
def kernel(x: T.Buffer((64, 32), "float32"), y: T.Buffer((64, 32), "float32")):
    for _ in T.serial(3):
        for i in T.parallel(8):
            for j in T.serial(8):
                for k in T.vectorized(32):
                    y[i * 8 + j, k] = x[i * 8 + j, k]
    for i in T.serial(4):
        for k in T.vectorized(32):
            y[i, k] = x[i, k]
    for i in T.parallel(4):
        for j in T.parallel(1):
            y[i, j] = x[i, j]


def test_regions_are_the_parallel_loops_and_the_serial_rest():
    # In vectors of 16: 3 · 8 · 8 · 2 stores, 4, and 4 · 2.
    total = 384 + 4 + 8
    assert regions_of(kernel, 16) == [
        Region(8, 3, pytest.approx(384 / total)),
        Region(4, 1, pytest.approx(4 / total)),
        Region(1, 0, pytest.approx(8 / total)),
    ]


def test_serial_code_scales_as_amdahl_says():
    found = predicted(1.0, 0, [Region(1024, 1, 0.9), Region(1, 0, 0.1)], 64, MACHINE)
    assert found.total == pytest.approx(0.1 + 0.9 / 64)
    assert found.lost == pytest.approx(found.serial)


def test_a_function_that_is_no_kernel_is_serial():
    assert predicted(1.0, 0, [], 64, MACHINE).total == pytest.approx(1.0)


@pytest.mark.parametrize(("cores", "seconds"), [(1, 1.0), (2, 0.6), (4, 0.4), (5, 0.2), (64, 0.2)])
def test_the_core_with_most_tasks_is_waited_for(cores, seconds):
    found = predicted(1.0, 0, [Region(5, 1, 1.0)], cores, MACHINE)
    assert found.total == pytest.approx(seconds)
    assert found.serial == found.barriers == 0


def test_launches_take_longer_with_more_cores_and_are_part_of_the_time_on_one():
    machine = dataclasses.replace(MACHINE, launch=0.001, round_trip=0.01, wake=0.001)
    regions = [Region(64, 100, 1.0)]
    assert predicted(1.0, 0, regions, 1, machine).total == pytest.approx(1.0)
    assert predicted(1.0, 0, regions, 4, machine).total == pytest.approx(0.9 / 4 + 100 * 0.013)


@pytest.mark.parametrize(("cores", "seconds"), [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.25)])
def test_memory_saturates(cores, seconds):
    found = predicted(1.0, 2e9, [Region(64, 1, 1.0)], cores, MACHINE)
    assert found.total == pytest.approx(seconds)


def test_report_has_the_prediction_the_check_and_the_kernels_that_lose_most():
    calls = [
        {"kernel": "few", "seconds": 0.02, "bytes": 0, "regions": [(4, 1, 1.0)]},
        {"kernel": "many", "seconds": 0.02, "bytes": 0, "regions": [(1024, 1, 1.0)]},
    ]
    cores = {count: scaling.totals(calls, 0.01, count, MACHINE) for count in (1, 64)}
    assert cores[1]["seconds"] == pytest.approx(0.05)
    assert cores[64]["seconds"] == pytest.approx(0.01 + 0.02 / 4 + 0.02 / 64)
    two = [call | {"seconds": 0.01} for call in calls]
    found = scaling.check(calls, two, MACHINE)
    assert found["mean_error_of_kernels"] == pytest.approx(0)
    entry = {
        "batch": 8,
        "machine": vars(MACHINE),
        "cores": cores,
        "check": found,
        "worst": scaling.worst(calls, 64, MACHINE),
    }
    machine = {"processor": "P", "cores": 2, "load_average": [0.0]}
    text = scaling.report({"models": {"net": entry}, "machine": machine})
    assert "predicted 20.0, measured 20.0" in text
    assert text.index("few") < text.index("many")


def test_a_check_of_different_kernels_ends():
    one, two = ([{"kernel": name, "seconds": 1, "bytes": 0, "regions": []}] for name in "ab")
    with pytest.raises(SystemExit, match="kernels"):
        scaling.check(one, two, MACHINE)


@pytest.mark.slow
def test_json_form(bench):
    result = bench("scaling.py", "--json", "--models", "resnet_digits", "--steps", "1")
    entry = result["models"]["resnet_digits"]
    assert [int(cores) for cores in entry["cores"]] == list(scaling.CORES)
    assert all(each["seconds"] > 0 for each in entry["cores"].values())
    assert entry["check"]["measured_seconds"] > 0
    tasks = [region[0] for kernel in entry["worst"] for region in kernel["regions"]]
    assert max(tasks) > 1
