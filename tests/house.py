"""The house in figures: its rooms, which way their imports point, and how far a reader walks.

    python tests/house.py                              # print the figures and their limits
    python tests/house.py --picture docs/architecture.svg   # draw the rooms

`test_layers.py` and `test_house.py` check all of it, and that the picture is up to date.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parents[1] / "src" / "coterie"
FILES = sorted(PACKAGE.rglob("*.py"))
_INSIDE = f"{PACKAGE}/"


LIMITS = {
    "files of a round": 18,  # of DFedPGP, from the engine's step to its records
    "files of a parcel": 8,  # from a sender's post to the receiver's mailbox; the eighth writes it down
    "imports between algorithms": 5,
    "imports inside functions": 20,
}
LOOP = "experiments/runs/running.py"  # calls the engine's step and hands its record on


@dataclass(frozen=True)
class Room:
    """A folder, or a file of the package, and what a newcomer finds in it."""

    name: str
    holds: str


@dataclass(frozen=True)
class Floor:
    """Rooms of one layer. A room may import from those before it here, and from all floors below."""

    name: str
    rooms: tuple[Room, ...]


FOUNDATIONS = Floor(
    "foundations",
    (
        Room("errors", "every error that is raised on purpose"),
        Room("files", "atomic writes, locks, secrets"),
        Room("memory", "how much of it is free"),
        Room("checkpoints", "tensors with a JSON head: one writer, one reader"),
        Room("randomness", "streams named by seed, purpose, round and node"),
        Room("user_code", "file.py:Name, the user's own files"),
        Room("inputs", "what a network is given: one tensor or several"),
        Room("registry", "name(argument,...) and what it stands for"),
        Room("catalogue", "all names that users type, and where they live"),
        Room("toml_tables", "TOML checked against a schema"),
    ),
)
LEAVES = Floor(
    "leaves",
    (
        Room("data", "sources, partitions, own data: a pool and index lists"),
        Room("models", "the papers' networks and your nn.Module"),
        Room("topology", "graphs from (seed, round), faults"),
        Room("training", "the [training] section"),
        Room("metric", "what a score is called, and which way is better"),
        Room("sharing", "who learned how much from whom, as shares"),
        Room("spreads", "very many peers: who is listed, quantiles over all"),
    ),
)
FLOORS = (  # from the ground up
    Floor(
        "protocol",
        (
            Room("protocol.secure_sum", "masks, shares and keys of a sealed sum"),
            Room("protocol", "the contract: Algorithm, Exchange, Inbox, Node"),
        ),
    ),
    Floor(
        "learning",
        (
            Room("learning.tasks", "what outputs mean: losses, teachers, metrics"),
            Room("learning", "what trains and evaluates rows"),
        ),
    ),
    Floor(
        "algorithms",
        (
            Room("algorithms.parts", "what methods share: bandits, push-sum, heads, hub, star"),
            Room("algorithms", "one file per method, reads like its paper"),
            Room("algorithms.robust", "guards around any method, and lies"),
        ),
    ),
    Floor("simulation", (Room("simulation", "the engine drives rounds; the router delivers and counts"),)),
    Floor(
        "peer",
        (
            Room("peer.trust", "who: keys, certificates, cards, roster"),
            Room("peer.network", "bytes: messages and their limits, calling, serving"),
            Room("peer.exchange", "rounds: membership, post, mailbox, sealing, journal"),
            Room("peer", "the process and its turns"),
            Room("peer.watch", "looks on: metrics, health, status"),
        ),
    ),
    Floor(
        "experiments",
        (
            Room("experiments.setup", "schema, checks, from names to objects"),
            Room("experiments.cluster", "Ray: workers that host peers, and their driver"),
            Room("experiments.runs", "a run: its loop, its records, its folder"),
            Room("experiments.cells", "many runs: sweeps, the papers' tables"),
            Room("experiments.real_peers", "taking part as a real peer"),
            Room("experiments", "coterie.simulate"),
        ),
    ),
    Floor(
        "reporting",
        (
            Room("reporting.numbers", "the numbers of every picture, once"),
            Room("reporting", "tables and plots from what runs left behind"),
            Room("reporting.page", "what page and report show, in words and data"),
        ),
    ),
    Floor("results", (Room("results", "coterie.compare, sweep and open: what one gets back"),)),
    Floor("dashboard", (Room("dashboard", "the live page: its server, and real peers"),)),
    Floor("coterie", (Room("coterie", "the public names"),)),
    Floor(
        "cli",
        (
            Room("cli", "one file per command"),
            Room("__main__", "python -m coterie"),
        ),
    ),
    Floor("testing", (Room("testing", "a memory network and a virtual clock, for your own tests"),)),
)
APART = {("peer", "simulation")}
"""Floors that do not import each other, although one stands above the other."""

ROOMS = {room.name for floor in (FOUNDATIONS, LEAVES, *FLOORS) for room in floor.rooms}
RANK = {room.name: rank for rank, room in enumerate(room for floor in FLOORS for room in floor.rooms)}
FLOOR_OF = {room.name: floor.name for floor in (FOUNDATIONS, LEAVES, *FLOORS) for room in floor.rooms}


def module_name(path: Path) -> str:
    """`coterie.data.sources.digits`; a package's own file ends in `.__init__`."""
    inside = path.relative_to(PACKAGE)
    return ".".join(["coterie", *(inside.with_suffix("").parts if inside.name else ())])


