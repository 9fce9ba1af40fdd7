"""A plain PyTorch loop with DataLoaders, as tutorials write it."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, LR, PEERS, images, timed, torch_network

x, y = images()
loaders = [
    DataLoader(TensorDataset(torch.from_numpy(a), torch.from_numpy(b)), batch_size=BATCH, shuffle=True)
    for a, b in zip(x, y, strict=True)
]
models = [torch_network() for _ in range(PEERS)]
loss_of = nn.CrossEntropyLoss()


def one_round() -> None:
    for model, loader in zip(models, loaders, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for images_of_batch, labels in loader:
            optimizer.zero_grad()
            loss_of(model(images_of_batch), labels).backward()
            optimizer.step()
    states = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
    for peer, model in enumerate(models):
        near = (states[peer - 1], states[peer], states[(peer + 1) % PEERS])
        mixed = {name: sum(state[name] for state in near) / 3 for name in states[0]}
        model.load_state_dict(mixed)


timed(one_round)
