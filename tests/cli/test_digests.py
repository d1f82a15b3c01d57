import hashlib
import os

import numpy as np
import onnx
import pytest

from graphgrad import models
from graphgrad.cli.digests import file_digests


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def files(tmp_path):
    onnx.save(models.mlp((4, 8, 3)), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros(3))
    return tmp_path / "m.onnx", tmp_path / "d.npz"


def test_they_are_those_of_the_files(files):
    model, data = files
    assert file_digests(str(model), str(data)) == {
        "model": sha256(model.read_bytes()),
        "data": sha256(data.read_bytes()),
    }


def test_the_built_in_network_has_that_of_its_file(files):
    model, _ = files
    proto = models.mlp((4, 8, 3))
    digests = file_digests(proto, None)
    assert digests["model"] == sha256(proto.SerializeToString()) == sha256(model.read_bytes())
    assert digests["data"] == file_digests(str(model), None)["data"]


def test_external_data_belong_to_the_model(files, tmp_path):
    model = tmp_path / "external.onnx"
    onnx.save(models.mlp((4, 8, 3)), model, save_as_external_data=True, location="weights",
              size_threshold=0)  # fmt: skip
    digests = file_digests(str(model), None)
    assert digests["external data of the model"] == sha256((tmp_path / "weights").read_bytes())
    with open(tmp_path / "weights", "r+b") as file:
        file.write(b"\1")
    changed = file_digests(str(model), None)
    assert {name for name in digests if digests[name] != changed[name]} == {
        "external data of the model"
    }


@pytest.mark.parametrize("content", [None, b"not a model"])
def test_what_cannot_be_read_is_left_to_those_who_read_it(tmp_path, content):
    if content is not None:
        (tmp_path / "m.onnx").write_bytes(content)
    assert set(file_digests(str(tmp_path / "m.onnx"), None)) <= {"model"}


@pytest.mark.parametrize("location", ["/dev/zero", "pipe", "../m.onnx", "a\0b"])
def test_what_a_model_may_not_read_is_not_read(files, tmp_path, location):
    """Devices without end and pipes that nobody writes would be read for ever."""
    os.mkfifo(tmp_path / "pipe")
    proto = models.mlp((4, 8, 3))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    model = tmp_path / "hostile.onnx"
    model.write_bytes(proto.SerializeToString())
    assert file_digests(str(model), None).keys() == {"model"}


def test_pipes_have_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert file_digests(str(tmp_path / "pipe"), None) == {}
    assert file_digests(models.mlp((4, 8, 3)), str(tmp_path / "pipe")).keys() == {"model"}
