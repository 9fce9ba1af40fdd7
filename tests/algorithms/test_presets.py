"""Presets have the values that the papers print, or those chosen where a paper is silent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from coterie.catalogue import algorithms
from coterie.experiments.setup.config import resolve

Values = dict[str, Any]


def training(**values: Any) -> Values:
    return {f"training.{name}": value for name, value in values.items()}


# Table I: T_ex. Chosen, where the paper is silent: all else; c_base is 6 times the most samples of a user.
STAR = {"mu1": 1.0, "mu2": 0.1, "broadcast": "overwrite", **training(lr=0.01, batch_size=32)}
# "Adam ... batch size of 8 ... M = 3 ... three local epochs"; rates and q are tuned: those of the scripts.
PPDL = {"peers": 3, **training(optimizer="adam", batch_size=8, clip=0.0)}
VARIANT = {"q": 0.5, "q_last": 0.07, "q_decay": 0.9}
# "5 local training epochs ... 64 ... 0.01 and decays exponentially with a factor of 0.998 ... T = 3"
BLEND = {
    "temperature": 3.0,
    **training(epochs=5, batch_size=64, lr=0.01, lr_decay=0.998, momentum=0.0, weight_decay=5e-4, clip=10.0),
}
BLEND_TRAINING = {key: value for key, value in BLEND.items() if key != "temperature"}
# "The batch size is 128 ... 5 epochs per round ... 1 epoch for the personal part ... 0.1 ... 0.99x ... 0.9"
DIRECTED = {
    "head_epochs": 1,
    **training(epochs=5, batch_size=128, lr=0.1, lr_decay=0.99, momentum=0.9, weight_decay=5e-4, clip=10.0),
}
# The authors' repository: pulls from 10, even weights; its script loses the epochs.
DIRECTED_CODE = {"mixing": "uniform", "head_lr": 0.001, **training(augment="crop(4)+flip")}
# "5 of which are selected ... (10 in synthetic data) ... batch size of 20 ... 20 local epochs ... 0.01"
DIRECTED_TRAINING = {key: value for key, value in DIRECTED.items() if key != "head_epochs"}
STEPS = training(steps=20, batch_size=20, lr=0.01, lr_decay=1.0, momentum=0.0, weight_decay=0.0, clip=0.0)
TEACHING = {"alpha": 0.1, "server_lr": 0.01, **STEPS}

TABLE: dict[str, dict[str, Values]] = {
    "kd-pdfl": {
        "paper": {**STAR, "exchange_every": 20, "c_base": 600.0},
        "emnist": {**STAR, "exchange_every": 5, "c_base": 3000.0},
    },
    "ppdl": {
        "paper": {**PPDL, "q": 0.1, **training(epochs=3, lr=1e-4)},
        "code": {**PPDL, "q": 0.1, **training(epochs=1, lr=3e-4)},
    },
    "ppdl-var": {
        "paper": {**PPDL, **VARIANT, **training(epochs=3, lr=1e-4)},
        "code": {**PPDL, **VARIANT, **training(epochs=1, lr=3e-4)},
    },
    "blend-dfl": {
        "paper": {**BLEND, "kd_weight": 10.0},
        "grid-cifar10": {**BLEND, "kd_weight": 10.0},
        "grid-cifar100": {**BLEND, "kd_weight": 1.0},
        "ring-cifar10": {**BLEND, "kd_weight": 25.0},
        "ring-cifar100": {**BLEND, "kd_weight": 5.0},
    },
    "dfedpgp": {
        "paper": DIRECTED,
        "paper-decay": {**DIRECTED, "training.weight_decay": 0.005},  # as printed
        "code": {**DIRECTED, **DIRECTED_CODE},
        "code-as-shipped": {**DIRECTED, **DIRECTED_CODE, "training.epochs": 1},
    },
    "pfedkd-wcl": {
        "paper": {**TEACHING, "participation": 5 / 20, "server_update": "kl_grad"},
        "paper-synthetic": {**TEACHING, "participation": 10 / 100, "server_update": "kl_grad"},
        "authors-code": {**TEACHING, "participation": 0.25, "server_update": "kl_grad_reverse_lastclient"},
    },
    # Baselines, as the papers compare with them.
    "pfedme": {
        name: {
            "pull": pull,
            "personal_lr": rate,
            "participation": share,
            "inner_steps": 5,
            "beta": 1.0,
            **training(steps=20, batch_size=20, lr=0.005, lr_decay=1.0, clip=0.0),
        }
        for name, pull, rate, share in (
            ("paper", 15.0, 0.1, 0.25),
            ("paper-synthetic", 20.0, 0.01, 0.1),
            ("paper-synthetic-mlp", 30.0, 0.01, 0.1),
        )
    },
    "local": {
        "ppdl": {"best": True, **training(optimizer="adam", epochs=3, batch_size=8, lr=1e-4, clip=0.0)},
        "dfedpgp": DIRECTED_TRAINING,
        "pfedkd-wcl": STEPS,
    },
    "fedavg": {
        "dfedpgp": {**DIRECTED_TRAINING, "participation": 0.1},
        "pfedkd-wcl": {**STEPS, "participation": 0.25},
        "pfedkd-wcl-synthetic": {**STEPS, "participation": 0.1},
    },
    "ditto": {
        "paper": {"pull": 1.0},
        "dis-pfl": {
            "pull": 0.5,
            "global_epochs": 2,
            "personal_epochs": 3,
            **training(batch_size=128, lr=0.1, lr_decay=0.998, weight_decay=5e-4, clip=10.0),
        },
        "dfedpgp": {
            **DIRECTED_TRAINING,
            "participation": 0.1,
            "pull": 0.5,
            "global_epochs": 2,
            "personal_epochs": 3,
        },
    },
    "fedprox": {
        "pfedkd-wcl": {**STEPS, "participation": 0.25, "mu": 0.01},
        "pfedkd-wcl-synthetic": {**STEPS, "participation": 0.1, "mu": 0.01},
    },
    "random-gossip": {"ppdl": {**PPDL, **training(epochs=3, lr=1e-4)}},
    "oracle": {"ppdl": {**PPDL, **training(epochs=3, lr=1e-4)}},
    **{
        name: {
            "ppdl": {**PPDL, "tau": 30.0, **training(epochs=3, lr=1e-4)},
            "paper": {**PPDL, "peers": 5, "tau": 30.0, **training(epochs=3, lr=1e-4)},
        }
        for name in ("dac", "dac-var")
    },
    "d-psgd": {"blend-dfl": BLEND_TRAINING},
    "dfedavgm": {
        "blend-dfl": {  # its own momentum stands in the place of that of the training
            "momentum": 0.9,
            **{key: value for key, value in BLEND_TRAINING.items() if key != "training.momentum"},
            "training.weight_decay": 0.0,
        },
        "dfedpgp": {"momentum": 0.9, **DIRECTED_TRAINING},
    },
    "dfedavgm-p": {"dfedpgp": {"momentum": 0.9, **DIRECTED}},
    "dfedsam": {
        "blend-dfl": {"rho": 0.01, **BLEND_TRAINING, "training.weight_decay": 0.0, "training.clip": 0.0}
    },
    "osgp": {"dfedpgp": DIRECTED_TRAINING},
    # The authors' scripts: "lr 0.1 * 0.998^t, momentum 0, wd 5e-4, batch 128", density and a 0.5; they regrow
    # at random, the paper by gradients.
    "dis-pfl": {
        name: {
            "density": 0.5,
            "pruning": 0.5,
            "regrow": regrow,
            **training(epochs=5, batch_size=128, lr=0.1, lr_decay=0.998, momentum=0.0, weight_decay=5e-4),
            **training(clip=10.0),
        }
        for name, regrow in (("paper", "gradient"), ("code", "random"))
    },
    "fedper": {"dfedpgp": {"participation": 0.1, **DIRECTED_TRAINING}},
    "fedrep": {
        # The authors' scripts: 10 head epochs and 1 of the body.
        "paper": {
            "participation": 0.1,
            "head_epochs": 10,
            **training(epochs=1, batch_size=10, lr=0.01, momentum=0.5, clip=0.0),
        },
        "dfedpgp": {"participation": 0.1, **DIRECTED},
    },
    "fedbabu": {"dfedpgp": {"participation": 0.1, "finetune_epochs": 5, **DIRECTED_TRAINING}},
    # The defaults of the authors' code: 3 + 1 epochs, batch 64, rate 0.1, tau 2, T 3.5, lambda 0.25.
    "pdfl": {
        "code": {
            "attention_temperature": 2.0,
            "temperature": 3.5,
            "kd_weight": 0.25,
            **DIRECTED_TRAINING,
            **training(epochs=4, batch_size=64),
        }
    },
    "cobo": {"paper": {"gamma": 0.01, "rho": 0.05}},
    "pfedgraph": {"paper": {"similarity": 0.8, "pull": 0.01}},
    # The authors' script for Fashion-MNIST: one epoch of batches of 10, rate 0.005, mu 1, kappa 50.
    "dbe": {
        "code": {
            "kappa": 50.0,
            "mu": 1.0,
            **training(epochs=1, batch_size=10, lr=0.005, momentum=0.0, weight_decay=0.0, clip=0.0),
        }
    },
    "fedala": {"paper": {"eta": 1.0, "adaptive": "head"}},
    "dfedsalt": {"dfedpgp": {"rho": 0.05, **DIRECTED}},
    # a = 0.01 and b = 0.002 in pFedKD-WCL
    "per-fedavg": {
        name: {"adaptation_lr": 0.01, **STEPS, "training.lr": 0.002, "participation": share}
        for name, share in (("pfedkd-wcl", 0.25), ("pfedkd-wcl-synthetic", 0.1))
    },
    "star-fedavg": {
        name: {"exchange_every": every, **training(lr=0.01, batch_size=32)}
        for name, every in (("paper", 20), ("emnist", 5))
    },
    # The switch is at iteration 2000 and 150.
    "fedavg-plus": {
        name: {"exchange_every": every, "switch_at": at, **training(lr=0.01, batch_size=32)}
        for name, every, at in (("paper", 20, 2000 // 20), ("emnist", 5, 150 // 5))
    },
}


def test_every_preset_is_in_the_table() -> None:
    assert {name for name in algorithms if algorithms[name].presets} == set(TABLE)


@pytest.mark.parametrize(("algorithm", "expected"), TABLE.items())
def test_presets_have_the_papers_values(algorithm: str, expected: dict[str, Values]) -> None:
    kind: Any = algorithms[algorithm]
    assert set(kind.presets) == set(expected)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    for name, values in expected.items():
        preset = dict(kind.presets[name])
        assert not set(preset) - set(values), f"{name} sets what this table does not know"
        assert {key: {**defaults, **preset}.get(key) for key in values} == values, name


@pytest.mark.parametrize(
    ("algorithm", "preset"), [(name, preset) for name in algorithms for preset in algorithms[name].presets]
)
def test_every_preset_is_a_valid_experiment(algorithm: str, preset: str) -> None:
    resolve({"algorithm": algorithm, "preset": preset})
