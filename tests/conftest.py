"""What all tests share: one thread, a known environment, repeatable Hypothesis, and no silent skips in CI."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from network_namespaces import missing as network_namespaces_missing

torch.set_num_threads(1)

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],  # how fast the machine is says nothing about the code
)
settings.register_profile("thorough", settings.get_profile("default"), derandomize=False, max_examples=2000)
settings.load_profile("default")


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the user's settings out of the tests and of the processes that tests start."""
    for name in list(os.environ):
        if name.startswith("COTERIE_") and name != "COTERIE_DATA":
            del os.environ[name]
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
        os.environ.pop(name, None)  # rich and typer change their output by these
    hugging_face = tempfile.TemporaryDirectory(prefix="coterie-tests-")
    config.add_cleanup(hugging_face.cleanup)
    os.environ.update(
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        MPLBACKEND="Agg",
        HF_HOME=hugging_face.name,
        HF_HUB_OFFLINE="1",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses `data_dir` carries the marker, so that `-m "not needs_data"` finds it."""
    for item in items:
        if "data_dir" in getattr(item, "fixturenames", ()):
            item.add_marker("needs_data")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data files that COTERIE_DATA names."""
    folder = os.environ.get("COTERIE_DATA")
    if not folder:
        missing = "COTERIE_DATA is not set: it names the folder with mnist/, fashion-mnist/, emnist/, ..."
        pytest.fail(missing) if in_ci() else pytest.skip(missing)
    if not Path(folder).is_dir():
        pytest.fail(f"COTERIE_DATA is {folder!r}, which is not a folder")
    return Path(folder)


@pytest.fixture(autouse=True)
def _data_for_marked_tests(request: pytest.FixtureRequest) -> None:
    """A test marked `needs_data` that reads COTERIE_DATA by itself follows the same rule as `data_dir`."""
    if request.node.get_closest_marker("needs_data"):
        request.getfixturevalue("data_dir")


@pytest.fixture(scope="session")
def network_namespaces() -> None:
    """Several hosts on one machine: root, and the commands ip, nft and tc."""
    if why := network_namespaces_missing():
        pytest.skip(why)


@pytest.fixture(autouse=True)
def _hosts_for_marked_tests(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("needs_network_namespaces"):
        request.getfixturevalue("network_namespaces")


# In CI a skipped test is a failed one: a missing tool or data set must not look like success.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):  # an expected failure is reported as a skip, but did run
        _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)  # pytest.importorskip at the top of a file
    return report


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if in_ci() and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: skipped, which fails in CI: {reason}"