def room_of(module: str) -> str:
    """The smallest room that holds a module: `coterie.peer.trust.roster` -> peer.trust."""
    inside = module.removeprefix("coterie").removeprefix(".").removesuffix("__init__").rstrip(".")
    while inside and inside not in ROOMS:
        inside = inside.rpartition(".")[0]
    return inside or "coterie"


def may_import(importer: str, imported: str) -> bool:
    """Whether a room may import from another."""
    floor, other = FLOOR_OF[importer], FLOOR_OF[imported]
    if importer == imported or other == FOUNDATIONS.name:
        return True
    if importer not in RANK:  # leaves and foundations
        return False
    if imported not in RANK:  # a leaf
        return True
    return RANK[imported] < RANK[importer] and (floor, other) not in APART


def imports_of(tree: ast.AST, package: str) -> Iterator[tuple[ast.AST, str]]:
    """(where, dotted name) of every import, also those inside functions and `if TYPE_CHECKING`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node, _submodule_or(origin, alias.name)) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith(("import_module", "__import__")):
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                yield node, named.value


def _submodule_or(origin: str, name: str) -> str:
    """`from coterie.peer import trust` imports a room; `from coterie import simulate` the public names."""
    inside = f"{origin}.{name}".removeprefix("coterie.")
    return f"coterie.{inside}" if origin.partition(".")[0] == "coterie" and inside in ROOMS else origin


def dotted(node: ast.expr) -> str:
    """`np.random.rand` as text; empty for what is not a plain dotted name."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def between_algorithms() -> list[str]:
    """Imports from one method's file to another's."""
    found = []
    for path in (PACKAGE / "algorithms").glob("*.py"):
        name = module_name(path)
        targets = {
            target
            for _, target in imports_of(ast.parse(path.read_text()), name.rpartition(".")[0])
            if target.startswith("coterie.algorithms.") and room_of(target) == "algorithms"
        }
        found += [f"{name} -> {target}" for target in sorted(targets)]
    return found


def inside_functions() -> list[str]:
    """Imports that wait until a function is called."""
    found = set()
    for path in FILES:
        name, tree = module_name(path), ast.parse(path.read_text())
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        for function in functions:
            for where, target in imports_of(function, name.rpartition(".")[0]):
                if isinstance(where, ast.Import | ast.ImportFrom):
                    found.add(f"{name}:{where.lineno} {target}")
    return sorted(found)


class _Walk:
    """Which files of the package are called into, in all threads, while `on` holds."""

    def __init__(self) -> None:
        self.on = False
        self.files: set[str] = set()

    def __enter__(self) -> _Walk:
        self._before = sys.getprofile()
        threading.setprofile(self._see)  # type: ignore[arg-type]
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _see(self, frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_INSIDE):
            self.called(frame)

    def called(self, frame: FrameType) -> None:
        if self.on:
            self.files.add(frame.f_code.co_filename.removeprefix(_INSIDE))


class _RoundWalk(_Walk):
    """From the engine's second step to its records: one round, and the loop that calls both."""

    def called(self, frame: FrameType) -> None:
        if frame.f_code.co_qualname == "Simulation.step" and frame.f_locals["self"].round == 1:
            assert frame.f_back is not None
            self.on = True
            self.files.add(frame.f_back.f_code.co_filename.removeprefix(_INSIDE))
        super().called(frame)


def files_of_a_round() -> set[str]:
    """The files that one round of DFedPGP passes through, from the engine's step to its records."""
    import coterie

    class Recorded(coterie.Observer):
        def round(self, record: object, history: object) -> None:
            walk.on = False  # a round's records are written

    with tempfile.TemporaryDirectory() as folder, _RoundWalk() as walk:
        coterie.simulate(
            "dfedpgp",
            topology="directed(3)",
            peers=8,
            rounds=3,
            run_dir=Path(folder) / "run",
            execution={"executor": "stacked"},
            observer=Recorded(),
        )
    return walk.files


