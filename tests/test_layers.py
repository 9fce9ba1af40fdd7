"""The layers of docs/architecture.md, checked: imports point one way, and nothing is unpickled.

    protocol <- learning <- algorithms <- {simulation, peer} <- experiments <- reporting <- cli

A layer may import those to its left and the leaves; leaves import errors, files, registry, randomness only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "coterie"
FILES = sorted(PACKAGE.rglob("*.py"))

FOUNDATIONS = {
    "catalogue",
    "checkpoints",
    "errors",
    "files",
    "randomness",
    "registry",
    "toml_tables",
    "user_code",
}
LEAVES = {"data", "models", "topology", "training"}
# `coterie` is coterie/__init__.py, the public names: it shows users what lies below the command line.
RANK = {
    "protocol": 0,
    "learning": 1,
    "algorithms": 2,
    "simulation": 3,
    "peer": 3,
    "experiments": 4,
    "reporting": 5,
    "coterie": 6,
    "cli": 7,
    "__main__": 8,
    "testing": 9,  # for tests of users and of our own: nothing of the package needs it
}
SHAPELESS_NAMES = {"utils", "util", "common", "core", "base", "helpers"}
UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNPICKLING_CALLS = {"torch.load", "torch.save"}


def layer_of(module: str) -> str:
    """`coterie.data.partitions` -> data; `coterie` -> coterie."""
    return module.split(".")[1] if "." in module else module


def may_import(importer: str, imported: str) -> bool:
    if importer == imported or imported in FOUNDATIONS:
        return True
    if importer not in RANK:  # leaves and foundations
        return False
    return imported in LEAVES or (imported in RANK and RANK[imported] < RANK[importer])


def parse(source: str, module: str) -> tuple[ast.Module, str]:
    """The tree, and the package that relative imports start from; `module` may end in `.__init__`."""
    return ast.parse(source), module.rpartition(".")[0]


def imported_modules(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, also those inside functions and `if TYPE_CHECKING`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, _submodule_or(origin, alias.name)) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith(("import_module", "__import__")):
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                yield node.lineno, named.value


def _submodule_or(origin: str, name: str) -> str:
    """`from coterie import data` imports a layer; `from coterie import simulate` the public names."""
    known = FOUNDATIONS | LEAVES | RANK.keys()
    return f"coterie.{name}" if origin == "coterie" and name in known else origin


def dotted(node: ast.expr) -> str:
    """`np.random.rand` as text; empty for what is not a plain dotted name."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def reversed_arrows(source: str, module: str) -> list[str]:
    tree, package = parse(source, module)
    importer = layer_of(module if module != "coterie.__init__" else "coterie")
    return [
        f"{module}:{line} imports {name}: {importer} may not import {layer_of(name)}"
        for line, name in imported_modules(tree, package)
        if name.split(".")[0] == "coterie" and not may_import(importer, layer_of(name))
    ]


def unpickling(source: str, module: str) -> list[str]:
    tree, package = parse(source, module)
    found = [
        f"{module}:{line} imports {name}, which can run what a file contains; use safetensors or JSON"
        for line, name in imported_modules(tree, package)
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


def module_name(path: Path) -> str:
    return ".".join(["coterie", *path.relative_to(PACKAGE).with_suffix("").parts])


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    assert not reversed_arrows(path.read_text(), module_name(path))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_nothing_is_unpickled(path: Path) -> None:
    assert not unpickling(path.read_text(), module_name(path))


def test_every_module_belongs_to_a_layer() -> None:
    known = FOUNDATIONS | LEAVES | RANK.keys() | {"__init__"}
    strangers = {layer_of(module_name(path)) for path in FILES} - known
    assert not strangers, "add them to the layers above and to docs/architecture.md"


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
        ("coterie.protocol.exchange", "from ..learning.losses import distil"),
        ("coterie.protocol.__init__", "from ..algorithms import gossip"),
        ("coterie.learning.train", "import coterie.algorithms.gossip"),
        ("coterie.algorithms.gossip", "def late():\n    from coterie.simulation import engine"),
        ("coterie.simulation.engine", "from coterie import peer"),
        ("coterie.peer.process", "from coterie.simulation.engine import run"),
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
