"""Pretrained networks in the format of Hugging Face's transformers, from a folder: `hf:FOLDER`.

Nothing is ever downloaded, no code of the folder is executed, and weights are read from safetensors only.
Installed with `pip install coterie[transformers]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie.errors import ConfigError
from coterie.models.architecture import Architecture
from coterie.models.parts import NEW_LAYERS

try:
    import transformers
except ImportError as error:
    raise ConfigError(
        f"a model hf:FOLDER needs the package transformers ({error}); install it with: "
        "pip install 'coterie[transformers]'"
    ) from None

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def hugging_face(folder: str, at_each_position: bool = False) -> Architecture:
    """The network of a folder with as many outputs as the task needs: a new layer, unless it has it.

    at_each_position: the language model itself, whose outputs are the words of its vocabulary.
    """
    path = Path(folder).expanduser()
    _check_folder(path)

    kind = transformers.AutoModelForSequenceClassification
    if at_each_position:
        kind = transformers.AutoModelForCausalLM

    def build(shape: Any, n_classes: int) -> nn.Module:
        outputs = {} if at_each_position else {"num_labels": n_classes}
        with _quietly():
            try:
                module, found = kind.from_pretrained(
                    str(path),
                    **outputs,
                    local_files_only=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                    dtype=torch.float32,
                    ignore_mismatched_sizes=True,  # a classifier for other classes is replaced
                    output_loading_info=True,
                )
            except Exception as error:  # of many kinds, for a folder may hold anything
                reason = str(error).strip().partition("\n")[0]
                raise ConfigError(f"model 'hf:{folder}' cannot be loaded: {reason}") from error
        _mark_new_layers(module, found)
        if at_each_position and not _reads_from_left_to_right(module):
            raise ConfigError(
                f"model 'hf:{folder}' looks at the words that follow, so that it would see what task "
                "'next-token' asks for; take one that reads from left to right, such as GPT-2 (some encoders "
                'do so with "is_decoder": true in their config.json)'
            )
        module.train()  # as other networks are; transformers gives it in evaluation mode
        return _typed(module)

    return build


def _check_folder(path: Path) -> None:
    """Say what is missing, before transformers does so in many words."""
    where = f"model 'hf:{path}'"
    if not path.is_dir():
        raise ConfigError(f"{where}: there is no such folder; models are read from disk, never downloaded")
    try:
        config = json.loads((path / "config.json").read_text())
    except FileNotFoundError:
        raise ConfigError(f"{where}: the folder holds no config.json, so no model of transformers") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot read its config.json: {error}") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ConfigError(f"{where}: its config.json does not say a model_type, as those of transformers do")
    if not any(path.glob("*.safetensors")):
        pickled = sorted(file.name for kind in _PICKLED for file in path.glob(kind))
        found = f"only {', '.join(pickled)}, which is not safe to open" if pickled else "none at all"
        raise ConfigError(
            f"{where}: weights are read from *.safetensors, and the folder holds {found}; save the model "
            "again with model.save_pretrained(folder)"
        )


def _mark_new_layers(module: nn.Module, found: Any) -> None:
    """Remember which layers begin with random weights: adapters train them in full."""
    missing = {*found["missing_keys"], *(key[0] for key in found["mismatched_keys"])}
    layers = sorted({name.rpartition(".")[0] for name in missing})
    if all(name.rpartition(".")[0] in layers for name, _ in module.named_parameters()):
        raise ConfigError("model 'hf:...': none of the folder's weights belong to this architecture")
    setattr(module, NEW_LAYERS, tuple(layers))


def _reads_from_left_to_right(module: Any) -> bool:
    """Whether a word changes nothing of what is said before it."""
    words = torch.tensor([[4, 5, 6], [4, 5, 7]])
    with torch.no_grad(), _quietly():
        said = module.eval()(input_ids=words).logits
    return torch.allclose(said[0, :2], said[1, :2], rtol=1e-4, atol=1e-6)


def _typed(module: Any) -> nn.Module:
    assert isinstance(module, nn.Module)
    return module


@contextmanager
def _quietly() -> Iterator[None]:
    """Without progress bars and remarks: that a classifier is new is what was asked for."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
