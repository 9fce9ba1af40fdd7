"""A page for each method of the catalogue, from its class, and a picture of one round that was really run."""

from __future__ import annotations

import inspect
import math
import re

import equations
import measured

import coterie
from coterie.catalogue import algorithms
from coterie.registry import hints_of, readable
from coterie.reporting.page.explained import kind_of_algorithm, meanings_of

_PEERS, _ROUNDS = 8, 3


def pages() -> dict[str, str]:
    """Markdown by address; the first is the overview."""
    texts = {f"algorithms/{name}.md": page_of(name) for name in algorithms}
    return {"algorithms/index.md": _overview(), **texts}


def addresses() -> list[str]:
    return ["algorithms/index.md", *(f"algorithms/{name}.md" for name in algorithms)]


def _overview() -> str:
    lines = ["| method | idea | kind | sends |", "|---|---|---|---|"]
    for name in algorithms:
        facts = algorithms[name].facts
        cells = (
            f"[{name}]({name}.md)",
            algorithms.summary(name),
            kind_of_algorithm(facts),
            facts.communication,
        )
        lines.append(f"| {' | '.join(cells)} |")
    said = "Each page is made from the method's class, and its picture from a round that was run for it."
    return f"# Algorithms\n\n{said} [Which one for my problem?](../choosing.md)\n\n" + "\n".join(lines) + "\n"


def page_of(name: str) -> str:
    entry = algorithms[name]
    paragraphs = inspect.cleandoc(vars(entry)["__doc__"]).split("\n\n")
    parts = [f"# {name}", f"*{paragraphs[0]}*", picture(name)]
    for paragraph in paragraphs[1:]:
        parts.append(_paragraph(paragraph))
    parts += ["## Facts", _facts(entry.facts), "## Settings", *_settings(entry)]
    if entry.presets:
        parts += ["## Presets", "\n".join(_presets(entry.presets))]
    use, avoid = _when(entry.facts)
    parts += ["## When to use it", "\n".join([*measured.advice(name), *use])]
    parts += ["## When not", "\n".join(avoid) or "Nothing that it needs rules it out."]
    parts += ["## Measured", measured.measured(name)]
    return "\n\n".join(parts) + "\n"


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return equations.block(inspect.cleandoc(text))
    return _linked(_plain(text))


def _linked(text: str) -> str:
    return re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](../\1.md)", text)


def _plain(text: str) -> str:
    """A docstring's words, in which * and _ mean themselves; what stands in backquotes stays as it is."""
    parts = re.split(r"(`[^`]*`|<i>.*?</i>|<sup>.*?</sup>)", equations.in_words(text))
    return "".join(
        part if part.startswith(("`", "<i>", "<sup>")) else re.sub(r"([*_<|])", r"\\\1", part)
        for part in parts
    )


def _facts(facts: object) -> str:
    lines = [
        f"* paper: {_linked(facts.paper)}",  # type: ignore[attr-defined]
        f"* kind: {kind_of_algorithm(facts)}",
        f"* measured {facts.measured.replace('_', ' ')}; both points are always recorded",  # type: ignore[attr-defined]
        f"* sends in a round: {facts.communication}",  # type: ignore[attr-defined]
    ]
    return "\n".join(lines)


def _settings(entry: object) -> list[str]:
    parameters = list(inspect.signature(entry).parameters.values())  # type: ignore[arg-type]
    if not parameters:
        return ["It has none of its own."]
    hints, meanings = hints_of(entry, "settings"), meanings_of(entry)
    lines = ["| name | value | default | meaning |", "|---|---|---|---|"]
    for one in parameters:
        default = "required" if one.default is one.empty else f"`{one.default!r}`"
        value = readable(hints[one.name]).replace(" | ", " or ")  # a bar would end the cell
        cells = (f"`{one.name}`", value, default, _plain(meanings.get(one.name, "")))
        lines.append(f"| {' | '.join(cells)} |")
    return ["\n".join(lines)]


def _presets(presets: dict[str, dict[str, object]]) -> list[str]:
    return [
        f"* `{name}`: " + ", ".join(f"`{key} = {value}`" for key, value in values.items())
        for name, values in presets.items()
    ]


def _when(facts: object) -> tuple[list[str], list[str]]:
    """What follows from the facts, for it and against it."""
    has = facts.__getattribute__
    use = {
        "personal": "* Everyone wants a model of their own.",
        "clusters": "* To see what perfect choice would give: it is told the true clusters.",
        "sealed": "* Receivers should see sums of models only: exchanges can be [sealed](../privacy.md).",
        "directed": "* Links may go one way only.",
        "architectures": "* Peers may have different networks.",
        "free_running": "* Real peers need not keep step.",
    }
    avoid = {
        "hub": "* Where nobody can be a server: it needs a hub that all can reach.",
        "clusters": "* Where the true clusters are not known.",
        "symmetric_only": "* Where links go one way only.",
        "validation": "* Where data are too few to set some aside for validation, by default a fifth.",
    }
    against = [said for name, said in avoid.items() if has(name)]
    if not has("personal"):
        against.append("* Where data contradict each other: it seeks one model for all, which hurts some.")
    if not has("free_running") and not has("hub"):
        against.append("* Where real peers cannot keep step.")
    return [said for name, said in use.items() if has(name)], against


def picture(name: str) -> str:
    """Who sent to whom in the last of a few rounds, as SVG: peers on a circle, a hub in the middle."""
    hub = algorithms[name].facts.hub
    links = _links_of_last_round(name)
    places = {
        peer: (
            150 + 110 * math.sin(2 * math.pi * peer / _PEERS),
            135 - 110 * math.cos(2 * math.pi * peer / _PEERS),
        )
        for peer in range(_PEERS)
    } | ({_PEERS: (150.0, 135.0)} if hub else {})
    lines = []
    for sender, receiver in sorted(links):
        (x, y), (u, v) = places[sender], places[receiver]
        length = math.hypot(u - x, v - y)
        u, v = u - (u - x) / length * 15, v - (v - y) / length * 15
        lines.append(f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{u:.0f}" y2="{v:.0f}"/>')
    dots = []
    for peer, (x, y) in places.items():
        name_of_peer = "hub" if peer == _PEERS else str(peer)
        dots.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="12"/>')
        dots.append(f'<text x="{x:.0f}" y="{y + 4:.0f}">{name_of_peer}</text>')
    said = f"Round {_ROUNDS} of {name} among {_PEERS} peers: {len(links)} links were used." + (
        "" if links else " Nobody sends."
    )
    return (
        f'<figure class="round"><svg viewBox="0 0 300 270" role="img" aria-label="{said}"><defs>'
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 8 4 0 8z"/></marker></defs>{"".join(lines)}{"".join(dots)}</svg>'
        f"<figcaption>{said}</figcaption></figure>"
    )


def _links_of_last_round(name: str) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()

    def look(record: object, history: object) -> None:
        found.clear()
        for traffic in record.traffic:  # type: ignore[attr-defined]
            found.update(zip(traffic.senders.tolist(), traffic.receivers.tolist(), strict=True))

    coterie.simulate(
        name,
        partition="rotations(2)",
        model="mlr",
        peers=_PEERS,
        rounds=_ROUNDS,
        execution={"executor": "stacked", "workers": 1},
        observer=look,
    )
    return found
