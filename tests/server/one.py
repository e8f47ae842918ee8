"""The application around one engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.guard import FORM, Guard
from tests.support.preparing import preparer_of

from quintet.config import ServerConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.server import app
from quintet.server.asgi import ASGIApp


def create_app(
    backend: Any, config: ServerConfig, names: tuple[str, ...] = ("scripted",), guard: Guard | None = None, **more: Any
) -> ASGIApp:
    """It serves ``backend`` under ``names``, and ``guard`` as a moderation model; ``more`` goes to the server's own ``create_app``."""
    return create_reloading(lambda: backend, config, names, guard, **more)


def create_reloading(
    start: Callable[[], Any], config: ServerConfig, names: tuple[str, ...], guard: Guard | None = None, **more: Any
) -> ASGIApp:
    """Likewise around engines that ``start`` makes, one after the other."""
    served, named = [Model(names[0], start, preparer=preparer_of)], [names]
    if guard is not None:
        served.append(Model("guard", lambda: guard, preparer=preparer_of, moderation=FORM))
        named.append(("guard",))
    return app.create_app(Registry(served, name_models(named)), config, **more)
