import pytest


@pytest.mark.parametrize("model", ["mlp", "resnet_digits"])
def test_the_way_of_a_model_is_short(bench, model):
    """It was 23 visits, 14 climbs and 47 returns, with 3 specializations and 5 inlinings."""
    facts = bench("walk.py", "--json", "--models", model)[model]
    assert facts["specialized"] == facts["inlined"] == 1
    assert facts["visits"] <= 18 and facts["climbs"] <= 7 and facts["returns"] <= 23
    assert facts["way"][0] == "train.step" and facts["way"][-1] == "train.on_device"
    assert len(facts["way"]) == facts["visits"] + facts["returns"]