class _ParcelWalk(_Walk):
    """Files of functions that are given a parcel, or give one back: its head, or the bytes of its model."""

    def __init__(self) -> None:
        super().__init__()
        self._bodies: set[bytes] = set()

    def _see(self, frame: FrameType, event: str, value: Any) -> None:
        if event in ("call", "return") and frame.f_code.co_filename.startswith(_INSIDE):
            held = [*frame.f_locals.values(), value] if event == "call" else [value]
            if self._is_head(held) or any(self._is_body(item) for item in held):
                self.files.add(frame.f_code.co_filename.removeprefix(_INSIDE))

    def _is_head(self, held: list[Any]) -> bool:
        """Whether a parcel's head is among these; whatever bytes stand beside it are its body."""
        found = any(type(item).__name__ == "Parcel" and not item.empty for item in held)
        if found:
            self._bodies |= {item for item in held if isinstance(item, bytes) and len(item) > 1000}
        return found

    def _is_body(self, item: Any) -> bool:
        return isinstance(item, bytes | bytearray | memoryview) and bytes(item) in self._bodies


def files_of_a_parcel() -> set[str]:
    """The files that one model passes through, from a real peer's post to another's mailbox."""
    from coterie.cli.swarm.folders import make_folders
    from coterie.experiments.real_peers.joining import join

    experiment = {"algorithm": "d-psgd", "model": "mlr", "peers": 2, "rounds": 2}
    with tempfile.TemporaryDirectory() as folder, _ParcelWalk() as walk:
        places = make_folders(Path(folder), experiment, ["anna", "bob"], "synchronous")

        async def learn() -> None:
            await asyncio.gather(*(join(place).take_part() for place in places))

        asyncio.run(learn())
    return walk.files


def picture() -> str:
    """The rooms as an SVG: floors from the ground up, leaves and foundations beside them."""
    draw = _Drawing()
    y = 20
    for floor in reversed([f for f in FLOORS if f.name not in ("coterie", "testing")]):
        y = draw.floor(floor, 20, y, 560, "#dff0d8" if floor.name in _CONTRACT else "#dbe9f6")
    below = draw.floor(LEAVES, 610, 20, 470, "#e9e1f4")
    below = draw.floor(FOUNDATIONS, 610, below, 470, "#fbf6cf")
    below = draw.floor(next(floor for floor in FLOORS if floor.name == "testing"), 610, below, 470, "#ffffff")
    draw.legend(_LEGEND, 624, below + 20)
    return draw.text(1100, y + 10)


_LEGEND = (
    "A room imports from the rooms below it, from the leaves and from the",
    "foundations; never the other way round.",
    "Simulation and peer do not know each other: they are two drivers",
    "of the same rounds.",
    "Green: the world of an algorithm. It does no I/O, and it does not",
    "know who drives it.",
)
_CONTRACT = {"protocol", "learning", "algorithms"}  # an algorithm's own world: no I/O, no driver


class _Drawing:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def floor(self, floor: Floor, x: int, y: int, width: int, colour: str) -> int:
        """One box with a line for each of its rooms; returns where the next may begin."""
        rooms = [room for room in floor.rooms if room.name != "__main__"]
        height = 14 + 22 * len(rooms) + (22 if floor in (LEAVES, FOUNDATIONS) else 0)
        self._lines.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{colour}" stroke="#555"/>'
        )
        line = y + 24
        if floor in (LEAVES, FOUNDATIONS):
            self._lines.append(f'<text x="{x + 14}" y="{line}" font-weight="bold">{floor.name}</text>')
            line += 22
        for room in reversed(rooms):
            name, holds = escape(room.name.replace(".", "/")), escape(room.holds)
            self._lines.append(
                f'<text x="{x + 14}" y="{line}"><tspan font-weight="bold">{name}</tspan>'
                f'<tspan dx="10" font-size="12.5" fill="#333">{holds}</tspan></text>'
            )
            line += 22
        return y + height + 14

    def legend(self, lines: tuple[str, ...], x: int, y: int) -> None:
        self._lines += [
            f'<text x="{x}" y="{y + 20 * place}" font-size="12.5" fill="#333">{escape(line)}</text>'
            for place, line in enumerate(lines)
        ]

    def text(self, width: int, height: int) -> str:
        font = 'font-family="Helvetica, Arial, sans-serif" font-size="14"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>'
        return "\n".join(
            [head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *self._lines, "</svg>", ""]
        )


def _show(what: str, found: list[str]) -> None:
    print(f"{what}: {len(found)}, at most {LIMITS[what]}", *found, sep="\n  ")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--picture"]:
        Path(sys.argv[2]).write_text(picture())
    else:
        _show("files of a round", sorted(files_of_a_round() - {LOOP}))
        _show("files of a parcel", sorted(files_of_a_parcel()))
        _show("imports between algorithms", between_algorithms())
        _show("imports inside functions", inside_functions())
