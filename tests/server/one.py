"""The application around one engine."""

from __future__ import annotations

from typing import Any

from tests.support.preparing import preparer_of

from quintet.config import ServerConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.server import app
from quintet.server.asgi import ASGIApp


def create_app(backend: Any, config: ServerConfig, names: tuple[str, ...] = ("scripted",), **more: Any) -> ASGIApp:
    """It serves ``backend`` under ``names``; ``more`` goes to the server's own ``create_app``."""
    return app.create_app(Registry([Model(names[0], lambda: backend, preparer=preparer_of)], name_models([names])), config, **more)
