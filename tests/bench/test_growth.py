import growth
import pytest

TINY = (
    *("--depths", "resnet18", "--image", "32", "--depth-batch", "1"),
    *("--batches", "2", "--width", "0.0625", "--steps", "1"),
)


@pytest.mark.slow
def test_json_form(bench):
    result = bench("growth.py", "--json", *TINY)
    assert result["benchmark"] == "growth"
    assert result["machine"].keys() >= {"processor", "cores", "load_average"}
    assert [entry["batch"] for entry in result["depth"]] == [1]
    assert [entry["batch"] for entry in result["batch"]] == [2]
    for entry in (*result["depth"], *result["batch"]):
        assert entry["network"] == "resnet18"
        assert entry["operators"] > 40
        assert entry["first_step_seconds"] > 0 and entry["step_ms"] > 0


def test_report_has_a_row_for_each_network():
    entry = {
        "network": "resnet18",
        "batch": 8,
        "operators": 69,
        "giga_multiplications": 2.0,
        "first_step_seconds": 6.9,
        "first_step_ms_per_operator": 100.0,
        "step_ms": 50.0,
        "step_ms_per_giga_multiplication": 25.0,
    }
    machine = {"processor": "P", "cores": 2, "load_average": [0.0]}
    result = {
        "depth": [entry],
        "batch": [entry | {"batch": 16}],
        "machine": machine,
        "image": 112,
        "steps": 5,
    }
    lines = growth.report(result).splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["resnet18", "8"], ["resnet18", "16"]]


def test_an_import_is_measured_and_reported(tmp_path):
    entry = growth.measure_import(growth.chain(20), tmp_path / "model.onnx")
    assert entry["operators"] == 21
    assert entry["seconds"] > 0 and entry["processor_seconds"] > 0
    machine = {"processor": "P", "load_average": [0.0]}
    result = {"imports": {"chain": entry}, "machine": machine}
    assert growth.report_imports(result).splitlines()[2].split()[:3] == ["chain", "0.0", "21"]
