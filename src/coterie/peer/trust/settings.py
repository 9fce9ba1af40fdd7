"""A peer's own settings: the file `peer.toml` of its folder. Needs no PyTorch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from coterie import toml_tables
from coterie.errors import ConfigError
from coterie.peer.trust.names import (
    OUTGOING,
    PeerName,
    Reach,
    can_be_dialled,
    is_dialled,
    is_loopback,
    split_address,
    valid_address,
)
from coterie.registry import nearest
from coterie.user_code import is_own_data

SETTINGS_FILE = "peer.toml"
SHARE = "share"
FIRST_PORT = 7400

Listen = Annotated[str, AfterValidator(lambda text: text and valid_address(text))]
Seconds = Annotated[float, Field(gt=0, le=10**6)]


class PeerSettings(BaseModel):
    """Everything that may differ from peer to peer; what all share is in the experiment's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: PeerName = Field(description="as in the certificate")
    number: int = Field(ge=0, le=10**6, strict=True, description="place in the experiment, from 0")
    listen: Listen = Field(
        default=f"127.0.0.1:{FIRST_PORT}",
        description="where this peer listens; empty: nowhere, and others use connections that it opens",
    )
    address: Reach = Field(default="", description="what others dial; empty: the same as listen")
    experiment: str = Field(default="experiment.toml", description="the experiment's TOML file")
    data: str = Field(
        default=SHARE,
        description="share: a part of the experiment's; or its own: a file .npz, .csv or .parquet, or "
        "file.py:function",
    )
    mode: Literal["synchronous", "free"] = Field(
        default="synchronous", description="rounds in step with the others, or each at its own pace"
    )
    deadline: Seconds = Field(default=60.0, description="seconds that an exchange may take")
    join_seconds: float = Field(
        default=120.0, ge=0, le=10**6, description="how long to wait for all others at the start"
    )
    alone: bool = Field(
        default=False,
        description="whether this peer learns on when nobody else is there, after its first round",
    )
    quorum: int = Field(
        default=0, ge=0, le=10**6, description="how many others are enough to go on after a restart; 0: all"
    )
    metrics: str = Field(
        default="127.0.0.1:0",
        description="host:port of /metrics and /health; empty: none; port 0: any; beyond this machine with "
        "metrics_token",
    )
    metrics_token: str = Field(
        default="", description="a file with the token that callers from elsewhere must show; empty: none"
    )
    staleness: int = Field(default=5, ge=0, description="rounds that a model may be old in free mode")
    memory: int = Field(default=128, ge=1, description="MiB for received models; larger ones go to disk")
    checkpoints: int = Field(
        default=5, ge=0, le=1000, description="earlier checkpoints that are kept for coterie peer rollback"
    )
    misses: int = Field(
        default=3,
        ge=1,
        le=10**6,
        description="exchanges in a row that a member may miss before it is no longer waited for",
    )
    heartbeat: Seconds = Field(default=1.0, description="seconds between signs of life")
    suspect_after: Seconds = Field(default=4.0, description="seconds of silence after which a peer is absent")

    @field_validator("data")
    @classmethod
    def _data_is_share_or_file(cls, data: str) -> str:
        if data != SHARE and not is_own_data(data):
            hint = nearest(data, [SHARE, "file.npz", "file.csv", "file.parquet", "file.py:function"])
            raise ValueError(f"neither share nor a file of a known kind; {hint}")
        return data

    @field_validator("metrics")
    @classmethod
    def _metrics_have_an_address(cls, metrics: str) -> str:
        return metrics and valid_address(metrics, lowest_port=0)

    @model_validator(mode="before")
    @classmethod
    def _address_is_listen(cls, table: Any) -> Any:
        if isinstance(table, dict) and not table.get("address"):
            listen = table.get("listen", cls.model_fields["listen"].default)
            return {**table, "address": OUTGOING if listen == "" else listen}
        return table

    @model_validator(mode="after")
    def _fit_together(self) -> PeerSettings:
        if not self.listen and is_dialled(self.address):
            raise ValueError(f"nobody listens at {self.address}: set listen, or leave out address")
        if self.metrics and not self.metrics_token and not is_loopback(split_address(self.metrics)[0]):
            raise ValueError(
                "metrics are for this machine only: write 127.0.0.1:port, or nothing for none; or a file "
                "with a token as metrics_token"
            )
        if not can_be_dialled(self.address):
            raise ValueError(
                f"others cannot dial {self.address}; set address to this machine's name or IP and port"
            )
        if self.suspect_after <= self.heartbeat:
            raise ValueError(
                f"suspect_after ({self.suspect_after} s) must be longer than heartbeat ({self.heartbeat} s)"
            )
        return self


def load_settings(folder: Path) -> PeerSettings:
    """The settings of a peer's folder, with absolute paths."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        raise ConfigError(f"{folder} is not a peer's folder: it has no {SETTINGS_FILE}")
    return settings_from(toml_tables.load_toml(path), folder, str(path))


def settings_from(table: dict[str, Any], folder: Path, where: str = SETTINGS_FILE) -> PeerSettings:
    """Checked settings; relative paths start from `folder`."""
    settings = toml_tables.validate(PeerSettings, table, where)
    base = folder.absolute()
    data = settings.data if settings.data == SHARE else _from(base, settings.data)
    token = settings.metrics_token and _from(base, settings.metrics_token)
    changes = {"experiment": _from(base, settings.experiment), "data": data, "metrics_token": token}
    return settings.model_copy(update=changes)


def settings_text(settings: PeerSettings) -> str:
    """A `peer.toml` to be read and edited: every key with a word about it."""
    lines = ["# This peer. Paths start from this file's folder.\n"]
    for name, field in PeerSettings.model_fields.items():
        value = getattr(settings, name)
        if name == "address" and value in (settings.listen, OUTGOING):
            value = ""  # so that it follows `listen` when that is edited
        lines.append(f"\n# {field.description}\n" if field.description else "\n")
        lines.append(tomli_w.dumps({name: value}))
    return "".join(lines)


def _from(base: Path, path: str) -> str:
    return os.path.normpath(base / Path(path).expanduser())
