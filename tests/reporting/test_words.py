"""What was learned, in sentences: folders written by hand, whose numbers one can work out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.reporting.page.found import FoundRuns

Scores = Sequence[Sequence[float]]  # by round, then by peer


def write(folder: Path, algorithm: str, scores: Scores, *, seed: int = 0, size: int = 0, lr: float = 0.1,
          steps: int = 10, cluster_share: float | None = None) -> None:  # fmt: skip
    """A finished run. size: bytes that all peers send in a round."""
    folder.mkdir(parents=True)
    peers, rounds = len(scores[0]), len(scores)
    config = [f'algorithm = "{algorithm}"', f"peers = {peers}", f"rounds = {rounds}", f"seed = {seed}"]
    (folder / "config.toml").write_text("\n".join([*config, 'data = "d"', f"settings = {{ lr = {lr} }}", ""]))
    lines = [f"{number},0.5,{peers},{size},0" for number in range(rounds)]
    (folder / "rounds.csv").write_text("\n".join(["round,seconds,messages,bytes,hub_bytes", *lines, ""]))
    lines = [f"{r},{p},{value},{value}" for r, row in enumerate(scores) for p, value in enumerate(row)]
    head = "round,peer,accuracy_after_local,accuracy_after_mixing"
    (folder / "metrics.csv").write_text("\n".join([head, *lines, ""]))
    lines = ["0,0,1,0,1,1", "0,0,0,1,1,1"] if size else []
    (folder / "links.csv").write_text(
        "\n".join(["round,exchange,sender,receiver,bytes,delivered", *lines, ""])
    )
    people = [f"{peer},,10,0,10,{peer % 2}" for peer in range(peers)]
    (folder / "peers.csv").write_text("\n".join(["peer,name,train,validation,test,cluster", *people, ""]))
    result = {"metric": "accuracy", "percent": True, "higher_is_better": True, "point": "after_mixing",
              "own_cluster_share": cluster_share, "gradient_steps_per_peer": {"mean": steps}}  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))


def compared(place: Path, runs: Mapping[str, Scores], size: int = 4000) -> list[str]:
    for name, scores in runs.items():
        write(place / "all" / name, name, scores, size=0 if name == "local" else size)
    (place / "all" / "compare.json").write_text("[]")
    found = FoundRuns(place)
    found.look()
    words: list[str] = found.compare(["all"])["words"]
    return words


def flat(*values: float) -> Scores:
    """Sixty rounds without a change."""
    return [values] * 60


def test_one_run_says_who_gained_who_lost_and_what_it_cost(tmp_path: Path) -> None:
    write(tmp_path / "local", "local", [[0.5, 0.5, 0.5, 0.5]] * 2)
    write(tmp_path / "kin", "kin", [[0.5] * 4, [0.7, 0.4, 0.5, 0.6]], size=4000, cluster_share=0.9)
    found = FoundRuns(tmp_path)
    found.look()
    said = found.one("kin")["words"]
    assert said == [
        "kin reached a mean accuracy of 55.0 % over 4 peers, each measured on its own test data after mixing "
        "in round 2; the worst tenth of the peers has 40.0 %.",
        "2 of 4 peers gained over learning alone, 1 lost, 1 came out even; the mean is 5.0 points better.",
        "Peer 0 gained most (+20.0), peer 1 lost most (-10.0).",
        # two clusters of two: 1 of 3 others is of one's own
        "90 % of what peers learned from others came from their own true cluster; blind choice would take "
        "33 %.",
        "Each peer sent 2 kB on average in 2 rounds; computing them took 1 s.",
        "This is one seed: another draw of data, partners and initial models may give other numbers.",
        "2 rounds are few: more may change the picture.",
    ]
    assert found.one("local")["words"][1:3] == [
        "Local is training alone: what other methods are measured against.",
        "No peer sent anything in 2 rounds; computing them took 1 s.",
    ]


def test_a_comparison_says_whether_choosing_partners_paid(tmp_path: Path) -> None:
    said = compared(
        tmp_path, {"local": flat(0.5, 0.5), "random-gossip": flat(0.4, 0.5), "kin": flat(0.6, 0.7)}
    )
    assert said == [
        "kin comes out best: a mean accuracy of 65.0 % over 2 peers, each measured on its own test data.",
        "Against learning alone, peers gain or lose on average: kin +15.0 points (2 of 2 gain, 0 lose); "
        "random-gossip -5.0 points (0 of 2 gain, 1 lose).",
        "Choosing partners paid: kin ends 20.0 points above random-gossip, which takes whoever there is.",
        "Each of them sent 120 kB per peer.",
        "This is one seed: another draw of data, partners and initial models may give another order of "
        "methods.",
    ]


def test_who_is_told_the_clusters_does_not_win_alone(tmp_path: Path) -> None:
    said = compared(tmp_path, {"local": flat(0.5, 0.5), "oracle": flat(0.9, 0.9), "kin": flat(0.7, 0.7)})
    assert said[0].endswith(
        "But oracle is told the true clusters; of those that are not, kin is best with 70.0 %."
    )
    assert "for that, compare with one that takes whoever there is, such as random-gossip." in said[2]


def test_on_other_data_nobody_wins(tmp_path: Path) -> None:
    write(tmp_path / "two", "kin", flat(0.9, 0.9), size=4000)
    write(tmp_path / "three", "d-psgd", flat(0.5, 0.5, 0.5), size=4000)
    found = FoundRuns(tmp_path)
    found.look()
    shown = found.compare(found.names)
    said = shown["words"]
    assert not shown["alike"]  # so that the page sets no score in bold
    assert said[0].endswith("their scores are not comparable, and none is best.")
    assert not any("comes out best" in one or "partners" in one.split(":")[0] for one in said)


def test_what_is_level_is_called_level(tmp_path: Path) -> None:
    said = compared(
        tmp_path, {"local": flat(0.4, 0.4), "random-gossip": flat(0.5, 0.5), "kin": flat(0.5, 0.5)}
    )
    assert said[0].startswith("kin and random-gossip come out best, and level: a mean accuracy of 50.0 %")
    assert said[2] == (
        "Choosing partners made no difference: kin ends level with random-gossip, which takes whoever there "
        "is."
    )


def test_settings_of_one_method_are_not_an_answer_about_partners(tmp_path: Path) -> None:
    for lr, score in ((0.1, 0.5), (0.5, 0.7)):
        for seed in range(2):
            shown = flat(score + 0.02 * seed, score + 0.02 * seed)
            write(tmp_path / f"{lr}-{seed}", "kin", shown, lr=lr, seed=seed, size=4000)
    found = FoundRuns(tmp_path)
    found.look()
    said = found.compare(found.names)["words"]
    assert said[0].startswith(
        "kin (lr 0.5) comes out best: a mean accuracy of 71.0 % over 2 peers and 2 seeds"
    )
    assert not any("partners paid" in one or "cannot tell" in one for one in said)
    assert said[1].startswith("Who gained and who lost is not known")
    assert said[-2:] == [
        "2 seeds are few: intervals over them are wide.",
        "2 settings were compared by their test scores: being chosen flatters the best.",
    ]


def test_seeds_that_cannot_tell_two_methods_apart_say_so(tmp_path: Path) -> None:
    """Differences of +10 and 0: mean 5, and Student's quantile 12.706 times 5 is 63.5."""
    for seed, (kin, random) in enumerate([(0.7, 0.6), (0.6, 0.6)]):
        write(tmp_path / f"kin-{seed}", "kin", flat(kin, kin), seed=seed, size=4000)
        write(tmp_path / f"random-{seed}", "random-gossip", flat(random, random), seed=seed, size=4000)
    found = FoundRuns(tmp_path)
    found.look()
    assert found.compare(found.names)["words"][1] == (
        "2 seeds cannot tell it from random-gossip: the 95 % interval of their difference, -58.5 to +68.5, "
        "holds 0."
    )


def test_more_work_and_curves_that_still_rise_are_said(tmp_path: Path) -> None:
    rising = [[0.01 * number] * 2 for number in range(10)]
    write(tmp_path / "local", "local", [[0.5, 0.5]] * 10, steps=10)
    write(tmp_path / "kin", "kin", rising, steps=20, size=4000)
    found = FoundRuns(tmp_path)
    found.look()
    said = found.compare(found.names)["words"]
    assert said[-2:] == [
        "After 10 rounds kin was still getting better: more rounds may change the picture.",
        "Local work was not equal: kin took more gradient steps than others.",
    ]
