"""HTTP as commands that ask a server need it: one request at a time, bounded in time and size, waiting where a server says so."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from quintet import __version__
from quintet.cli.console import OptionError
from quintet.conformance.item import Call, Reply
from quintet.errors import QuintetError, shorten
from quintet.load.trust import untrusted

MOST_BYTES = 64 << 20
"""More than any answer that is asked for."""

REFUSED = (401, 403)
"""Statuses of who has no key, or not the right one."""

_TRIES, _LONGEST_WAIT_S = 4, 30.0
_WAITS = (429, 503)


class UnusableServerError(QuintetError):
    """The server cannot be reached, or does not take part at all."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server to ask.

    Args:
        key: sent as a bearer token where a call is to have it; empty = none.
        timeout: most seconds for one answer.
        headers: of every request.
    """

    base: SplitResult
    key: str
    timeout: float
    headers: tuple[tuple[str, str], ...] = ()

    def send(self, call: Call) -> Reply:
        """The answer, after at most a few waits where the server asks to come again soon."""
        for _ in range(_TRIES - 1):
            reply = self.once(call)
            wait = _wait(reply)
            if wait is None:
                return reply
            time.sleep(wait)
        return self.once(call)

    def once(self, call: Call) -> Reply:
        """The answer, whatever it is."""
        end = time.monotonic() + self.timeout
        headers = {"user-agent": f"quintet-client/{__version__}", "accept": "application/json", **dict(self.headers), **dict(call.headers)}
        if call.keyed and self.key:
            headers["authorization"] = f"Bearer {self.key}"
        connection = self._connection()
        try:
            connection.request(call.method, call.path, call.body or None, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            parts, size = [], 0
            while part := response.read1(1 << 16):
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    return Reply(response.status, found, b"", f"the answer has more than {MOST_BYTES} bytes")
                if time.monotonic() > end:
                    return Reply(response.status, found, b"".join(parts), f"the answer was not complete after {self.timeout:g} s")
            return Reply(response.status, found, b"".join(parts))
        except TimeoutError:
            return Reply(0, {}, b"", f"no answer within {self.timeout:g} s")
        except ssl.SSLCertVerificationError as error:
            return Reply(0, {}, b"", untrusted(error))
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else None
            return Reply(0, {}, b"", f"the connection failed: {said or shorten(str(error) or type(error).__name__)}")
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host = self.base.hostname or ""
        if self.base.scheme == "https":
            return http.client.HTTPSConnection(host, self.base.port, timeout=self.timeout, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, self.base.port, timeout=self.timeout)


def _wait(reply: Reply) -> float | None:
    """Seconds after which to ask again; ``None`` = the answer stands."""
    try:
        seconds = float(reply.headers.get("retry-after", "")) if reply.status in _WAITS else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds <= _LONGEST_WAIT_S else None


def parse_url(url: str) -> SplitResult:
    """A base URL as the SDKs take it, with the path that completions have below it.

    Raises:
        OptionError: not an http or https URL.
    """
    try:
        found = urlsplit(url)
        usable = found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
        (found.hostname or "").encode("idna")  # as connecting does: no name has an empty part, or one of more than 63 characters
    except ValueError:
        usable = False
    if not usable or found.query or found.fragment or found.username:
        raise OptionError(f"URL must be a server's base URL such as http://127.0.0.1:8000/v1, got {shorten(url)}.")
    path = found.path.rstrip("/").removesuffix("/completions") or "/v1"
    return found._replace(path=path)


def first_model(server: Server) -> str:
    """The name of the first model that the server lists.

    Raises:
        UnusableServerError: it lists none, or not to whoever has this key or none.
    """
    reply, names = _listed(server)
    if not names:
        raise UnusableServerError(f"{server.base.geturl()}/models lists no model (status {reply.status}); name one with --model.")
    return names[0]


def require_model(server: Server, name: str) -> None:
    """Whether a server that has no list has the model, only a completion can tell.

    Raises:
        UnusableServerError: it has no such model, or does not tell whoever has this key or none.
    """
    _, names = _listed(server)
    if names is not None and name not in names:  # which may be another name of one
        reply = server.send(Call("GET", f"{server.base.path}/models/{quote(name, safe='')}"))
        if reply.problem or reply.status != 200:
            told = reply.problem or f"status {reply.status}"
            raise UnusableServerError(f"{server.base.geturl()} has no model {shorten(name)} ({told}).")


def models_in(body: bytes) -> Iterable[Any]:
    """What a list of models lists: OpenAI's has them under ``data``, Together's is one.

    Raises:
        ValueError, RecursionError, KeyError, TypeError: it is no such list.
    """
    found = json.loads(body)
    return found if isinstance(found, list) else found["data"]


def _listed(server: Server) -> tuple[Reply, list[str] | None]:
    """The answer to who asks for the list of models, and their names; ``None`` = it is no such list.

    Raises:
        UnusableServerError: nobody answers, or not to whoever has this key or none.
    """
    reply = server.send(Call("GET", f"{server.base.path}/models"))
    if reply.problem:
        raise UnusableServerError(f"{server.base.geturl()}: {reply.problem}.")
    if reply.status in REFUSED:
        shown, give = ("with this key", "another") if server.key else ("without a key", "one")
        raise UnusableServerError(f"{server.base.geturl()}/models is not shown {shown} (status {reply.status}); give {give} with --key.")
    try:
        return reply, [str(one["id"]) for one in models_in(reply.body) if "id" in one]
    except (ValueError, RecursionError, KeyError, TypeError):
        return reply, None
