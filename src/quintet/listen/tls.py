"""The certificate and its key, read again when they change."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from quintet.listen.sockets import ListenError

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""A new certificate is shown to those who connect after so long."""


class Tls:
    """What TLS is spoken with on the public listeners.

    Args:
        cert: the certificate and those that lead to its root, in PEM.
        key: its private key in PEM, without a passphrase.
        clock: seconds, monotonic.

    Raises:
        ListenError: they cannot be read, or do not belong together.
    """

    def __init__(self, cert: Path, key: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._cert, self._key, self._clock = cert, key, clock
        self._stamp = self._stamps()
        self._looked = clock()
        self._context = self._load()

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        if self._clock() - self._looked >= LOOK_S:
            self._looked = self._clock()
            if self._stamps() != self._stamp:
                self.reload()
        return self._context

    def reload(self) -> None:
        """Read the files again. Where they are no good, as in the middle of being replaced, what there was goes on."""
        self._stamp = self._stamps()
        try:
            self._context = self._load()
        except ListenError as error:
            _log.error("TLS: %s The certificate that was read before goes on", error)
        else:
            _log.info("TLS: %s is read again", self._cert)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_passphrase)
        except (OSError, ValueError) as error:  # an ``ssl.SSLError`` is an ``OSError``
            raise ListenError(self._why(error)) from error
        return context

    def _why(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError):
            if error.reason == "KEY_VALUES_MISMATCH":
                return f"--tls-key {self._key} is not the key of the certificate in --tls-cert {self._cert}."
            reason = f": {error.reason}" if error.reason else ""
            return f"--tls-cert {self._cert} and --tls-key {self._key} must be a certificate and its key in PEM{reason}."
        if isinstance(error, OSError):
            unread = next((path for path in (self._cert, self._key) if not _readable(path)), self._cert)
            return f"{unread}: {error.strerror or error}."
        return f"--tls-key {self._key} {error}."

    def _stamps(self) -> tuple[object, ...]:
        return tuple(_file_stamp(path) for path in (self._cert, self._key))


def _no_passphrase() -> str:
    raise ValueError("must have no passphrase")


def _readable(path: Path) -> bool:
    try:
        path.open("rb").close()
    except OSError:
        return False
    return True


def _file_stamp(path: Path) -> object:
    """Differs when the file has changed; ``None`` = it cannot be looked at."""
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino
