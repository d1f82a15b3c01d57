"""Exported programs, decomposed: what has two forms, or stops a gradient, is still there."""

import importlib

import pytest

from tests.peers import peer

torch = peer("torch")
programs = importlib.import_module("graphgrad.frontend.exported.program")


class Statements(torch.nn.Module):
    def forward(self, x):
        y = torch.nn.functional.dropout(x.detach(), 0.5, self.training, inplace=True)
        return torch.nn.functional.dropout(y, 0.25, self.training) * x


@pytest.mark.parametrize("training", [True, False])
def test_stand_ins_outlive_a_decomposition(training):
    program = programs.exported(Statements().train(training), (torch.ones(3),), {}, None)
    before = [node.target for node in program.graph.nodes]
    core = programs.decomposed(program)
    calls = [node for node in core.graph.nodes if node.op == "call_function"]
    assert [node.target.__name__.partition(".")[0] for node in calls] == [
        *("stop_gradient", "dropout", "dropout", "mul")
    ]
    assert [node.args[1:] for node in calls[1:3]] == [(0.5, training), (0.25, training)]
    assert [node.target for node in program.graph.nodes] == before
