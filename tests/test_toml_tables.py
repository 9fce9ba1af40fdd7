"""Whatever is wrong with a table is said in words, with its place and the nearest valid key."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, model_validator

from coterie.errors import ConfigError
from coterie.toml_tables import load_toml, parse, validate


@dataclass(frozen=True)
class Training:
    lr: float = 0.1
    steps: int = 1

    def __post_init__(self) -> None:
        if self.lr > self.steps:
            raise ValueError("lr is larger than steps")


class Schema(BaseModel):
    name: str
    rounds: int = Field(default=1, ge=1)
    training: Training = field(default_factory=Training)
    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _fits(self) -> Schema:
        if self.name == "bad":
            raise ValueError("the name is bad")
        return self


@dataclass(frozen=True)
class Nothing:
    pass


def test_a_good_table_becomes_its_schema() -> None:
    table = {"name": "a", "training": {"lr": "0.5"}, "settings": {"anything": [1]}}
    assert validate(Schema, table) == Schema(name="a", training=Training(0.5), settings={"anything": [1]})
    assert validate(Training, {"steps": 3}) == Training(steps=3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "a", "ronds": 2}, "unknown key 'ronds'; did you mean rounds?"),
        ({"name": "a", "training": {"stepps": 2}}, "unknown key 'training.stepps'; did you mean steps?"),
        ({"name": "a", "training": 3}, "'training' is a section with keys of its own, not a value: 3"),
        ({"name": "a", "settings": "x"}, "'settings' is a section with keys of its own, not a value: 'x'"),
        ({}, "name is missing"),
        ({"name": "a", "rounds": 0}, "rounds: Input should be greater than or equal to 1 (got 0)"),
        ({"name": "a", "training": {"lr": 9.0}}, "training: lr is larger than steps"),
        ({"name": "bad"}, "the name is bad"),
        ({"name": ["x" * 100]}, "name: Input should be a valid string (got ['" + "x" * 58 + "...)"),
    ],
)
def test_mistakes_are_said_in_words(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Schema, table)
    assert str(caught.value) == message
    with pytest.raises(ConfigError) as caught:
        validate(Schema, table, "a.toml")
    assert str(caught.value) == f"a.toml: {message}"


def test_a_schema_without_keys_says_so() -> None:
    with pytest.raises(ConfigError, match="settings of local: unknown key 'k'; it has none"):
        validate(Nothing, {"k": 1}, "settings of local")


def test_all_mistakes_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"^a: name is missing; rounds: .*\(got 'many'\)$"):
        validate(Schema, {"rounds": "many"}, "a")


def test_errors_of_files_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    with pytest.raises(ConfigError, match=r"cannot read .*bad\.toml: No such file"):
        load_toml(path)
    path.write_text("a = 1\nb = \n")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML: .*line 2"):
        load_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad\.toml is not text"):
        load_toml(path)


def test_lines_may_end_as_mail_programs_end_them() -> None:
    assert parse('a = """one\r\ntwo"""\r\nb = 2\r\n', "a card") == {"a": "one\ntwo", "b": 2}
