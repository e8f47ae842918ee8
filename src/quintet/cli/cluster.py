"""``quintet cluster``: what ``quintet serve`` is, with each model's replicas on the machines of a Ray cluster."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintet.cli import configuration

if TYPE_CHECKING:  # imported with every command, so that it stays quick
    from quintet.backends.native.wire.sources import ModelSource, VllmSource
    from quintet.cli.fleet import Fleet, FleetOptions
    from quintet.cli.plans import Plan
    from quintet.deploy.pool import Pool
    from quintet.deploy.scaling import Sizing
    from quintet.inputs.tokenizer import Tokenizer

NOTHING_TO_PROXY = ("uds", "admin_listen", "tls_cert", "tls_key", "max_connections", "drain_timeout", "watchdog")
"""Options of ``serve`` that Ray Serve's proxy has no place for, or settings of its own."""

MOST_REPLICAS = 1000
"""Of a model: each is a process, and a connection of the front's."""

LEAST_CPUS, MOST_CPUS = 0.0001, 1e6
"""Of a replica, if not none: Ray counts in ten thousandths."""

INSTALL = "pip install 'quintet[ray]'"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the user asked for.

    Args:
        address: of a Ray cluster; empty = one of this machine alone, made for the time being.
        cpus: that Ray reserves for a replica; ``None`` = its threads.
        proxy: Ray Serve's HTTP proxy listens, in place of the front.
    """

    address: str
    sizing: Sizing
    cpus: float | None
    proxy: bool


def command(serve: click.Command) -> click.Command:
    """``quintet cluster``, which takes what ``serve`` takes and what is about Ray."""
    own = [
        click.Option(["--replicas"], type=click.IntRange(1, MOST_REPLICAS), default=1, show_default=True, help="Of each model, at least."),
        click.Option(["--max-replicas"], type=click.IntRange(1, MOST_REPLICAS), help="At most, while work waits; by default --replicas."),
        click.Option(["--ray-address"], metavar="ADDRESS", default="", help="Of a Ray cluster, or auto; by default one of this machine."),
        click.Option(["--cpus-per-replica"], type=click.FloatRange(0), help="That Ray reserves for one; by default --threads."),
        click.Option(
            ["--scale-up-after"], metavar="TIME", default="5s", show_default=True, help="A replica is added when choices wait so long."
        ),
        click.Option(
            ["--scale-down-after"], metavar="TIME", default="5m", show_default=True, help="One is removed when it is not needed so long."
        ),
        click.Option(["--ray-proxy"], is_flag=True, help="Have Ray Serve's HTTP proxy listen, beside its other applications."),
    ]
    for option in own:
        option.envvar = f"{configuration.PREFIX}{str(option.name).upper()}"

    def cluster(
        *,
        replicas: int,
        max_replicas: int | None,
        ray_address: str,
        cpus_per_replica: float | None,
        scale_up_after: str,
        scale_down_after: str,
        ray_proxy: bool,
        **values: Any,
    ) -> int:
        from quintet.cli.fleet import parse_seconds

        if ray_proxy:
            _check_proxied(values["port"])
        cpus = _cpus(cpus_per_replica)
        up, down = parse_seconds(scale_up_after, "--scale-up-after"), parse_seconds(scale_down_after, "--scale-down-after")
        sizing = _sizing(replicas, max_replicas or replicas, up, down)
        if not (values["threads"] or values["toy"] or ray_address):
            values["threads"] = _share(sizing.most)
        assert serve.callback is not None
        before = signal.signal(signal.SIGTERM, _stop)
        try:
            code: int = serve.callback(**values, cluster=ClusterOptions(ray_address, sizing, cpus, ray_proxy))
        except SystemExit as error:
            if error.code != signal.SIGTERM:  # with which Ray's own handler ends, while Ray is started or joined
                raise
            code = 0
        finally:
            _leave()
            signal.signal(signal.SIGTERM, before)
        return code

    help_ = (
        "Serve models over HTTP as quintet serve does, with several replicas of each, placed by Ray: on this machine, or on those of "
        "--ray-address.\n\nMODEL is as for quintet serve."
    )
    return configuration.Command("cluster", callback=cluster, params=[*serve.params, *own], help=help_)


def join(options: ClusterOptions, asked: FleetOptions) -> None:
    """Connect to Ray.

    Raises:
        OptionError: it is not there, or it is not said how large a replica is.
    """
    from quintet.cli.console import OptionError
    from quintet.cli.engines import TOY

    try:
        from quintet.deploy import ray
    except ImportError:
        raise OptionError(f"quintet cluster needs Ray: {INSTALL}.") from None
    sized = asked.engine.threads or asked.engine.engine == "vllm" or asked.references == (TOY,)
    if options.address and not sized:
        raise OptionError("--threads must say how many CPUs a replica has, for the machines of --ray-address are not this one.")
    try:
        ray.connect(options.address)
    except Exception as error:  # Ray raises that itself
        raise OptionError(f"Ray cannot be {'reached' if options.address else 'started'}: {str(error).partition(chr(10))[0]}") from None


def distributed(fleet: Fleet, options: ClusterOptions, asked: FleetOptions) -> Fleet:
    """The fleet with replicas for engines, in a process that has joined Ray.

    Raises:
        OptionError: this machine, on a Ray of its own, is too small for a replica.
    """
    if not options.address:
        _require_room(fleet, options)
    models = [
        replace(model, start=partial(_pool, plan, _reference(text), options, offline=asked.engine.offline))
        for model, plan, text in zip(fleet.models, fleet.plans, asked.references, strict=True)
    ]
    return replace(fleet, models=tuple(models))


def _stop(*_: object) -> None:
    """SIGTERM before the server listens to signals."""
    raise SystemExit(0)


def _cpus(given: float | None) -> float | None:
    """
    Raises:
        OptionError: Ray could not reserve so much.
    """
    from quintet.cli.console import OptionError

    if given is None or given == 0:
        return given
    if not LEAST_CPUS <= given <= MOST_CPUS:  # nor is nan
        raise OptionError(f"--cpus-per-replica must be 0, or a number from {LEAST_CPUS} to {MOST_CPUS:.0f}, got {given:g}.")
    return round(given, 4)


def _require_room(fleet: Fleet, options: ClusterOptions) -> None:
    from quintet.cli.console import OptionError
    from quintet.deploy import ray

    there = ray.cpus()
    for plan in fleet.plans:
        if (wanted := _reserved(plan, options)) > there:
            option = "--threads" if options.cpus is None else "--cpus-per-replica"
            raise OptionError(f"{option} must be at most {there:g}, the CPUs that Ray counts on this machine, got {wanted:g}.")


def _reserved(plan: Plan, options: ClusterOptions) -> float:
    """CPUs of a replica."""
    return options.cpus if options.cpus is not None else plan.threads or 1


def _check_proxied(port: int) -> None:
    """
    Raises:
        OptionError: an option was given that would have no effect.
    """
    from quintet.cli.console import OptionError

    given = configuration.given()
    for name in NOTHING_TO_PROXY:
        if name in given:
            raise OptionError(f"--{name.replace('_', '-')} is nothing to Ray Serve's proxy; leave it out.")
    if port == 0:
        raise OptionError("--port must be above 0 with --ray-proxy, for Ray Serve does not say which one it takes, got 0.")


def _sizing(least: int, most: int, up: float, down: float) -> Sizing:
    from quintet.cli.console import OptionError
    from quintet.deploy.scaling import Sizing

    if most < least:
        raise OptionError(f"--max-replicas must be at least --replicas, {least}, got {most}.")
    return Sizing(least, most, up, down)


def _share(replicas: int) -> int:
    """Threads of each of so many on this machine."""
    from quintet import machine

    return max(1, machine.cpus() // replicas)


def _reference(text: str) -> str:
    from quintet.cli import references

    return references.split(text)[1]


def _pool(plan: Plan, reference: str, options: ClusterOptions, *, offline: bool) -> Pool:
    from quintet.deploy import ray
    from quintet.deploy.pool import Pool

    source = _anywhere(plan.vllm or plan.source)
    files = ray.Files(source.path, reference, offline, _absolute(plan.source.draft), plan.draft_reference)
    gpus = plan.vllm.options.tensor_parallel_size * plan.vllm.options.pipeline_parallel_size if plan.vllm and ray.devices() else 0
    needs = ray.Needs(_reserved(plan, options), gpus)
    make = partial(ray.make_engine, source, files, _once(plan.tokenizer), plan.config, needs, local=not options.address)
    return Pool(make, plan.config, options.sizing)


def _anywhere(source: ModelSource | VllmSource) -> ModelSource | VllmSource:
    """Its paths mean the same in whatever folder a process begins; Ray has a replica's in one of its own."""
    from quintet.backends.native.wire.sources import VllmSource

    path = _absolute(source.path)
    if isinstance(source, VllmSource):
        return replace(source, path=path)
    return replace(source, path=path, vision=_absolute(source.vision), draft=_absolute(source.draft))


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def _once(load: Callable[[], Tokenizer]) -> Callable[[], Tokenizer]:
    """The same tokenizer for all, whoever asks first."""
    lock, loaded = threading.Lock(), list[Any]()

    def get() -> Any:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return get


def _leave() -> None:
    import sys

    if (ray := sys.modules.get("quintet.deploy.ray")) is not None:
        ray.disconnect()
