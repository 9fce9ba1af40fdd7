"""One run as the page shows it: curves, peers, who learned from whom, traffic, labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import RunFolderError
from coterie.reporting.numbers.curves import learning_curve
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.numbers.gains import gains_of
from coterie.reporting.numbers.known import POINT_NAMES, Array
from coterie.reporting.numbers.places import Places, places_of
from coterie.reporting.numbers.traffic import traffic_of
from coterie.reporting.page import words
from coterie.reporting.page.plainly import flat, metric_entry, plain
from coterie.reporting.page.states import in_time, of_other_version, state_of
from coterie.reporting.tables import in_bytes
from coterie.sharing import inside_share, shares_of
from coterie.spreads import MOST_LISTED

MOST_LINKS = 20_000  # in one picture; of more, the strongest
MOST_ROWS = 200  # of links in a table
MOST_PARTNERS = 12  # of one peer over time
_SHARE_UNIT = 10_000  # shares are sent as whole numbers of this


@dataclass(frozen=True)
class Shown:
    """A run with what it is compared with, and where its peers stand."""

    run: OfFolder
    local: OfFolder | None
    places: Places


def shown(run: OfFolder, local: OfFolder | None, places: Places | None = None) -> Shown:
    return Shown(run, local, places or places_of(run))


def one_run(one: Shown, identity: str, title: str, local_identity: str | None = None) -> dict[str, Any]:
    run, local = one.run, one.local
    return {
        "id": identity,
        "title": title,
        "state": state_of(run).entry(),
        "facts": _facts(run),
        "inside": plain(run.own_cluster_share),
        "seconds": f"{in_time(sum(run.done.seconds))} of computing" if run.done.seconds else "",
        "algorithm": run.algorithm,
        "metric": metric_entry(run.metric),
        "peers": run.peers,
        "shown": None if len(run.shown) == run.peers else run.shown.tolist(),
        "names": [run.names[peer] for peer in run.shown] if run.names else None,
        "rounds": {"done": len(run.done), "planned": run.planned},
        "config": {key: str(value) for key, value in flat(run.config).items()},
        "started": run.environment.get("started"),
        "words": [*words.of_run(run, local), *words.cautions([[run]], compared=False)],
        "notes": notes(one),
        "curve": curve_entry(run, local),
        "gains": _gains(one, local_identity),
        "links": _links(one),
        "traffic": _traffic(run),
        "labels": _labels(run),
    }


def _facts(run: OfFolder) -> str:
    """What was run, in one line."""
    told = [run.config.get(key) for key in ("data", "partition", "topology", "model")]
    parts = [run.algorithm, f"{run.peers} peers", *(str(value) for value in told if value)]
    when = str(run.environment.get("started") or "").replace("T", " ")[:16]
    return " · ".join([*parts, f"seed {run.seed}", *([f"started {when}"] if when else [])])


def notes(one: Shown) -> list[str]:
    """What a reader must know of what is shown."""
    run = one.run
    said = [of_other_version(run)]
    if len(run.shown) < run.peers:
        sample = f"{len(run.shown)} of {run.peers} peers, evenly spaced"
        said.append(f"Pictures of single peers and links show a sample: {sample}.")
    if run.peers > MOST_LISTED:
        said.append(
            "Curves, means and tenths are over all peers; of single peers only the sample is recorded, and "
            "single messages are not."
        )
    if not run.point_known:
        said.append(
            "It is not known at which point of a round this method is measured; after mixing is shown."
        )
    if one.local is None and run.algorithm != "local":
        said.append(
            "There is no finished run of Local on the same data here, so that gains over it are unknown; "
            "coterie compare always has one."
        )
    if run.messages.cut:
        said.append("links.csv is long: who learned from whom is shown for its last rounds only.")
    return [text for text in said if text]


def curve_entry(run: OfFolder, local: OfFolder | None = None) -> dict[str, Any]:
    curve = learning_curve([run])
    alone = learning_curve([local]) if local is not None else None
    return {
        "rounds": curve.rounds,
        "mean": plain(curve.mean),
        "other": plain(curve.other),
        "worst": plain(curve.worst),
        "best": plain(curve.best),
        "point": POINT_NAMES[run.point],
        "other_point": POINT_NAMES[run.other_point],
        "local": None if alone is None else {"rounds": alone.rounds, "mean": plain(alone.mean)},
    }


def _gains(one: Shown, local_identity: str | None) -> dict[str, Any]:
    """Peers in the order of their gain, or of their scores without Local; places among the shown."""
    run, among = one.run, one.run.shown
    mine = run.reported[among]
    if one.local is None:
        sign = -1 if run.metric.higher_is_better else 1
        order = np.argsort(sign * mine, kind="stable")
        return {"local": None, "order": order.tolist(), "mine": plain(mine)}
    gains = gains_of([run], [one.local])
    gain = gains.gain[among]
    return {
        "local": local_identity,
        "order": np.argsort(-gain, kind="stable").tolist(),
        "mine": plain(mine),
        "alone": plain(gains.local[among]),
        "gain": plain(gain),
        "helped": gains.helped,
        "hurt": gains.hurt,
        "mean": plain(gains.mean),
        "words": " ".join(words.of_gains(gains, run)),
    }


def _links(one: Shown) -> dict[str, Any]:
    run, places = one.run, one.places
    kinds = {}
    if run.received:
        first = int(run.arrived.column("round").min()) + 1
        kinds["so far"] = kinds["in this round"] = list(range(first, len(run.done) + 1))
    if run.weights:
        kinds["weights"] = sorted(run.weights)
    known = {"cluster": "true cluster", "community": "found community", "none": "group"}
    return {
        "kinds": kinds,
        "default": "weights" if run.learned is not None else "so far",
        "positions": plain(places.positions, 4),
        "groups": places.groups.tolist(),
        "group_kind": known[places.kind],
        "order": np.argsort(places.groups, kind="stable").tolist(),
    }


def links_at(one: Shown, kind: str, round: int) -> dict[str, Any]:
    """Who learned from whom in a round, counted from 1; receivers and senders are places among the shown."""
    run, groups = one.run, one.places.groups
    shares = _shares_at(run, kind, round)
    receivers, senders = np.nonzero(shares)
    values = shares[receivers, senders]
    total = len(values)
    if total > MOST_LINKS:
        strongest = np.sort(np.argsort(-values, kind="stable")[:MOST_LINKS])
        receivers, senders, values = receivers[strongest], senders[strongest], values[strongest]
    grouped = one.places.kind != "none"
    return {
        "kind": kind,
        "round": round,
        "total": total,
        "receivers": receivers.tolist(),
        "senders": senders.tolist(),
        "shares": np.round(values * _SHARE_UNIT).astype(int).tolist(),
        "unit": _SHARE_UNIT,
        "inside": plain(inside_share(shares, groups)) if grouped else None,
        "learners": int((shares.sum(1) > 0).sum()),
    }


def _shares_at(run: OfFolder, kind: str, round: int) -> Array:
    if kind == "weights":
        if round not in run.weights:
            raise RunFolderError(f"there are no weights of round {round}")
        return run.weights[round]
    if kind not in ("so far", "in this round") or not 1 <= round <= len(run.done):
        raise RunFolderError(f"there is no picture {kind!r} of round {round}")
    shares: Array = shares_of(run.counts(0 if kind == "so far" else round - 1, round))
    return shares


def _traffic(run: OfFolder) -> dict[str, Any]:
    found = traffic_of(run)
    busiest, among = found.busiest, run.shown
    top = slice(MOST_ROWS)
    links = zip(
        found.senders[top], found.receivers[top], found.link_bytes[top], found.link_messages[top], strict=True
    )
    return {
        "whole": found.whole,
        "sent": plain(found.sent[among].tolist()),
        "received": plain(found.received[among].tolist()),
        "per_peer": found.per_peer,
        "busiest": None
        if busiest is None
        else {
            "name": found.name_of(busiest, run),
            "bytes": int(found.sent[busiest]),
            "text": in_bytes(int(found.sent[busiest])),
        },
        "links": [
            [found.name_of(int(a), run), found.name_of(int(b), run), int(size), int(count)]
            for a, b, size, count in links
        ],
        "total_links": len(found.senders),
        "by_round": {"rounds": list(range(1, len(run.done) + 1)), "bytes": run.done.bytes},
        "words": _traffic_words(run, found, busiest),
    }


def _traffic_words(run: OfFolder, found: Any, busiest: int | None) -> str:
    total = sum(run.done.bytes)
    if not total:
        return "Nothing was sent."
    said = f"{in_bytes(total)} went over all links in {len(run.done)} rounds"
    if not found.whole:
        return f"{said}. Not all messages are listed one by one, so that single links are incomplete."
    most = ""
    if busiest is not None and found.sent.min() < found.sent[busiest]:  # else all sent as much
        most = f"; {found.name_of(busiest, run)} sent most, {in_bytes(int(found.sent[busiest]))}"
    return f"{said}, {in_bytes(found.per_peer)} per peer{most}."


def _labels(run: OfFolder) -> dict[str, Any] | None:
    people = run.people
    if people.labels is None:
        return None
    return {"classes": people.classes, "counts": people.labels[people.places(run.shown)].tolist()}


def one_peer(one: Shown, place: int) -> dict[str, Any]:
    """A peer's own page: its curve against Local, its partners over time. place: among the shown."""
    run = one.run
    if not 0 <= place < len(run.shown):
        raise RunFolderError(f"there is no peer at place {place}")
    peer = int(run.shown[place])
    own, other = run.scores(run.point)[:, peer], run.scores(run.other_point)[:, peer]
    alone = one.local
    local = (
        None
        if alone is None
        else {"rounds": alone.rounds, "scores": plain(alone.scores(alone.point)[:, peer])}
    )
    return {
        "place": place,
        "name": run.name_of(peer),
        "group": int(one.places.groups[place]),
        "curve": {"rounds": run.rounds, "own": plain(own), "other": plain(other), "local": local},
        "partners": _partners(one, peer),
        "samples": run.people.train[int(run.people.places(peer))] if run.people.train else None,
        "words": _peer_words(one, peer),
    }


