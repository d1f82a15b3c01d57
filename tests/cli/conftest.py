import onnx
import pytest

from graphgrad import models


@pytest.fixture
def path(tmp_path):
    """The file of a small network."""
    onnx.save(models.mlp((4, 5, 3)), tmp_path / "mlp.onnx")
    return str(tmp_path / "mlp.onnx")
