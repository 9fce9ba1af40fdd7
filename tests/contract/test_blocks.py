"""However nodes are cut into blocks that follow each other: the same numbers, to the last bit.

With each executor. Between the two results agree to rounding, as `test_same_numbers.py` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from algorithm_exam import Exam, assert_same, exam, measured, state_of

from coterie.learning import ExecutorName
from coterie.protocol import Algorithm

CUTS: tuple[tuple[ExecutorName, int], ...] = (("looped", 3), ("stacked", 2))


@exam()
def test_blocks_change_no_bit(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    exam = sit(algorithm, torch.float32)
    for executor, count in CUTS:
        whole, records = exam.played(executor=executor)
        shards = torch.arange(whole.topology.nodes).tensor_split(count)
        cut, cut_records = exam.played(executor=executor, shards=shards)
        assert_same(state_of(whole), state_of(cut))
        assert_same(measured(records), measured(cut_records))
        for name, total in vars(whole.totals).items():
            assert torch.equal(total, vars(cut.totals)[name]), name
