"""BlendDFL's Algorithm 1 as one would write it in plain PyTorch: one mini-batch after another."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

LR, LAMBDA, T = 0.05, 1.0, 3.0


def class_weights(y: Tensor, progress: float) -> Tensor:
    """w of each sample: eq. 10 to 12."""
    beta = 1 / y.bincount().clamp(min=1)
    beta = beta / beta[y.unique()].mean()
    return (1 + progress * (beta - 1))[y]


class PlainBlendDFL:
    """Clients on a ring. Nobody's gradients are clipped, as the paper has it."""

    def __init__(self, x: Tensor, y: Tensor, epochs: int, batch: int, rounds: int) -> None:
        """x: (clients, samples, ...)."""
        self.x, self.y = x, y
        self.epochs, self.batch, self.rounds = epochs, batch, rounds
        torch.manual_seed(0)
        first = nn.Sequential(nn.Flatten(), nn.Linear(x[0, 0].numel(), 128), nn.ReLU(), nn.Linear(128, 10))
        self.models = [copy.deepcopy(first) for _ in x]  # theta-bar
        self.trained: list[nn.Module] = []  # theta^{t-1,K}, the teachers

    def near(self, client: int) -> list[int]:
        return [client - 1, client, (client + 1) % len(self.models)]

    def round(self, t: int) -> None:
        for client, model in enumerate(self.models):
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for _ in range(self.epochs):
                for chosen in torch.randperm(self.x.shape[1]).split(self.batch):
                    optimizer.zero_grad()
                    self.loss(t, client, self.x[client, chosen], self.y[client, chosen]).backward()
                    optimizer.step()
        self.trained = [copy.deepcopy(model) for model in self.models]
        states = [model.state_dict() for model in self.trained]
        for client, model in enumerate(self.models):
            near = [states[other] for other in self.near(client)]
            model.load_state_dict({name: sum(s[name] for s in near) / len(near) for name in near[0]})

    def loss(self, t: int, client: int, x: Tensor, y: Tensor) -> Tensor:
        z = self.models[client](x)
        if t == 0:
            return functional.cross_entropy(z, y)
        with torch.no_grad():
            teachers = [self.trained[other](x) for other in self.near(client)]
            soft = functional.log_softmax(torch.stack(teachers).mean(0) / T, 1)  # eq. 6
        w = class_weights(y, t / self.rounds)
        ce = (w * functional.cross_entropy(z, y, reduction="none")).sum() / w.sum()  # eq. 13
        kl = functional.kl_div(functional.log_softmax(z / T, 1), soft, reduction="none", log_target=True)
        kd = T**2 * (w * kl.sum(1)).sum() / w.sum()  # eq. 7, 8
        return ce + LAMBDA * kd  # eq. 14
