"""How far a peer's checkpoint is, read from its head alone. Needs no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

from coterie.errors import RunFolderError

_LONGEST_HEAD = 100 << 20  # bytes, as safetensors allows


def committed_rounds(checkpoint: Path) -> int:
    """Finished rounds in a checkpoint of `Journal`; 0 if there is no such file."""
    try:
        with open(checkpoint, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            head = json.loads(file.read(min(size, _LONGEST_HEAD)))
        return int(json.loads(head["__metadata__"]["notes"])["round"])
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise RunFolderError(f"cannot read {checkpoint}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise RunFolderError(f"{checkpoint} is not a readable checkpoint") from None
