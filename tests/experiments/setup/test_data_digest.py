"""The digest of a user's data: it changes with every input of a sample, and with their names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from coterie.data import Federation, from_peers
from coterie.experiments.setup.dealing import data_digest
from coterie.experiments.setup.schema import Experiment

OWN = Experiment(data="file.py:load")


def digest_of(data: Federation) -> str:
    found = data_digest(OWN, data)
    assert found is not None
    return found


def test_every_input_and_its_name_count() -> None:
    a, b = np.arange(8).reshape(4, 2), np.ones((4, 3))
    first = from_peers([({"a": a, "b": b}, [0, 1, 0, 1])])
    again = from_peers([({"a": a.copy(), "b": b.copy()}, [0, 1, 0, 1])])
    assert digest_of(first) == digest_of(again)
    assert isinstance(first.x, dict)
    others = [
        {"a": first.x["a"], "b": first.x["b"] * 2},
        {"a": first.x["a"] + 1, "b": first.x["b"]},
        {"a": first.x["a"], "c": first.x["b"]},
        {"a": first.x["a"].float(), "b": first.x["b"]},
        {"a": first.x["a"]},
    ]
    digests = {digest_of(replace(first, x=x)) for x in others}
    assert len(digests | {digest_of(first)}) == len(others) + 1


def test_only_data_that_a_function_returned_have_one() -> None:
    data = from_peers([(torch.eye(4), [0, 1, 0, 1])])
    assert data_digest(Experiment(data="digits"), data) is None
