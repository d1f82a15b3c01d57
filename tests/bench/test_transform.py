import math

import pytest
import transform

TINY = ("--sizes", "12,6", "--repeats", "1", "--image", "32")


@pytest.mark.slow
def test_json_form(bench):
    result = bench("transform.py", "--json", *TINY)
    assert result["benchmark"] == "transform"
    assert result["machine"].keys() >= {"processor", "cores", "python", "load_average"}
    assert result["versions"].keys() >= {"graphgrad", "apache-tvm"}
    assert [entry["chain"] for entry in result["chains"]] == list(transform.CHAINS)
    for entry in result["chains"]:
        assert entry["sizes"] == [6, 12]
        assert len(entry["seconds"]) == len(entry["microseconds_per_op"]) == 2
        assert math.isfinite(entry["growth_exponent"])
    network = result["resnet50"]
    assert network["parameters"] == 161
    assert network["gradient_ops"] > network["ops"] > 100
    assert network["import_seconds"] > 0 and network["differentiate_seconds"] > 0


def test_report_has_a_row_for_each_measurement():
    chains = [
        {
            "chain": name,
            "sizes": [10, 100],
            "seconds": [0.5, 5.0],
            "microseconds_per_op": [5e4, 5e4],
            "growth_exponent": 1.0,
        }
        for name in transform.CHAINS
    ]
    network = {
        "ops": 177,
        "differentiate_seconds": 0.25,
        "import_seconds": 0.125,
        "microseconds_per_op": 1412.0,
        "gradient_ops": 1728,
        "parameters": 161,
    }
    machine = {"processor": "P", "cores": 2, "python": "3", "load_average": [0.0]}
    result = {"chains": chains, "resnet50": network, "machine": machine, "repeats": 3}
    lines = transform.report(result).splitlines()
    assert sum(line.startswith("tanh") for line in lines) == 2
    assert "1.00" in next(line for line in lines if line.startswith("tanh") and "100" in line)
    assert any(line.startswith("ResNet-50") and "0.250" in line for line in lines)


@pytest.mark.parametrize(
    "sizes, seconds, exponent",
    [
        ([100, 1000], [1.0, 10.0], 1.0),
        ([100, 1000], [1.0, 100.0], 2.0),
        ([10, 100, 200], [9.0, 1.0, 2.0], 1.0),
        ([100], [1.0], None),
    ],
)
def test_growth_exponent(sizes, seconds, exponent):
    assert transform.growth_exponent(sizes, seconds) == pytest.approx(exponent)


@pytest.mark.parametrize("name", transform.CHAINS)
def test_chain_has_the_length_asked_for(name):
    assert transform.call_count(transform.chain(transform.CHAINS[name], 9)["main"]) == 9
