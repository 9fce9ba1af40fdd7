"""The split into body and head that FedPer, FedRep, FedBABU, DFedAvgM-P and DFedPGP share.

The head is the last linear layer only (the papers' "linear classifier"), not everything from the
first fully connected layer on.
"""

from __future__ import annotations

from torch import nn

from coterie.errors import ConfigError


def head_names(module: nn.Module) -> tuple[str, ...]:
    """Parameter names of the head: the last `nn.Linear`, or what the attribute `head_names` lists.

    The attribute may list parameters (`classifier.weight`) or whole submodules (`classifier`).
    """
    parameters = [name for name, _ in module.named_parameters()]
    own = getattr(module, "head_names", None)
    if own is not None:
        wanted = (own,) if isinstance(own, str) else tuple(own)
    else:
        wanted = tuple(name for name, part in module.named_modules() if isinstance(part, nn.Linear))[-1:]
    if not wanted:
        raise ConfigError(
            f"{type(module).__name__} has no nn.Linear layer to be its head; give the class an attribute "
            f"head_names that lists the head's parameters"
        )
    for name in wanted:
        if not any(_belongs(parameter, name) for parameter in parameters):
            raise ConfigError(
                f"head_names of {type(module).__name__} lists {name!r}, which has no parameters"
            )
    return tuple(p for p in parameters if any(_belongs(p, name) for name in wanted))


def _belongs(parameter: str, name: str) -> bool:
    # A module that is itself one nn.Linear is named "" by torch.
    return not name or parameter == name or parameter.startswith(f"{name}.")
