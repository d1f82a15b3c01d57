import io
import re

import numpy as np
import pytest

from graphgrad.errors import InputError
from graphgrad.train.data import Examples, batch_count, batches, digits, load_npz, padded_batches

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.arange(6) % 3


def numbered(count: int) -> Examples:
    return Examples({"x": np.arange(count)}, np.arange(count) * 10)


def test_digits_are_as_described():
    data = digits()
    assert (len(data.train), len(data.held_out)) == (1437, 360)
    for part in (data.train, data.held_out):
        images = part.inputs["x"]
        assert images.shape[1:] == (1, 8, 8) and images.dtype == np.float32
        assert images.min() == 0 and images.max() == 1
        assert part.targets.dtype == np.int64


def test_digits_split_is_stratified_and_disjoint():
    data = digits()
    assert np.bincount(data.held_out.targets).tolist() == [36] * 10
    everything = np.concatenate([data.train.targets, data.held_out.targets])
    assert np.bincount(everything).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    seen = {image.tobytes() for image in data.train.inputs["x"]}
    assert not seen & {image.tobytes() for image in data.held_out.inputs["x"]}


def test_batches_are_a_function_of_seed_and_epoch():
    def order(seed: int, epoch: int) -> list[int]:
        parts = batches(numbered(10), 3, seed=seed, epoch=epoch)
        return np.concatenate([part.inputs["x"] for part in parts]).tolist()

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_batches_are_full_and_without_repetition():
    parts = list(batches(numbered(10), 3, seed=0, epoch=0))
    assert [len(part) for part in parts] == [3, 3, 3]
    drawn = np.concatenate([part.inputs["x"] for part in parts])
    assert len(set(drawn)) == 9
    np.testing.assert_array_equal(np.concatenate([part.targets for part in parts]), drawn * 10)


def test_each_epoch_leaves_out_others():
    left_out = {
        (
            set(range(10))
            - {int(i) for b in batches(numbered(10), 9, seed=0, epoch=e) for i in b.inputs["x"]}
        ).pop()
        for e in range(30)
    }
    assert len(left_out) > 5


def test_padded_batches_count_every_example_once():
    parts = list(padded_batches(numbered(10), 4))
    assert [(len(part), count) for part, count in parts] == [(4, 4), (4, 4), (4, 2)]
    counted = np.concatenate([part.inputs["x"][:count] for part, count in parts])
    np.testing.assert_array_equal(counted, np.arange(10))


def test_too_few_examples_for_a_batch():
    with pytest.raises(InputError, match="3 training examples do not fill one batch of 4"):
        batch_count(numbered(3), 4)


def test_load_npz_with_held_out(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y.astype(np.uint8), x_test=X[:2], y_test=Y[:2])
    data = load_npz(tmp_path / "d.npz")
    np.testing.assert_array_equal(data.train.inputs["x"], X)
    np.testing.assert_array_equal(data.held_out.targets, Y[:2])
    assert data.train.targets.dtype == np.int64


def test_load_npz_with_named_inputs_and_no_targets(tmp_path):
    np.savez_compressed(tmp_path / "d.npz", left=X, right=X + 1)
    data = load_npz(tmp_path / "d.npz", inputs=["left", "right"], targets=None)
    assert list(data.train.inputs) == ["left", "right"]
    assert data.train.targets is None and data.held_out is None


def test_load_npz_with_values(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=X[:, :1] / 2)
    assert load_npz(tmp_path / "d.npz", targets="values").train.targets.dtype == np.float32


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"x": X}, "has no array y; expected x, y, found x"),
        ({}, "has no array x, y; expected x, y, found nothing"),
        ({"x": X, "y": Y[:5]}, "x has 6, y has 5"),
        ({"x": X[:0], "y": Y[:0]}, "array x of shape (0, 4) has no examples"),
        ({"x": X, "y": np.int64(3)}, "array y of shape () has no examples"),
        ({"x": X, "y": Y.astype(np.float32)}, "labels y must be integers, given float32"),
        ({"x": X, "y": Y, "x_test": X}, "has no array y_test"),
        ({"x": X, "y": Y, "x_test": X[:, :3], "y_test": Y}, "(4,), x_test of shape (3,)"),
        ({"x": X, "y": Y, "x_test": X, "y_test": X.astype(int)}, "(), y_test of shape (4,)"),
        ({"x": X, "y": np.array([None] * 6)}, "array y holds Python objects"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(InputError, match=re.escape(message)):
        load_npz(tmp_path / "d.npz")


def saved(save, *arguments, **arrays) -> bytes:
    file = io.BytesIO()
    save(file, *arguments, **arrays)
    return file.getvalue()


def corrupted() -> bytes:
    data = bytearray(saved(np.savez_compressed, x=X, y=Y))
    data[80:100] = bytes(20)
    return bytes(data)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is not an .npz file"),
        (b"x,y\n1,2\n", "is not an .npz file"),
        (saved(np.savez, x=X, y=Y)[:300], "is not an .npz file"),
        (corrupted(), "is damaged"),
        (saved(np.save, X), "is not an .npz file"),
    ],
    ids=["empty", "text", "truncated", "corrupted", "npy"],
)
def test_unreadable_files(tmp_path, content, message):
    (tmp_path / "d.npz").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_npz(tmp_path / "d.npz")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match=r"none\.npz does not exist"):
        load_npz(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"is not an \.npz file"):
        load_npz(tmp_path)
