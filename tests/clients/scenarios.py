"""Servers on which something goes wrong on purpose: ``http://host:port/<scenario>/<any dialect's path>``.

``GET /<scenario>/attempts`` tells how many completions were asked for since it was last read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.errors import DeadlineExceeded, Overloaded, SlowBody, TooManyRequests
from quintet.inputs.sequence import PreparedSequence, SequenceSpec
from quintet.server.asgi import ASGIApp, Receive, Scope, Send

KEEP_ALIVE = 0.25
RETRY_AFTER = 0.05
KEY = "sk-right"


@dataclass
class Refusing(ScriptedBackend):
    """Refuses every request."""

    why: Exception | None = None

    async def prepare(self, specs: Sequence[SequenceSpec], tenant: str = "", watch: object = None) -> tuple[PreparedSequence, ...]:
        assert self.why is not None
        raise self.why


def _app(backend: ScriptedBackend, **config: object) -> ASGIApp:
    return create_app(backend, ServerConfig(**config), keep_alive=KEEP_ALIVE)  # type: ignore[arg-type]


MAKERS: dict[str, Callable[[], ASGIApp]] = {
    "sound": lambda: _app(ScriptedBackend()),
    "slow": lambda: _app(ScriptedBackend(pause=1.4)),
    "breaks": lambda: _app(ScriptedBackend(break_after=2)),
    "breaks-at-once": lambda: _app(ScriptedBackend(break_after=0)),
    "breaks-slowly": lambda: _app(ScriptedBackend(break_after=2, pause=0.3)),
    "keyed": lambda: _app(ScriptedBackend(), api_keys=(KEY,)),
    "small": lambda: _app(ScriptedBackend(), max_body_bytes=500),
    "limited": lambda: _app(Refusing(why=TooManyRequests("At most 1 completion at once.", RETRY_AFTER))),
    "full": lambda: _app(Refusing(why=Overloaded("The queue is full.", RETRY_AFTER))),
    "late": lambda: _app(Refusing(why=DeadlineExceeded("Over the time limit."))),
    "sluggish": lambda: _app(Refusing(why=SlowBody("The body took too long."))),
    "buggy": lambda: _app(Refusing(why=RuntimeError("secret"))),
}


class Scenarios:
    """The ASGI application over all of them."""

    def __init__(self) -> None:
        self._apps = {name: make() for name, make in MAKERS.items()}
        self._attempts: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await next(iter(self._apps.values()))(scope, receive, send)
        _, name, rest = scope["path"].split("/", 2)
        if rest == "attempts":
            return await _reply(send, json.dumps(self._attempts.pop(name, 0)).encode())
        self._attempts[name] += rest.endswith("/completions")
        raw = scope["raw_path"].split(b"/", 2)[2]
        return await self._apps[name]({**scope, "path": f"/{rest}", "raw_path": b"/" + raw}, receive, send)


async def _reply(send: Send, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})
