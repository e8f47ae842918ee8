"""Where a server's keys are kept, as its settings have it."""

from __future__ import annotations

from quintet.config import ServerConfig
from quintet.keys.file import KeyFile
from quintet.keys.ring import KeySource
from quintet.keys.store import KeyStore


def key_sources(config: ServerConfig) -> list[KeySource]:
    """The files of keys that were named."""
    files: list[KeySource] = [KeyFile(config.api_key_file)] if config.api_key_file else []
    return [*files, KeyStore(config.keys)] if config.keys else files
