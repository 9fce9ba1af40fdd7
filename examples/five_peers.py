"""Five peers on your machine, each a process with a key of its own, over mutual TLS.

    python examples/five_peers.py

The steps are those of five organisations: each makes a key and a card, trusts the cards of the others, and
runs. No server is there, and no data leave a folder. At the end each peer's accuracy stands beside what the
simulator computes for the same experiment: they are equal. `coterie swarm` does the same in one command, and
docs/peers.md tells how two real machines do it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import coterie

EXPERIMENT = """
algorithm = "d-psgd"
data = "digits"
model = "mlp(32)"
partition = "dirichlet(0.5)"
topology = "full"
peers = {peers}
rounds = {rounds}
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "coterie", *map(str, arguments)]


def done(*arguments: object) -> str:
    """What a command of Coterie prints; one that fails ends the example."""
    return subprocess.run(command(*arguments), check=True, capture_output=True, text=True).stdout


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def make(folder: Path, peers: int, rounds: int) -> list[Path]:
    """A folder for each peer, with its key and the cards of the others."""
    experiment = folder / "experiment.toml"
    experiment.write_text(EXPERIMENT.format(peers=peers, rounds=rounds), encoding="utf-8")
    folders, cards = [], []
    for number, port in enumerate(free_ports(peers)):
        home, card = folder / f"clinic-{number}", folder / f"clinic-{number}.card"
        where = ["--number", number, "--listen", f"127.0.0.1:{port}", "--dir", home]
        done("peer", "init", home.name, *where, "--experiment", experiment)
        card.write_text(done("peer", "card", "--dir", home), encoding="utf-8")  # nothing secret is in it
        folders.append(home)
        cards.append(card)
    for number, home in enumerate(folders):
        done("peer", "trust", *(card for other, card in enumerate(cards) if other != number), "--dir", home)
    return folders


def run(folders: list[Path]) -> list[float]:
    """Each peer's accuracy after its last round."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = []
    for home in folders:
        with (home / "log").open("w", encoding="utf-8") as log:
            started.append(
                subprocess.Popen(command("peer", "run", "--dir", home), env=one_thread, stderr=log)
            )
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"the peers ended with {codes}")
    last = [(home / "records.jsonl").read_text(encoding="utf-8").splitlines()[-1] for home in folders]
    return [json.loads(line)["accuracy"]["after_mixing"] for line in last]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = make(Path(name), asked.peers, asked.rounds)
        real = run(folders)
        experiment = tomllib.loads((Path(name) / "experiment.toml").read_text(encoding="utf-8"))
    simulated = coterie.simulate(**experiment).personal_accuracy.tolist()
    print("peer        real  simulated")
    for home, one, other in zip(folders, real, simulated, strict=True):
        print(f"{home.name:9} {100 * one:6.1f} {100 * other:10.1f}")


if __name__ == "__main__":
    main()
