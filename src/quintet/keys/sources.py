"""Where a server's keys are kept, as its settings have it."""

from __future__ import annotations

from quintet.config import ServerConfig
from quintet.keys.file import KeyFile
from quintet.keys.ring import KeySource


def key_sources(config: ServerConfig) -> list[KeySource]:
    """The files of keys that were named.

    Raises:
        KeyFileError: a store cannot be read.
    """
    files: list[KeySource] = [KeyFile(config.api_key_file)] if config.api_key_file else []
    if config.keys is None:
        return files
    from quintet.keys.store import KeyStore  # brings a database, which others do without

    store = KeyStore(config.keys)
    store.settle()
    return [*files, store]
