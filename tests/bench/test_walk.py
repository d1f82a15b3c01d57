def test_the_way_of_a_model_is_short(bench):
    """It was 23 visits, 14 climbs and 49 returns, with 3 specializations and 5 inlinings."""
    results = bench("walk.py", "--json", "--models", "mlp,resnet_digits")
    for facts in results.values():
        assert facts["specialized"] == facts["inlined"] == 1
        assert facts["visits"] <= 20 and facts["climbs"] <= 8 and facts["returns"] <= 25
        assert facts["way"][0] == "train.step" and facts["way"][-1] == "train.on_device"
        assert len(facts["way"]) == facts["visits"] + facts["returns"]
