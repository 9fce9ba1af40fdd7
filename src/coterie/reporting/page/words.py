"""What was learned, in plain sentences: who gained, who lost, what it cost, what one may not conclude."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from coterie.reporting.numbers.curves import learning_curve
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.numbers.gains import Gains, gains_of, mean_of, worst_of
from coterie.reporting.numbers.known import POINT_NAMES, Known
from coterie.reporting.page.plainly import difference, in_words, is_nothing, listing, signed
from coterie.reporting.page.states import in_time
from coterie.reporting.tables import in_bytes
from coterie.spreads import MOST_LISTED

FEW_ROUNDS = 50
BLIND = ("random-gossip", "gossip-fedavg")  # they take whoever there is
TOLD = ("oracle",)  # knows the clusters


def of_run(run: OfFolder, local: OfFolder | None) -> list[str]:
    """One run, against Local on the same data if there is one."""
    if not run.rounds:
        return ["Nothing was measured so far."]
    said = [_reached([run], run.algorithm)]
    if local is not None:
        said += of_gains(gains_of([run], [local]), run)
    elif run.algorithm == "local":
        said.append("Local is training alone: what other methods are measured against.")
    inside = of_partners(run)
    return [*said, *([inside] if inside else []), cost_of(run)]


def _reached(group: Sequence[Known], label: str) -> str:
    first, mean, worst = group[0], mean_of(group), worst_of(group)
    if mean != mean:
        return f"{label} was not measured in its last round."
    seeds = f" and {len(group)} seeds" if len(group) > 1 else ""
    point = POINT_NAMES[first.point]
    return (
        f"{label} reached a mean {first.metric.title} of {in_words(first.metric, mean)} over {first.peers} "
        f"peers{seeds}, each measured on its own test data {point} in round {first.rounds[-1]}; the worst "
        f"tenth of the peers has {in_words(first.metric, worst)}."
    )


def of_gains(gains: Gains, run: Known) -> list[str]:
    """Who was helped and who was hurt."""
    counted = int((~np.isnan(gains.gain)).sum())
    if not counted:
        return ["No peer was measured both with this method and alone."]
    even = counted - gains.helped - gains.hurt
    sample = " in a sample" if run.peers > MOST_LISTED else ""
    hurt = f"{gains.hurt or 'none'} lost"
    parts = [f"{gains.helped or 'None'} of {counted} peers{sample} gained over learning alone", hurt]
    parts += [f"{even} came out even"] if even else []
    amount, word = difference(gains.metric, gains.mean), "better" if gains.mean >= 0 else "worse"
    mean = "the mean is the same" if is_nothing(amount) else f"the mean is {amount} {word}"
    said = [f"{', '.join(parts)}; {mean}."]
    if len(gains.gain) == run.peers and counted > 1:  # of one seed: peers can be named
        first, last = int(np.nanargmax(gains.gain)), int(np.nanargmin(gains.gain))
        most = f"Peer {run.name_of(first)} gained most ({signed(gains.metric, gains.gain[first])})"
        if gains.gain[last] < 0:
            lost = f"peer {run.name_of(last)} lost most ({signed(gains.metric, gains.gain[last])})"
            said.append(f"{most}, {lost}." if gains.gain[first] > 0 else f"{lost[0].upper()}{lost[1:]}.")
        elif gains.gain[first] > 0:
            said.append(f"{most}.")
    return said


def of_partners(run: OfFolder) -> str:
    """What share came from the own cluster, and what blind choice would have taken."""
    share, clusters = run.own_cluster_share, run.clusters
    if share is None or clusters is None or not run.received:
        return ""
    sizes = np.bincount(np.unique(clusters, return_inverse=True)[1])
    blind = float((sizes * (sizes - 1)).sum() / (run.peers * max(1, run.peers - 1)))
    return (
        f"{100 * share:.0f} % of what peers learned from others came from their own true cluster; "
        f"blind choice would take {100 * blind:.0f} %."
    )


def cost_of(run: OfFolder) -> str:
    rounds = len(run.done)
    sent = sum(run.done.bytes) - sum(run.done.hub_bytes)
    hub = f", and the hub sent {in_bytes(sum(run.done.hub_bytes))}" if sum(run.done.hub_bytes) else ""
    seconds, several = sum(run.done.seconds), "" if rounds == 1 else "s"
    each = f"Each peer sent {in_bytes(sent / run.peers)} on average" if sent else "No peer sent anything"
    return f"{each} in {rounds} round{several}{hub}; computing them took {in_time(seconds)}."


def cautions(groups: Sequence[Sequence[OfFolder]], *, compared: bool) -> list[str]:
    """What one may not conclude."""
    runs = [run for group in groups for run in group]
    said = []
    seeds = min((len(group) for group in groups), default=0)
    if seeds == 1:
        said.append(
            "This is one seed: another draw of data, partners and initial models may give "
            f"{'another order of methods' if compared else 'other numbers'}."
        )
    elif seeds < 5:
        said.append(f"{seeds} seeds are few: intervals over them are wide.")
    rounds = max((len(run.done) for run in runs), default=0)
    rising = [run for run in runs if still_rising(run)]
    if rising:
        names = listing(list(dict.fromkeys(run.algorithm for run in rising)))
        who = f"{names} {'was' if ' and ' not in names else 'were'}" if compared else "it was"
        said.append(f"After {rounds} rounds {who} still getting better: more rounds may change the picture.")
    elif rounds < FEW_ROUNDS:
        hint = "a method that starts slowly may overtake later" if compared else "more may change the picture"
        said.append(f"{rounds} round{'s are' if rounds != 1 else ' is'} few: {hint}.")
    if compared and (tuned := _tuned(groups)) > 1:
        said.append(f"{tuned} settings were compared by their test scores: being chosen flatters the best.")
    if compared and len({len(run.done) for run in runs}) > 1:
        said.append("The runs had different numbers of rounds.")
    if compared and (more := _more_work(runs)):
        said.append(f"Local work was not equal: {listing(more)} took more gradient steps than others.")
    return said


def _tuned(groups: Sequence[Sequence[OfFolder]]) -> int:
    """How many settings the algorithm has of which most were tried; 0 if none has two."""
    tried = Counter(group[0].algorithm for group in groups)
    most = max(tried.values(), default=0)
    return most if most > 1 else 0


def _more_work(runs: Sequence[OfFolder]) -> list[str]:
    """The methods that, on the same draw of data, took over 2 % more gradient steps than some other."""
    by_seed: dict[int, dict[str, float]] = {}
    for run in runs:
        entry = run.result.get("gradient_steps_per_peer")
        if isinstance(entry, Mapping) and entry.get("mean"):
            by_seed.setdefault(run.seed, {})[run.algorithm] = float(entry["mean"])
    found = [name for steps in by_seed.values() for name, count in steps.items()
             if count > 1.02 * min(steps.values())]  # fmt: skip
    return list(dict.fromkeys(found))


def still_rising(run: Known) -> bool:
    """Whether the last fifth of a curve brought a tenth or more of all that was gained."""
    if len(run.rounds) < 5:
        return False
    means = learning_curve([run]).mean
    all_gain = float(run.metric.gain(means[-1], means[0]))
    late = float(run.metric.gain(means[-1], means[-1 - len(means) // 5]))
    return all_gain > 0 and late >= 0.1 * all_gain


def whether_choosing_paid(groups: Mapping[str, Sequence[Known]]) -> str:
    """Methods that choose their partners, against those that take whoever there is."""
    by_name = {group[0].algorithm: (label, group) for label, group in groups.items()}
    blind = [by_name[name] for name in BLIND if name in by_name]
    choosing = [
        (label, group)
        for label, group in groups.items()
        if group[0].algorithm not in (*BLIND, *TOLD, "local", *_CONSENSUS)
    ]
    if not choosing and not blind:
        return "Nobody chose partners here, so whether that pays cannot be said."
    if not blind or not choosing:
        other = "one that takes whoever there is, such as random-gossip" if choosing else "one that chooses"
        return f"Whether choosing partners paid cannot be said: for that, compare with {other}."
    metric = blind[0][1][0].metric

    def score(entry: tuple[str, Sequence[Known]]) -> float:
        mean = mean_of(entry[1])
        return mean if metric.higher_is_better else -mean

    (chosen, group), (any_one, others) = max(choosing, key=score), max(blind, key=score)
    gain = score((chosen, group)) - score((any_one, others))
    if is_nothing(difference(metric, gain)):
        return f"Choosing partners made no difference: {chosen} ends level with {any_one}, {_WHOEVER}."
    paid = "Choosing partners paid" if gain > 0 else "Choosing partners did not pay"
    way = "above" if (gain > 0) == metric.higher_is_better else "below"
    return f"{paid}: {chosen} ends {difference(metric, gain)} {way} {any_one}, {_WHOEVER}."


_WHOEVER = "which takes whoever there is"


_CONSENSUS = ("d-psgd", "dfedavgm", "dfedsam", "osgp", "fedavg", "fedprox", "star-fedavg", "blend-dfl")
