import math

import pytest

from graphgrad.cli.output import OutputFolder
from graphgrad.errors import ArgumentError
from graphgrad.train.run import Epoch, History


def test_a_non_finite_held_out_measure_is_kept_as_nan(tmp_path):
    folder = OutputFolder(tmp_path)
    history = History()
    history.losses.append(1.0)
    history.epochs.append(Epoch(1, 1, math.nan, {"mean_squared_error": math.inf}, 5.0))
    folder.write_history({}, history)
    folder.checkpoint.touch()
    (epoch,) = folder.read_history(1).epochs
    assert math.isnan(epoch.loss)
    assert math.isnan(epoch.held_out["mean_squared_error"])


def test_a_model_of_somebody_else_is_not_replaced(tmp_path):
    folder = OutputFolder(tmp_path)
    folder.model.write_bytes(b"mine")
    with pytest.raises(ArgumentError, match="would be replaced"):
        folder.write_model(b"other")
    assert folder.model.read_bytes() == b"mine"
    folder.write_history({}, History())
    folder.write_model(b"other")
    assert folder.model.read_bytes() == b"other"


@pytest.mark.parametrize(
    ("losses", "skipping"),
    [
        ([], False),
        ([math.nan] * 3, True),
        ([math.nan, 1.0], False),
        ([1.0] + [math.nan] * 20, True),
    ],
)
def test_a_run_that_ended_skipping(losses, skipping):
    history = History()
    history.losses.extend(losses)
    assert history.ended_skipping == skipping
