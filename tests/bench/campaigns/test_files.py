"""A slice of the campaign of files, and what it is made of."""

import campaign
import files
import numpy as np
import onnx
import onnx_files
import pytest

import graphgrad as gg

CASES = 80


@pytest.mark.slow
def test_a_slice(tmp_path):
    """Each file is read, or refused by an error of ours."""
    with np.errstate(all="ignore"):
        onnx_files.bases(False)
        journal = campaign.Journal(tmp_path, files.FEW.name, 0)
        outcomes = list(campaign.run(files.FEW, range(CASES), journal, jobs=1))
    assert [o for o in outcomes if o.outcome not in campaign.GOOD] == []
    counts = campaign.summary(files.FEW, 0, journal)["outcomes"]
    assert sum(counts.values()) == CASES
    assert min(counts["agree"], counts["refused"]) > CASES / 20  # neither all nor none is refused


@pytest.mark.parametrize("index", range(11))
def test_bases_are_imported(index):
    """Before anything is changed: else the campaign would tell little."""
    assert gg.from_onnx(onnx.ModelProto.FromString(onnx_files.bases(False)[index])).outputs


def test_edits_change_files(tmp_path):
    """Each of them, for some generator: else it would be no test of anything."""
    base = onnx_files.bases(False)[0]
    for edit in onnx_files.EDITS:
        changed = set()
        for seed in range(8):
            proto = onnx.ModelProto.FromString(base)
            edit(np.random.default_rng(seed), proto, tmp_path)
            changed.add(proto.SerializeToString() != base)
        assert True in changed, edit.__name__
