"""What the server is started with."""

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from localmodel.server.errors import BadSettings

VARIABLE = "CACHEWRIGHT_SERVE"
"""Environment variable that holds the settings as JSON: unlike arguments, it keeps API keys off the process list."""


class Settings(BaseModel):
    """The options of `cachewright serve`."""

    model_config = ConfigDict(extra="forbid")
    host: str = "127.0.0.1"
    port: int = Field(default=8377, ge=0, le=65535)
    model: str = "scripted"
    rules: str = "anthropic"
    sets: list[str] = Field(default_factory=list)
    api_keys: list[str] = Field(default_factory=list)
    fast: bool = False
    script: Path | None = None
    record: Path | None = None
    kv: Path | None = None
    kv_gib: float = Field(default=8.0, gt=0, le=2**20)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server. Times in seconds.

    `slots` generations run at once, `queue` more may wait; `ping_s` is the longest silence on a stream (clients give
    up after 300 s, some after 15 s); `reply_s` the longest reply.
    """

    body_bytes: int = 32 * 2**20
    blocks: int = 50_000
    slots: int = 8
    queue: int = 64
    ping_s: float = 12.0
    reply_s: float = 1800.0
    body_s: float = 60.0
    grace_s: float = 5.0


def from_environment() -> Settings:
    """The settings in `CACHEWRIGHT_SERVE`. Raises `BadSettings`."""
    try:
        found = Settings.model_validate_json(os.environ.get(VARIABLE, "{}"))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = f"--{first['loc'][0]}".replace("_", "-") if first["loc"] else VARIABLE
        raise BadSettings(f"{place}: {first['msg']}") from None
    return checked(found)


def checked(settings: Settings) -> Settings:
    """The same settings. Raises `BadSettings` where they would open the server to a network without a key."""
    if not settings.api_keys and not _loopback(settings.host):
        raise BadSettings(f"--host {settings.host}: reachable from other machines; add --api-key KEY or use 127.0.0.1")
    if any(not key.strip() for key in settings.api_keys):
        raise BadSettings("--api-key: is empty; give a key of at least one character")
    return settings


def _loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name is not asked after, since what it means may change."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
