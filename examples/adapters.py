r"""A pretrained language model among peers: everyone trains an adapter, and sends no more than that.

    python examples/adapters.py --model FOLDER              # a model of transformers, such as MiniLM
    coterie run --data examples/adapters.py:load --model hf:FOLDER --peers 8 --rounds 4 --topology full \
                --algorithm d-psgd --set "adapter=lora(r=8,alpha=16,target=query|value)"

Needs the extras `transformers` and `adapters`; for the command line, MODEL_FOLDER names the folder whose
tokenizer is used. The texts are paragraphs of the documentation of two packages that are installed anyway.
A model learns whether a paragraph is about graphs (NetworkX) or pictures (Matplotlib); the names of both are
struck out. Peers come in four clusters: the first has the opening sentences of docstrings, the others what is
said of parameters, of results, and the notes. docs/adapters.md tells the rest.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import coterie

PACKAGES = ("networkx", "matplotlib")  # about graphs, or about pictures
KINDS = ("Summary", "Parameters", "Returns", "Notes")
NAMES = re.compile("|".join((*PACKAGES, r"\bnx\b", r"\bplt\b", r"\bmpl\b")), re.IGNORECASE)
LORA = "lora(r=4,alpha=8,target=query|key|value|attention.output.dense)"
RATE, RATE_ALONE, RATE_EVERYTHING = 3e-3, 1e-3, 1e-4  # chosen on validation texts: docs/adapters.md
WORDS = 40  # of a paragraph, at most
SHORTEST, LONGEST = 80, 400  # letters of a paragraph: fewer say too little


def load(peers: int, seed: int) -> coterie.Federation:
    """The texts of two peers in each of the four clusters."""
    return federation(peers, seed, os.environ.get("MODEL_FOLDER", ""))


def federation(
    peers: int, seed: int, folder: str, train: int = 8, test: int = 36, validation: int = 0
) -> coterie.Federation:
    """train, test: paragraphs of each package that a peer has.

    validation: so many others are in the place of those to test on, for choosing settings.
    """
    tokenizer = tokenizer_of(folder)
    rng, clusters = np.random.default_rng(seed), np.arange(peers) * len(KINDS) // peers
    shuffled = {
        (package, kind): rng.permutation(paragraphs(package)[kind]) for package in PACKAGES for kind in KINDS
    }
    datasets = []
    for peer, cluster in enumerate(clusters):
        number, alike = int((clusters[:peer] == cluster).sum()), int((clusters == cluster).sum())
        place, after = number * (train + test), alike * (train + test) + number * validation
        all_texts = [shuffled[package, KINDS[cluster]] for package in PACKAGES]
        start, count = (after, validation) if validation else (place + train, test)
        parts = {
            "train": [texts[place : place + train] for texts in all_texts],
            "test": [texts[start : start + count] for texts in all_texts],
        }
        datasets.append({name: _tokens(tokenizer, texts) for name, texts in parts.items()})
    return coterie.from_peers(datasets, n_classes=len(PACKAGES), class_names=PACKAGES)


def tokenizer_of(folder: str) -> Any:
    """What belongs to the model; the extras may be missing, and the folder wrong."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise SystemExit(
            f"This example needs {error.name}: pip install 'coterie[transformers,adapters]'"
        ) from None
    if not Path(folder).is_dir():
        raise SystemExit(f"There is no folder {folder!r} with a model and its tokenizer")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _tokens(tokenizer: Any, texts: list[Any]) -> tuple[dict[str, Any], Any]:
    """What the model takes, padded, and the number of the package."""
    flat = [str(text) for some in texts for text in some]
    found = tokenizer(flat, padding="max_length", truncation=True, max_length=WORDS, return_tensors="np")
    x = {name: found[name] for name in ("input_ids", "attention_mask")}
    return x, np.repeat(np.arange(len(texts)), [len(some) for some in texts])


@cache
def paragraphs(package: str) -> dict[str, list[str]]:
    """The paragraphs of a package's documentation by their kind, each once."""
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for text in _docstrings(package):
        first, *rest = re.split(r"^([A-Z]\w+)\n-{3,}\s*$", text, flags=re.MULTILINE)
        found["Summary"].add(first.partition("\n\n")[0])
        for title, section in zip(rest[::2], rest[1::2], strict=True):
            if title in KINDS:
                pattern = r"\n\s*\n" if title == "Notes" else r"^\S.*\n?"  # a line names the parameter
                found[title].update(re.split(pattern, section, flags=re.MULTILINE))
    return {kind: _tidy(texts) for kind, texts in found.items()}


def _docstrings(package: str) -> Iterator[str]:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for file in sorted(root.rglob("*.py")):
        if "test" not in str(file.relative_to(root)):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    yield ast.get_docstring(node) or ""


def _tidy(texts: set[str]) -> list[str]:
    """In one line each, neither short nor long, without examples and names of packages."""
    lines = (NAMES.sub("it", " ".join(text.split())) for text in texts)
    fitting = (line for line in lines if SHORTEST <= len(line) <= LONGEST)
    return sorted({line for line in fitting if not line.startswith((">>>", ".."))})


def main() -> None:
    parser = argparse.ArgumentParser(description="A pretrained language model among peers.")
    parser.add_argument(
        "--model", required=True, help="folder of a model of transformers, with its tokenizer"
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--train", type=int, default=8, help="training paragraphs of each package at a peer")
    parser.add_argument("--test", type=int, default=36, help="test paragraphs of each package at a peer")
    parser.add_argument("--validation", type=int, default=0, help="so many others are in their place")
    parser.add_argument(
        "--lr", type=float, help="learning rate of all adapters, in the place of each row's own"
    )
    parser.add_argument("--adapter", default=LORA)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the choice of texts and of all that is random"
    )
    parser.add_argument("--everything", action="store_true", help="also train and exchange the whole model")
    asked = parser.parse_args()
    data = federation(asked.peers, asked.seed, asked.model, asked.train, asked.test, asked.validation)
    how = {"adapter": asked.adapter, "training": training(asked.lr or RATE)}
    methods = {
        "alone": ("local", {**how, "training": training(asked.lr or RATE_ALONE)}),
        "Dec-LoRA": ("d-psgd", how),
        "FedSA-LoRA": ("dfedpgp", {**how, "shared": "lora_A"}),
    }
    if asked.everything:
        methods["everything"] = ("d-psgd", {"training": training(RATE_EVERYTHING)})
    for name, (algorithm, how) in methods.items():
        show(name, run(algorithm, data, asked.model, asked.rounds, seed=asked.seed, **how))


def training(lr: float) -> dict[str, Any]:
    """Four mini-batches in each round; AdamW remembers its averages from round to round."""
    how = {"optimizer": "adamw", "optimizer_state": "kept", "lr": lr, "clip": 1.0}
    return {**how, "batch_size": 8, "steps": 4, "work": "equal"}


def run(algorithm: str, data: coterie.Federation, folder: str, rounds: int, **how: Any) -> Any:
    plan = {"every": rounds, "global_accuracy": "never"}
    return coterie.simulate(
        algorithm, data, f"hf:{folder}", topology="full", rounds=rounds, evaluation=plan, **how
    )


def show(name: str, run: Any) -> None:
    scores, sent = run.personal_accuracy, float(run.totals.bytes_sent.double().mean())
    print(
        f"{name:<10}  mean {100 * float(scores.mean()):5.1f} %   sent per peer {sent / 1e6:8.2f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
