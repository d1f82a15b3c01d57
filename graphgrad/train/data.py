"""Data sets in memory: the digits that ship with the package, and .npz files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from ..errors import InputError
from .npz import read_arrays

TargetKind = Literal["labels", "values"]
HELD_OUT = "_test"
DIGITS = resources.files("graphgrad.models").joinpath("data", "digits.npz")
"""The file of `digits`."""


@dataclass(frozen=True)
class Examples:
    """Arrays whose first dimension counts the examples.

    Attributes
    ----------
    inputs : dict of str to array
        One array per input of the model; the one input of a model with a single input is ``x``.
    targets : array or None
        Labels (int64) or values; None where the model computes its loss from its inputs alone.
    """

    inputs: dict[str, np.ndarray]
    targets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def take(self, indices: np.ndarray) -> "Examples":
        """The examples at `indices`, in that order, copied."""
        return Examples(
            {name: array[indices] for name, array in self.inputs.items()},
            None if self.targets is None else self.targets[indices],
        )


@dataclass(frozen=True)
class Dataset:
    """Examples to train on, and examples held out to judge by (None: there are none)."""

    train: Examples
    held_out: Examples | None = None


def digits() -> Dataset:
    """The 8×8 handwritten digits of the UCI repository, in their committed split.

    Returns
    -------
    Dataset
        1,437 training and 360 held-out examples: input ``x`` float32 (N, 1, 8, 8) in [0, 1],
        targets int64 (N,) in 0 … 9. CC BY 4.0; the attribution is in ``models/data/README.md``.
    """
    with DIGITS.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        images, labels, held_out = arrays["images"], arrays["labels"], arrays["held_out"]
    # Pixels are numbers from 0 to 16.
    examples = Examples({"x": images[:, None].astype(np.float32) / 16}, labels.astype(np.int64))
    train = np.setdiff1d(np.arange(len(examples)), held_out)
    return Dataset(examples.take(train), examples.take(held_out))


def load_npz(
    path: str | Path,
    *,
    inputs: Sequence[str] = ("x",),
    targets: TargetKind | None = "labels",
) -> Dataset:
    """Read a data set from an .npz file.

    The file holds one array per name in `inputs` and, if asked for, the targets ``y``; held-out
    examples have the same names with ``_test`` appended (``x_test``, ``y_test``). The first
    dimension of every array counts the examples. Files with pickled objects are refused.

    Parameters
    ----------
    path : str or Path
        The file, as written by `numpy.savez` or `numpy.savez_compressed`.
    inputs : sequence of str
        Names of the input arrays.
    targets : 'labels', 'values' or None
        Integer class labels (become int64), any numbers, or no targets at all.

    Raises
    ------
    InputError
        The file is missing or not an .npz file; an array is missing, holds objects, is empty, is
        not of the length of the others, or labels are not integers.
    """
    arrays = read_arrays(Path(path))
    train = _examples(arrays, inputs, targets, "", str(path))
    # One such array asks for held-out examples; where others of them are missing, that is an error.
    if not any(name.endswith(HELD_OUT) for name in arrays):
        return Dataset(train)
    held_out = _examples(arrays, inputs, targets, HELD_OUT, str(path))
    for name in [*inputs, *(["y"] if targets else [])]:
        shape, test_shape = arrays[name].shape[1:], arrays[name + HELD_OUT].shape[1:]
        if shape != test_shape:
            raise InputError(
                f"{path}: {name} has examples of shape {shape}, {name}{HELD_OUT} of shape "
                f"{test_shape}; they must be equal"
            )
    return Dataset(train, held_out)


def batches(examples: Examples, batch: int, *, seed: int, epoch: int) -> Iterator[Examples]:
    """Yield the shuffled full batches of one epoch.

    The order is a function of `seed` and `epoch` alone, so that a run resumes where it stopped.
    The examples that do not fill a last batch are left out; each epoch leaves out others.

    Raises
    ------
    InputError
        There are fewer examples than fill one batch.
    """
    count = batch_count(examples, batch)
    order = np.random.default_rng([seed, epoch]).permutation(len(examples))
    # No `yield`: too few examples are to be an error of the call, not of the first batch.
    return (examples.take(order[i * batch : (i + 1) * batch]) for i in range(count))


def batch_count(examples: Examples, batch: int) -> int:
    """The number of full batches in an epoch, at least one, else raise `InputError`."""
    if len(examples) < batch:
        raise InputError(
            f"{len(examples)} training examples do not fill one batch of {batch}; "
            "give a smaller batch or more examples"
        )
    return len(examples) // batch


def padded_batches(examples: Examples, batch: int) -> Iterator[tuple[Examples, int]]:
    """Yield every example once, in order, in batches of one size.

    Yields
    ------
    (Examples, int)
        A batch and the number of its leading examples that count: the last batch is filled up by
        repeating its last example.
    """
    for start in range(0, len(examples), batch):
        indices = np.arange(start, start + batch)
        count = min(batch, len(examples) - start)
        yield examples.take(np.minimum(indices, len(examples) - 1)), count


def _examples(
    arrays: Mapping[str, np.ndarray],
    inputs: Sequence[str],
    targets: TargetKind | None,
    suffix: str,
    path: str,
) -> Examples:
    """Select the training or the held-out examples, whose arrays' names end with `suffix`."""
    expected_names = [name + suffix for name in [*inputs, *(["y"] if targets else [])]]
    missing = [name for name in expected_names if name not in arrays]
    if missing:
        raise InputError(
            f"{path} has no array {', '.join(missing)}; expected {', '.join(expected_names)}, "
            f"found {', '.join(arrays) or 'nothing'}"
        )
    _check_lengths({name: arrays[name] for name in expected_names}, path)
    target_array = arrays["y" + suffix] if targets else None
    if target_array is not None and targets == "labels":
        target_array = _labels(target_array, "y" + suffix, path)
    return Examples({name: arrays[name + suffix] for name in inputs}, target_array)


def _check_lengths(arrays: Mapping[str, np.ndarray], path: str) -> None:
    """Raise `InputError` unless all arrays have the same number of examples, at least one."""
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) == 0:
            raise InputError(
                f"{path}: array {name} of shape {array.shape} has no examples; "
                "the first dimension counts them"
            )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"{path}: the arrays differ in their number of examples: {listed}")


def _labels(array: np.ndarray, name: str, path: str) -> np.ndarray:
    """Class labels as int64, after checking that they are integers."""
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{path}: labels {name} must be integers, given {array.dtype}; convert them to class "
            "indices, or use the loss mse for real-valued targets"
        )
    return array.astype(np.int64)
