"""A small BERT trained on generated rows: with Tempo's layers as without."""

from copy import deepcopy

import pytest
import torch

from calibration.layers.bert import Bert, losses
from calibration.layers.tempo import with_tempo

CURVE = 0.01
"""Of the loss: rounding grows over 200 steps of Adam (1e-5 over the first hundred, 1e-3 over all, of three seeds)."""


@pytest.mark.slow
def test_a_small_bert_learns_as_before():
    torch.manual_seed(0)
    usual = Bert()
    tempo = deepcopy(usual)
    assert with_tempo(tempo) == 4 * 2 + 3
    before, after = losses(usual, 200), losses(tempo, 200)
    assert after == pytest.approx(before, rel=CURVE)
    assert sum(after[-20:]) < 0.7 * sum(after[:20])
