"""Checkpoints as files: what is written is what other readers of safetensors see, and damage is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from coterie import checkpoints
from coterie.checkpoints import fitting, read_checkpoint, read_head, write_checkpoint
from coterie.errors import DamagedRunError, RunFolderError

TENSORS = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([3, 1])}
HEAD = {"format": "mine-1", "notes": "{}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "c", TENSORS, HEAD)
    return tmp_path / "c"


def test_the_library_reads_the_same(path: Path) -> None:
    theirs = safetensors.torch.load_file(path)
    ours, head = read_checkpoint(path, "mine-1")
    assert theirs.keys() == ours.keys() == TENSORS.keys()
    assert all(torch.equal(theirs[name], value) for name, value in TENSORS.items())
    assert all(torch.equal(ours[name], value) for name, value in TENSORS.items())
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata() == head == read_head(path, "mine-1") == HEAD


def test_a_transposed_tensor_is_saved_as_it_looks(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", {"w": TENSORS["w"].T}, HEAD)
    assert read_checkpoint(tmp_path / "c", "mine-1")[0]["w"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_another_format_and_damage_are_refused(path: Path) -> None:
    for read in (read_checkpoint, read_head):
        with pytest.raises(DamagedRunError, match="not a checkpoint of this version"):
            read(path, "mine-2")
    content = path.read_bytes()
    for damaged in (b"", content[:4], content[:40], content[:-1], content + b"x", b"\xff" * len(content)):
        path.write_bytes(damaged)
        for read in (read_checkpoint, read_head):
            with pytest.raises(DamagedRunError, match="not a readable checkpoint"):
                read(path, "mine-1")
    with pytest.raises(RunFolderError, match="No such file"):
        read_head(path.with_name("none"), "mine-1")


def test_what_does_not_fit_is_named(path: Path) -> None:
    saved = fitting(path, TENSORS, "; start anew")
    assert torch.equal(saved("w", torch.zeros(2, 3)), TENSORS["w"])
    for name, fresh in (("w", torch.zeros(3, 2)), ("w", torch.zeros(2, 3).double()), ("v", torch.zeros(1))):
        with pytest.raises(DamagedRunError, match=f"'{name}' is missing or has another shape; start anew"):
            saved(name, fresh)


def test_the_head_is_read_without_pytorch(path: Path) -> None:
    code = (
        "import sys, pathlib, coterie.checkpoints as c\n"
        f"assert c.read_head(pathlib.Path({str(path)!r}), 'mine-1')['notes'] == '{{}}'\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `peer predict` does beside a running peer: head and tensors came from two files of unequal size."""
    path = tmp_path / "checkpoint.safetensors"
    write_checkpoint(path, {"x": torch.arange(3.0)}, {"format": "test"})
    opened = checkpoints.safe_open
    failures = iter([True, False])

    def replaced_once(*args: Any, **keywords: Any) -> Any:
        if next(failures):
            raise RuntimeError("size <5480> is smaller than the required mapping size <5488>")
        return opened(*args, **keywords)

    monkeypatch.setattr(checkpoints, "safe_open", replaced_once)
    tensors, _ = read_checkpoint(path, "test")
    assert tensors["x"].tolist() == [0, 1, 2]


def test_a_file_that_never_fits_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise RuntimeError("size <1> is smaller than the required mapping size <2>")

    monkeypatch.setattr(checkpoints, "safe_open", never)
    with pytest.raises(DamagedRunError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path / "checkpoint.safetensors", "test")


def test_checkpoints_are_safetensors_files_written_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the numbers and shapes; no piece but the head is larger than a block."""
    monkeypatch.setattr(checkpoints, "_WRITTEN_BYTES", 64)
    numbers = torch.arange(120)
    tensors = {
        "rows": numbers.view(30, 4).float(),
        "turned": numbers.view(4, 30).double().T,
        "half": numbers.view(60, 2).to(torch.bfloat16),
        "short": numbers.view(40, 3).to(torch.int16),
        "flags": numbers % 3 == 0,
        "one": torch.tensor(7.5),
        "none": torch.empty(0, 5, dtype=torch.int32),
    }
    pieces = [bytes(piece) for piece in checkpoints._pieces(tensors, {"format": "test"})]
    assert max(map(len, pieces[1:])) <= 64
    path = tmp_path / "file.safetensors"
    checkpoints.write_checkpoint(path, tensors, {"format": "test"})
    read, head = checkpoints.read_checkpoint(path, "test")
    assert head == {"format": "test"}
    assert checkpoints.read_head(path, "test") == head
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
