"""Replicas on Ray: for each an actor on some machine of its cluster, and nothing of Ray that a token passes through.

The actor reserves what the replica needs and starts its worker (``host``); Ray brings it back, there or elsewhere, when it or its machine
dies. ``behind_proxy`` is for who wants Ray Serve's own HTTP proxy before our front.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported: nothing of ours tells others who uses it

import ray
from ray import serve
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from quintet import logs
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.spawn import MODULE, VLLM_MODULE
from quintet.backends.native.wire.messages import ModelSource, VllmSource
from quintet.config import EngineConfig
from quintet.deploy.host import SECRET_BYTES, Host
from quintet.deploy.remote import Place, RemoteLink
from quintet.inputs.tokenizer import Tokenizer
from quintet.models import store

LOCAL = "127.0.0.1"
APPLICATION = "quintet"
"""Its name in Ray Serve."""

REACH_S = 5.0
"""A cluster's head must take a connection within this time. Ray itself tries for minutes, and says nothing of it."""

PROXY_LIMIT = 4096
"""Requests that Ray Serve's proxy gives the front at once; beyond it they wait there."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Needs:
    """What Ray reserves for a replica, all of it on one machine."""

    cpus: float
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Files:
    """What a replica's machine has to have.

    Args:
        path: of the model on the front's machine; empty = none is needed. Where there is nothing at this path, the reference is resolved.
        reference: of the model, for ``models.store``.
        offline: nothing is fetched.
    """

    path: str
    reference: str
    offline: bool


class Replica:
    """The actor.

    Args:
        vllm: it computes, in place of the native core.
        level, form: of the worker's log.
    """

    def __init__(self, files: Files, secret: bytes, *, vllm: bool, level: str, form: str) -> None:
        logs.set_up(level, form)
        self._model = files.path
        if files.path and not Path(files.path).exists():
            self._model = str(store.resolve(files.reference, _Log(), offline=files.offline).path)
        self._address = ray.util.get_node_ip_address()
        self._host = Host(self._address, secret, VLLM_MODULE if vllm else MODULE, level, form)

    def place(self) -> Place:
        """Where it listens now."""
        return Place(self._address, self._host.port, self._model)


class _Log:
    """See ``models.files.Report``."""

    def note(self, line: str) -> None:
        _log.info("%s", line)

    def progress(self, done: int, total: int) -> None:
        """The log needs none."""


def connect(address: str, cpus: int | None = None) -> None:
    """Join a cluster, or start one on this machine that ends with this process.

    Args:
        address: of the cluster's head, or ``auto``; empty = a new one.
        cpus: that a new one counts with; ``None`` = the machine's.

    Raises:
        OSError: nobody listens at the address.
        Exception: whatever Ray has to say.
    """
    quiet: dict[str, Any] = {"logging_level": logging.WARNING, "namespace": "quintet"}
    if address:
        _require_head(os.environ.get("RAY_ADDRESS", "") if address == "auto" else address)
        ray.init(address=address, **quiet)
    else:  # reachable from this machine only, and as fast as what else runs on it
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(address="local", _node_ip_address=LOCAL, include_dashboard=False, num_cpus=cpus, **quiet)


def _require_head(address: str) -> None:
    """
    Raises:
        OSError: nobody listens there. What is no ``host:port`` is Ray's to find.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nobody answers at {host}:{port} ({error}).") from None


def devices() -> float:
    """GPUs of the cluster."""
    return float(ray.cluster_resources().get("GPU", 0))


def disconnect() -> None:
    """All replicas that this process has started end, and its own Ray, if it has one."""
    ray.shutdown()


def make_engine(
    source: ModelSource | VllmSource, files: Files, tokenizer: Callable[[], Tokenizer], config: EngineConfig, needs: Needs
) -> Engine:
    """An engine whose worker is wherever Ray finds room; call it on the event loop that will use it.

    With devices, its place is reserved as one piece before anything starts, and stays reserved while it is started again.
    """
    options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_restarts": -1, "max_task_retries": -1}
    group = None
    if needs.gpus:
        group = placement_group([{"CPU": needs.cpus or 1, "GPU": needs.gpus}], strategy="STRICT_PACK")
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    secret = secrets.token_bytes(SECRET_BYTES)
    log = {"level": logging.getLevelName(logging.getLogger().getEffectiveLevel()), "form": logs.form_in_use()}
    actor = ray.remote(Replica).options(**options).remote(files, secret, vllm=isinstance(source, VllmSource), **log)

    async def find() -> Place:
        found: Place = await actor.place.remote()
        return found

    def release() -> None:
        ray.kill(actor)
        if group is not None:
            remove_placement_group(group)

    return Engine(RemoteLink(source, tokenizer, config, find, secret, release), config)


class Front(Protocol):
    """The server's ASGI application, and whether it still does its work."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    def require_healthy(self) -> None:
        """
        Raises:
            RuntimeError: it has to be started again.
        """


def behind_proxy(build: Callable[[], Front]) -> serve.Application:
    """The server as an application of Ray Serve, for ``serve.run``: one front, which has the replicas started.

    There is one, whatever comes: it counts what keys may use. Serve starts it again when it is not well by its own account.

    Args:
        build: called in Serve's process for it, on the event loop that serves.
    """

    class Ingress:
        front: Front

        def __serve_build_asgi_app__(self) -> Front:  # Serve's name
            self.front = build()
            return self.front

        def check_health(self) -> None:
            self.front.require_healthy()

    deployment = serve.deployment(
        num_replicas=1,
        max_ongoing_requests=PROXY_LIMIT,
        ray_actor_options={"num_cpus": 0},
        logging_config={"enable_access_log": False},  # ours says more
    )
    return deployment(serve.ingress()(Ingress)).bind()


@contextlib.contextmanager
def listening(application: serve.Application, host: str, port: int) -> Iterator[None]:
    """Serve's proxy passes requests on to the application, inside a ``with``. Where Serve runs already, it listens where it did."""
    serve.start(http_options={"host": host, "port": port})
    serve.run(application, name=APPLICATION, route_prefix="/")
    try:
        yield
    finally:
        serve.delete(APPLICATION)
