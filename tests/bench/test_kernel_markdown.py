import pytest

from tests.peers import peer


@pytest.fixture
def markdown():
    peer("psutil")
    from kernel_markdown import markdown

    return markdown


def entry(name, part, group, **milliseconds):
    contenders = {
        contender.replace("_", " "): {"ms": ms, "gflops": 100 / ms}
        for contender, ms in milliseconds.items()
    }
    return {"name": name, "part": part, "groups": [group], "contenders": contenders}


def test_speeds_with_their_ratios(markdown):
    cases = [
        entry("layer", "forward", "net", graphgrad=1, torch=2, graphgrad_direct=1.5),
        entry("layer", "weight", "net", graphgrad=2, torch=1),
        entry("first", "forward", "net", torch=1),
        entry("product", "data", "derived", graphgrad=1, graphgrad_derived=2, torch=1),
    ]
    assert markdown({"cases": cases}).splitlines() == [
        "### net",
        "",
        "|  | forward | weight |",
        "| --- | --- | --- |",
        "| layer | 100 (2.00, 1.50 of direct) | 50 (0.50) |",
        "| first | failed |  |",
        "",
        "### derived",
        "",
        "|  | data |",
        "| --- | --- |",
        "| product | 50 (0.50) |",
    ]
