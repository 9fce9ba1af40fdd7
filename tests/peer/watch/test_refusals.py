"""Refusals in the log: a flood from one side does not hide the others, and no line is written twice."""

from __future__ import annotations

import pytest

from coterie.peer.exchange.metrics import Metrics
from coterie.peer.watch.refusals import Refusals


def refusals() -> Refusals:
    return Refusals(Metrics(), lambda: {"bob", "carol"})


def test_a_flood_is_told_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    told = refusals()
    for port in range(1_234):
        told("certificate", f"203.0.113.5:{40_000 + port}")
    assert caplog.messages == [
        "refused 203.0.113.5: certificate",
        "refused 203.0.113.5: certificate, 10 times by now",
        "refused 203.0.113.5: certificate, 100 times by now",
        "refused 203.0.113.5: certificate, 1,000 times by now",
    ]
    assert told.metrics.refused == {"certificate": 1_234}


def test_strangers_do_not_hide_members_nor_each_other(caplog: pytest.LogCaptureFixture) -> None:
    told = refusals()
    for number in range(5_000):
        told("busy", f"10.1.{number // 256}.{number % 256}:1")
    caplog.clear()
    told("stale", "bob")
    told("shape", "bob")
    told("slow", "carol")
    told("certificate", "10.1.0.7:99")  # known by its host
    told("certificate", "192.0.2.9:99")
    told("certificate", "[2001:db8::1]:99")
    assert caplog.messages == [
        "refused bob: stale",
        "refused bob: shape",
        "refused carol: slow",
        "refused 10.1.0.7: certificate",
        "refused other strangers: certificate",
    ]
