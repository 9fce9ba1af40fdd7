r"""Text of different speakers: sentences of different lengths, tokens, and a network of one's own.

    python examples/text_by_speakers.py
    coterie run --data examples/text_by_speakers.py:load --model examples/text_by_speakers.py:Listener \
                --peers 8 --rounds 20 --topology ring --algorithm d-psgd

Every peer is a speaker who asks for things, and a model learns where they are found. Everyone has ways to ask
of their own. Half of the speakers are British, half American, and some words mean different things to them: a
bonnet is part of a car or a hat. So it matters who learns from whom. docs/own-data.md and docs/own-model.md
tell more.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import coterie

PLACES = ("kitchen", "wardrobe", "garage", "garden")
THINGS = {  # where all speakers find them
    "kettle": "kitchen", "bread": "kitchen", "butter": "kitchen", "spoon": "kitchen", "plate": "kitchen",
    "scarf": "wardrobe", "gloves": "wardrobe", "socks": "wardrobe", "coat": "wardrobe", "belt": "wardrobe",
    "engine": "garage", "tyre": "garage", "jack": "garage", "spanner": "garage", "battery": "garage",
    "rake": "garden", "hose": "garden", "seeds": "garden", "hedge": "garden", "roses": "garden",
}  # fmt: skip
AMBIGUOUS = {  # where a British, and where an American speaker finds them
    "bonnet": ("garage", "wardrobe"),
    "boot": ("garage", "wardrobe"),
    "jumper": ("wardrobe", "garage"),
    "biscuit": ("garden", "kitchen"),  # for the birds, or with gravy
    "bird": ("kitchen", "garden"),  # roast, or singing
    "mince": ("kitchen", "garage"),
    "torch": ("garage", "garden"),
    "braces": ("wardrobe", "garage"),
}
WAYS_TO_ASK = (
    "please bring me the {}",
    "where on earth is the {}",
    "could you look for the {} when you have a minute",
    "the {} quick",
    "i have lost the {} again and need it before the guests arrive",
    "would you be so kind as to fetch my {}",
    "{} please",
    "has anyone seen the {} that was here this morning",
    "go and get the {} for your sister",
    "tell me who took the {}",
    "i dreamt of the {} last night",
    "mind the {} on your way out",
)
WORDS = sorted(
    {word for sentence in WAYS_TO_ASK for word in sentence.replace("{}", "").split()} | {*THINGS, *AMBIGUOUS}
)
NUMBER = {word: number for number, word in enumerate(WORDS)}


class Listener(nn.Module):
    """The mean of the words that are there; padding is not."""

    def __init__(self, n_classes: int, width: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), width)
        self.hidden, self.head = nn.Linear(width, width), nn.Linear(width, n_classes)

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        there = attention_mask[..., None].float()
        heard = (self.words(tokens) * there).sum(1) / there.sum(1)
        logits: Tensor = self.head(torch.relu(self.hidden(heard)))
        return logits


def tokens(sentence: str) -> list[int]:
    """The number of each word."""
    return [NUMBER[word] for word in sentence.split()]


def load(peers: int, seed: int) -> list[Any]:
    """What each speaker says: sentences as lists of numbers, and where the thing is found."""
    return [speaker(number, seed) for number in range(peers)]


def speaker(number: int, seed: int, sentences: int = 80) -> tuple[list[list[int]], list[int]]:
    """Even speakers are British, odd ones American; each asks in three ways of their own."""
    rng = np.random.default_rng((seed, number))
    ways = rng.choice(WAYS_TO_ASK, size=3, replace=False)
    found = {**THINGS, **{thing: places[number % 2] for thing, places in AMBIGUOUS.items()}}
    things = rng.choice(list(found), size=sentences)
    said = [tokens(rng.choice(ways).format(thing)) for thing in things]
    return said, [PLACES.index(found[thing]) for thing in things]


def main() -> None:
    parser = argparse.ArgumentParser(description="Text of different speakers.")
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    everyone = list(combinations(range(asked.peers), 2))
    alike = [(one, other) for one, other in everyone if one % 2 == other % 2]
    for who, algorithm, links in (
        ("alone", "local", everyone),
        ("with everyone", "d-psgd", everyone),
        ("with those who speak alike", "d-psgd", alike),
    ):
        run = coterie.simulate(
            algorithm,
            data=load(asked.peers, seed=0),
            model=Listener,
            topology=links,
            rounds=asked.rounds,
            training={"lr": 1.0, "batch_size": 8},
        )
        print(f"learning {who:26}  accuracy {100 * run.personal_accuracy.mean():5.1f} %")
    for peer, dialect in ((0, "British"), (1, "American")):
        place = int(run.predict(peer, [tokens("please bring me the bonnet")]).argmax())
        print(f"a bonnet of the {dialect} speaker is in the {PLACES[place]}")


if __name__ == "__main__":
    main()
