import pytest


@pytest.mark.slow
def test_forty_steps_leave_nothing_behind(bench):
    """Maps, libraries, files and threads are counted; memory is only told."""
    result = bench("soak.py", "--steps", "40", "--json")
    assert result["first"]["libraries"] >= 1, "programs are loaded from libraries"
    growth = {kind: result["growth"][kind] for kind in ("maps", "libraries", "files", "threads")}
    assert max(growth.values()) <= 0, growth
    assert result["growth"]["resident_mb"] < 40 * 0.2
