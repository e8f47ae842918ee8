"""Replicas on Ray: for each an actor on some machine of its cluster, and nothing of Ray that a token passes through.

The actor reserves what the replica needs and starts its worker (``host``); Ray brings it back, there or elsewhere, when it or its machine
dies. ``behind_proxy`` is for who wants Ray Serve's own HTTP proxy before our front.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# Read when Ray is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of ours tells others who uses it
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")  # else the front ends itself a minute after Ray's head did
os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")  # else its advice to ``ray start`` more machines is on our standard output

import ray
from ray import serve
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from quintet import logs
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.restarts import Records
from quintet.backends.native.front.spawn import MODULE, VLLM_MODULE
from quintet.backends.native.wire.sources import ModelSource, VllmSource
from quintet.config import EngineConfig
from quintet.deploy.host import SECRET_BYTES, Host, read
from quintet.deploy.remote import Place, RemoteLink
from quintet.errors import QuintetError
from quintet.inputs.tokenizer import Tokenizer
from quintet.models import store

LOCAL = "127.0.0.1"
APPLICATION = "quintet"
"""Its name in Ray Serve."""

REACH_S = 5.0
"""A cluster's head must take a connection within this time, and answer. Ray itself tries for minutes, and says nothing of it."""

HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client begins with, gRPC's too: RFC 9113, 3.4, and a SETTINGS frame with nothing in it."""

FRAME_BYTES, SETTINGS = 9, 4
"""Length of a frame's header, and the type in it of the frame that a server begins with."""

PROXY_LIMIT = 4096
"""Requests that Ray Serve's proxy gives the front at once; beyond it they wait there."""

_EXCEPTION = re.compile(r"(?:ray::.* )?[\w.]*(?:Error|Exception): (.+)")
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
        draft, draft_reference: the same of its draft model.
    """

    path: str
    reference: str
    offline: bool
    draft: str = ""
    draft_reference: str = ""

    def resolve(self) -> tuple[str, str]:
        """Paths of the model and of its draft model on this machine, fetched if need be.

        Raises:
            ModelError: they cannot be had.
        """
        return self._resolve(self.path, self.reference), self._resolve(self.draft, self.draft_reference)

    def _resolve(self, path: str, reference: str) -> str:
        if not path or Path(path).exists():
            return path
        return str(store.resolve(reference, _Log(), offline=self.offline).path)


class Replica:
    """The actor.

    Args:
        local: the front is on this machine, and nobody else needs to reach it.
        vllm: it computes, in place of the native core.
        level, form: of the worker's log.
    """

    def __init__(self, files: Files, secret: bytes, *, local: bool, vllm: bool, level: str, form: str) -> None:
        logs.set_up(level, form)
        self._model, self._draft = files.resolve()
        self._address = LOCAL if local else ray.util.get_node_ip_address()
        self._host = Host(self._address, secret, VLLM_MODULE if vllm else MODULE, level, form)

    def place(self) -> Place:
        """Where it listens now."""
        return Place(self._address, self._host.port, self._model, self._draft)


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
        OSError: no head of Ray's listens at the address.
        Exception: whatever Ray has to say.
    """
    quiet: dict[str, Any] = {"logging_level": logging.WARNING, "namespace": "quintet"}
    if address:
        _require_head(os.environ.get("RAY_ADDRESS", "") if address == "auto" else address)
        ray.init(address=address, **quiet)
    else:  # reachable from this machine only, and as fast as what else runs on it
        os.environ.setdefault("RAY_worker_niceness", "0")
        headless = "RAY_gcs_rpc_server_reconnect_timeout_s"
        if os.environ.get(headless) == "86400":  # ours: nobody can start this head again, and some of its processes would be left for a day
            del os.environ[headless]
        ray.init(address="local", _node_ip_address=LOCAL, include_dashboard=False, num_cpus=cpus, **quiet)


