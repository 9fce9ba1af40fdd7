"""Certificates for all, and a loop for each test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tls_peers import MEMBERS, Certificate, Net


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    folder = tmp_path_factory.mktemp("certificates")
    made = {name: Certificate(folder, name) for name in (*MEMBERS, "stranger")}
    return {**made, "late": Certificate(folder, "late", days=(-30, -1))}


@pytest.fixture
def play(tmp_path: Path, certificates: dict[str, Certificate]) -> Callable[..., None]:
    """Run a test's coroutine in a loop of its own, which must end without leftovers."""

    def run(scenario: Callable[[Net], Awaitable[None]]) -> None:
        async def whole() -> None:
            net = Net(tmp_path, certificates)
            try:
                await scenario(net)
            finally:
                await net.stop()

        asyncio.run(whole())

    return run
