"""The rooms of docs/architecture.md, checked: imports point one way, and nothing is unpickled.

    protocol <- learning <- algorithms <- {simulation, peer} <- experiments <- reporting <- cli

`house.py` lists the rooms. A room may import from those below it, from the leaves and from the foundations.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from house import FILES, PACKAGE, ROOMS, dotted, imports_of, may_import, module_name, room_of

SHAPELESS_NAMES = {"utils", "util", "common", "core", "base", "helpers"}
UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNPICKLING_CALLS = {"torch.load", "torch.save"}


def parse(source: str, module: str) -> tuple[ast.Module, str]:
    """The tree, and the package that relative imports start from; `module` may end in `.__init__`."""
    return ast.parse(source), module.rpartition(".")[0]


def reversed_arrows(source: str, module: str) -> list[str]:
    tree, package = parse(source, module)
    importer = room_of(module)
    return [
        f"{module}:{node.lineno} imports {name}: {importer} may not import {room_of(name)}"  # type: ignore[attr-defined]
        for node, name in imports_of(tree, package)
        if name.split(".")[0] == "coterie" and not may_import(importer, room_of(name))
    ]


def unpickling(source: str, module: str) -> list[str]:
    tree, package = parse(source, module)
    found = [
        f"{module}:{node.lineno} imports {name}, which can run what a file contains; use safetensors or JSON"
        for node, name in imports_of(tree, package)
        if name.split(".")[0] in UNPICKLERS
    ]
    names = _full_names(tree)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        head, dot, rest = dotted(call.func).partition(".")
        function = names.get(head, head) + dot + rest
        allows = any(
            keyword.arg == "allow_pickle" and getattr(keyword.value, "value", None) is not False
            for keyword in call.keywords
        )
        if function in UNPICKLING_CALLS or allows:
            found.append(f"{module}:{call.lineno} calls {function}{' with allow_pickle' if allows else ''}")
    return found


def _full_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: `import torch as t` -> {"t": "torch"}."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    assert not reversed_arrows(path.read_text(), module_name(path))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_nothing_is_unpickled(path: Path) -> None:
    assert not unpickling(path.read_text(), module_name(path))


def test_every_module_belongs_to_a_room() -> None:
    """A new folder or file at the top must be given a place: in house.py, and so in the picture."""
    strangers = {
        module_name(path) for path in FILES if path.parent == PACKAGE or path.parent.parent == PACKAGE
    }
    strangers = {
        name for name in strangers if name.split(".")[1] not in {room.split(".")[0] for room in ROOMS}
    }
    assert strangers <= {"coterie.__init__"}


def test_every_folder_is_a_package() -> None:
    """A folder without __init__.py would be missing from the wheel."""
    folders = {path.parent for path in FILES}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_names_say_what_is_inside() -> None:
    names = [module_name(path) for path in FILES]
    assert not [name for name in names if {part.strip("_") for part in name.split(".")} & SHAPELESS_NAMES]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("coterie.protocol.exchange", "from coterie.learning import losses"),
        ("coterie.protocol.exchange", "from ..learning.tasks import distil"),
        ("coterie.protocol.__init__", "from ..algorithms import gossip"),
        ("coterie.learning.train", "import coterie.algorithms.gossip"),
        ("coterie.algorithms.gossip", "def late():\n    from coterie.simulation import engine"),
        ("coterie.simulation.engine", "from coterie import peer"),
        ("coterie.peer.process", "from coterie.simulation.engine import run"),
        ("coterie.peer.trust.roster", "from coterie.peer.network import calling"),
        ("coterie.peer.network.calling", "from coterie.peer.exchange.mailbox import Mailbox"),
        ("coterie.peer.exchange.mailbox", "from coterie.peer import watch"),
        ("coterie.peer.process", "from coterie.peer.watch import standing"),
        ("coterie.algorithms.parts.star", "from coterie.algorithms.kd_pdfl import KDPDFL"),
        ("coterie.experiments.setup.schema", "from coterie.experiments.runs.records import History"),
        ("coterie.cli.run", "from coterie.testing import MemoryNetwork"),
        (
            "coterie.experiments.run",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING: import coterie.reporting",
        ),
        ("coterie.experiments.run", "from coterie import simulate"),
        ("coterie.reporting.table", "import importlib\nimportlib.import_module('coterie.cli')"),
        ("coterie.__init__", "from coterie.cli import main"),
        ("coterie.__init__", "from .cli import main"),
        ("coterie.data.sources.digits", "from coterie.models import mlp"),
        ("coterie.topology.graphs", "from coterie.protocol import Exchange"),
        ("coterie.randomness", "from .data import digits"),
    ],
)
def test_a_reversed_import_is_found(module: str, source: str) -> None:
    assert len(reversed_arrows(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("coterie.cli.running.run", "from coterie import __version__\nfrom coterie.reporting import table"),
        ("coterie.__init__", "from coterie.simulation import simulate\nfrom .data import digits"),
        (
            "coterie.algorithms.gossip",
            "from coterie.protocol import Exchange\nfrom ..learning import average",
        ),
        ("coterie.protocol.exchange", "import torch\nfrom coterie.topology import ring\nfrom . import inbox"),
        ("coterie.data.sources.digits", "from coterie import errors\nfrom coterie.randomness import stream"),
        ("coterie.registry", "from coterie.errors import ConfigError"),
    ],
)
def test_an_import_along_the_arrows_is_allowed(module: str, source: str) -> None:
    assert reversed_arrows(source, module) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x')",
        "from torch import load as read\nread('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=trusted)",
    ],
)
def test_unpickling_is_found(source: str) -> None:
    assert len(unpickling(source, "coterie.data.sources.digits")) == 1


def test_plain_loading_is_allowed() -> None:
    source = "import numpy as np\nnp.load('x')\nnp.load('x', allow_pickle=False)\nself.load('x')"
    assert unpickling(source, "coterie.data.sources.digits") == []