def _require_head(address: str) -> None:
    """
    Raises:
        OSError: nobody listens there, or something else does. What is no ``host:port`` is Ray's to find.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        sock = socket.create_connection((host.strip("[]"), int(port)), REACH_S)
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nobody answers at {host}:{port} ({error}).") from None
    with sock:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return  # it answers after a handshake with Ray's own certificates
        try:
            sock.sendall(HTTP2_HELLO)
            header = read(sock, FRAME_BYTES, REACH_S)
        except OSError as error:
            raise ConnectionError(f"{host}:{port} takes connections, but is no Ray head: it does not answer ({error}).") from None
    if len(header) < FRAME_BYTES or header[3] != SETTINGS:
        raise ConnectionError(f"{host}:{port} answers, but is no Ray head.")


def cpus() -> float:
    """CPUs that Ray counts with on all machines."""
    return float(ray.cluster_resources().get("CPU", 0))


def devices() -> float:
    """GPUs of the cluster."""
    return float(ray.cluster_resources().get("GPU", 0))


def disconnect() -> None:
    """All replicas that this process has started end, and its own Ray, if it has one."""
    ray.shutdown()


def make_engine(
    source: ModelSource | VllmSource,
    files: Files,
    tokenizer: Callable[[], Tokenizer],
    config: EngineConfig,
    needs: Needs,
    records: Records | None = None,
    *,
    local: bool = False,
) -> Engine:
    """An engine whose worker is wherever Ray finds room; call it on the event loop that will use it.

    With devices, its place is reserved as one piece before anything starts, and stays reserved while it is started again.

    Args:
        records: see ``Engine``.
        local: Ray has this machine alone.
    """
    options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_restarts": -1, "max_task_retries": -1}
    group = None
    if needs.gpus:
        group = placement_group([{"CPU": needs.cpus or 1, "GPU": needs.gpus}], strategy="STRICT_PACK")
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    secret = secrets.token_bytes(SECRET_BYTES)
    log = {"level": logging.getLevelName(logging.getLogger().getEffectiveLevel()), "form": logs.form_in_use()}
    actor = ray.remote(Replica).options(**options).remote(files, secret, local=local, vllm=isinstance(source, VllmSource), **log)

    async def find() -> Place:
        found: Place = await actor.place.remote()
        return found

    def release() -> None:
        ray.kill(actor)
        if group is not None:
            remove_placement_group(group)

    return Engine(RemoteLink(source, tokenizer, config, find, secret, release), config, records=records)


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

    There is one, whatever comes: it counts what keys may use. It is on the machine of this process, whose files it opens: the models, the
    ledger, batches. Serve starts it again when it is not well by its own account.

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
        ray_actor_options={"num_cpus": 0, "label_selector": {"ray.io/node-id": ray.get_runtime_context().get_node_id()}},
        logging_config={"enable_access_log": False},  # ours says more
    )
    return deployment(serve.ingress()(Ingress)).bind()


class DeploymentError(QuintetError):
    """Ray Serve could not start the application."""


def root_cause(text: str) -> str:
    """The line that says what went wrong first, of an error with traces in it: the last that names an exception, else the first one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    exceptions = [found[1] for line in lines if (found := _EXCEPTION.fullmatch(line))]
    if exceptions:
        return exceptions[-1]
    return lines[0] if lines else "it gives no reason"


def _messages_of(application: str) -> str:
    """What Ray Serve knows of its deployments; of the whole it says only that they failed."""
    with contextlib.suppress(Exception):  # it may not have come so far
        return "\n".join(deployment.message for deployment in serve.status().applications[application].deployments.values())
    return ""


@contextlib.contextmanager
def listening(application: serve.Application, host: str, port: int) -> Iterator[None]:
    """Serve's proxy passes requests on to the application, inside a ``with``. Where Serve runs already, it listens where it did.

    Raises:
        DeploymentError: it did not come up, and why, in one line.
    """
    try:
        serve.start(http_options={"host": host, "port": port})
        serve.run(application, name=APPLICATION, route_prefix="/")
    except Exception as error:  # of Ray's, with the trace of another process in its text
        why = root_cause(_messages_of(APPLICATION) or str(error))
        raise DeploymentError(f"--ray-proxy: Ray Serve cannot start the front: {why}") from None
    try:
        yield
    finally:
        serve.delete(APPLICATION)