def _partners(one: Shown, peer: int) -> dict[str, Any]:
    """Models that arrived from those it heard of most, round by round, and the groups of these."""
    run = one.run
    group_of = dict(zip(run.shown.tolist(), one.places.groups.tolist(), strict=True))
    mine = run.arrived.table[run.arrived.column("receiver") == peer]
    rounds, senders = mine[:, 0], mine[:, 2]
    whom, counts = np.unique(senders, return_counts=True)
    most = whom[np.argsort(-counts, kind="stable")[:MOST_PARTNERS]]
    matrix = np.zeros((len(most), len(run.done)), np.int64)
    for row, sender in enumerate(most):
        np.add.at(matrix[row], rounds[senders == sender], 1)
    return {
        "names": [run.name_of(int(sender)) for sender in most],
        "groups": [group_of.get(int(sender), 0) for sender in most],
        "counts": matrix.tolist(),
        "rounds": list(range(1, len(run.done) + 1)),
        "total": len(whom),
    }


def _peer_words(one: Shown, peer: int) -> str:
    run, score = one.run, float(one.run.reported[peer])
    if score != score:
        return "It was not measured."
    said = f"It has {words.in_words(run.metric, score)} {run.metric.title}"
    mean = run.mean
    said += f", where the mean of all peers is {words.in_words(run.metric, mean)}"
    if one.local is not None:
        alone = float(one.local.reported[peer])
        gain = float(run.metric.gain(score, alone))
        if gain == gain:
            way = "gained" if gain > 0 else "lost" if gain < 0 else "neither gained nor lost"
            amount = f" {words.difference(run.metric, gain)}" if gain else ""
            said += f"; alone it has {words.in_words(run.metric, alone)}, so it {way}{amount}"
    return f"{said}."
