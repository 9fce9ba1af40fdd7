"""Adapters: few parameters that train beside a frozen network. PEFT makes them, and saves them.

Installed with `pip install coterie[adapters]`.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from coterie.errors import ConfigError
from coterie.models.parts import NEW_LAYERS, copy_of, matching

try:
    import peft
except ImportError as error:
    raise ConfigError(
        f"adapters need the package peft ({error}); install it with: pip install 'coterie[adapters]'"
    ) from None

_ADAPTABLE = ("Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "Conv1D")  # the last is of transformers
_SHOWN = 8  # names of layers in an error


@dataclass(frozen=True)
class LoRA:
    """Low-rank factors beside the weights of layers (Hu et al. 2022): W + alpha / r * B A with frozen W.

    target: patterns of the layers' names, such as query|value; default: all linear layers that do not train
    in full. train: layers that do, or none; default: those that are new in a pretrained network, else the
    last linear layer.
    """

    r: int = 8
    alpha: float = 16.0
    target: str = ""
    train: str = ""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.r < 1 or not self.alpha > 0 or not 0 <= self.dropout < 1:
            raise ConfigError(
                "adapter 'lora': r must be at least 1, alpha above 0 and dropout from 0 to below 1, not "
                f"{self.r}, {self.alpha:g} and {self.dropout:g}"
            )

    def adapted(self, module: nn.Module) -> nn.Module:
        """The network with adapters in it, and all else frozen. It changes the module that it is given."""
        in_full = self._in_full(module)
        config = peft.LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=self._targets(module, in_full),
            modules_to_save=in_full or None,
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of one library to the other
                warnings.filterwarnings("ignore", "fan_in_fan_out")  # PEFT mends it for GPT-2's layers
                return _typed(peft.get_peft_model(module, config))
        except (ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"adapter 'lora' does not suit this model: {reason}") from error

    def _targets(self, module: nn.Module, in_full: list[str]) -> list[str]:
        """Names of the layers that get an adapter."""
        layers = [n for n, layer in module.named_modules() if n and type(layer).__name__ in _ADAPTABLE]
        if self.target:
            chosen = matching(layers, self.target, "adapter 'lora': target")
        else:
            linear = [name for name in layers if isinstance(module.get_submodule(name), nn.Linear)]
            chosen = tuple(name for name in linear if name not in in_full)
        if not chosen:
            known = ", ".join(layers[:_SHOWN]) + (", ..." if len(layers) > _SHOWN else "")
            raise ConfigError(
                f"adapter 'lora': target {self.target!r} matches no layer that can have an adapter; "
                + (f"these can: {known}" if layers else "the model has none, such as a linear one")
            )
        both = sorted(set(chosen) & set(in_full))
        if both:
            raise ConfigError(f"adapter 'lora': {', '.join(both)} cannot be both in target and in train")
        return list(chosen)

    def _in_full(self, module: nn.Module) -> list[str]:
        """Names of the layers that train without an adapter."""
        if self.train == "none":
            return []
        layers = [n for n, layer in module.named_modules() if n and len(list(layer.parameters(False)))]
        if self.train:
            chosen = matching(layers, self.train, "adapter 'lora': train")
            if not chosen:
                raise ConfigError(
                    f"adapter 'lora': train {self.train!r} matches no layer with parameters; write none, or "
                    f"one of: {', '.join(layers[-_SHOWN:])}"
                )
            return list(chosen)
        new: tuple[str, ...] | None = getattr(module, NEW_LAYERS, None)
        if new is not None:
            return list(new)
        last = [name for name in layers if isinstance(module.get_submodule(name), nn.Linear)][-1:]
        return [name for name in last if not self.target or not matching([name], self.target)]

    @staticmethod
    def save(module: nn.Module, params: Mapping[str, Tensor], folder: Path) -> None:
        """Write a peer's adapter as PEFT does, and stock PEFT reads, into a folder that is there.

        module: as `adapted` made it. params: the peer's own tensors, by name.
        """
        module = copy_of(module)
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if name in params:
                value.data = params[name].detach().clone()
        with tempfile.TemporaryDirectory(dir=folder) as made:
            # save_embedding_layers: "auto" would ask the network whether a vocabulary has grown.
            module.save_pretrained(made, save_embedding_layers=False)  # type: ignore[operator]
            for file in Path(made).iterdir():
                file.replace(folder / file.name)


def _typed(module: object) -> nn.Module:
    assert isinstance(module, nn.Module)
    return module
