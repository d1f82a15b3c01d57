import pytest


@pytest.fixture
def step(compiled, tmp_path):
    """The compiled step, put back to where it was afterwards."""
    compiled.save(tmp_path / "before")
    yield compiled
    compiled.load(tmp_path / "before")
