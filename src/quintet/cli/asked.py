"""What the options of ``quintet serve`` come to, and what is wrong with them as they stand: nothing is read, opened or loaded."""

from __future__ import annotations

import os
from typing import Any

from quintet.cli import batch, configuration, engines, exporting, fleet, net, serve, usage, vllm
from quintet.cli.cluster import ClusterOptions
from quintet.cli.console import OptionError
from quintet.cli.telling import TellOptions
from quintet.cli.values import check_key, taken
from quintet.config import ServerConfig
from quintet.errors import shorten


def options(
    told: TellOptions,
    models: tuple[str, ...],
    *,
    api_key: tuple[str, ...],
    no_api_key: bool,
    admin_key: str | None,
    toy: bool,
    max_body: str,
    drain_timeout: float,
    watchdog: float,
    cluster: ClusterOptions | None = None,
    **server: Any,
) -> serve.ServeOptions:
    """The options of the command that runs, which has those of ``quintet serve``.

    Raises:
        OptionError: a malformed option.
    """
    engine = _engine_options(server, elsewhere=bool(cluster and cluster.address))
    served = _fleet_options(server, _references(models, toy=toy), engine)
    body = engines.parse_size(max_body, "--max-body")
    listen = taken(net.ListenOptions, server)
    if admin_key is not None:
        check_key(admin_key, "--admin-key")
    rows = usage.ledger_config(server.pop("ledger"), server.pop("ledger_full"), server.pop("ledger_keep"))
    # An option that is neither one of these nor named above is the server's setting of that name.
    config = ServerConfig(api_keys=api_key, admin_key=admin_key or "", max_body_bytes=body, batches=batch.config(server), **server)
    return serve.ServeOptions(
        fleet=served,
        config=config,
        listen=listen,
        no_api_key=no_api_key,
        told=told,
        drain_timeout=drain_timeout,
        watchdog=watchdog,
        ledger=rows,
        cluster=cluster,
    )


def check(**values: Any) -> None:
    """
    Raises:
        QuintetError: ``quintet serve`` would refuse the options of the command that runs, whatever this machine has.
    """
    configuration.require_partners()
    asked = options(taken(TellOptions, values), **values)
    serve.check(asked)
    asked.listen.require_two_places()
    closed = bool(asked.config.api_key_file or asked.config.keys)
    for host in asked.listen.hosts:
        net.check_exposure(host, asked.config.api_keys, no_key=asked.no_api_key, closed=closed)
    if asked.told.otlp_endpoint:
        exporting.check(asked.told.otlp_endpoint, os.environ)


def _engine_options(server: dict[str, Any], *, elsewhere: bool) -> engines.EngineOptions:
    """Those of each model's engine, taken out of the options of the command that runs.

    Args:
        elsewhere: see ``EngineOptions``.

    Raises:
        OptionError: a malformed option.
    """
    settings, given = vllm.take(server)
    return engines.EngineOptions(
        model="",
        ctx_size=server.pop("ctx_size"),
        threads=server.pop("threads"),
        kv_bytes=engines.parse_size(server.pop("kv_cache")),
        offline=server.pop("offline"),
        max_choices=server.pop("max_choices"),
        max_waiting=server.pop("max_waiting"),
        think_tags=engines.parse_tags(server.pop("think_tags")),
        suffix_first=server.pop("spm_infill"),
        speculation=server.pop("speculation") == "auto",
        pack_bytes=engines.pack_bytes(server.pop("pack_cache_size"), wanted=server.pop("pack_cache")),
        quantize=server.pop("quantize"),
        longest_edge=server.pop("image_longest_edge"),
        mmproj=server.pop("mmproj"),
        prefixes=engines.prefix_cache(server.pop("prefix_cache_dir"), server.pop("prefix_cache_size")),
        engine=server.pop("engine"),
        vllm=settings,
        given=given,
        kv_type=server.pop("kv_type"),
        elsewhere=elsewhere,
    )


def _fleet_options(server: dict[str, Any], references: tuple[str, ...], engine: engines.EngineOptions) -> fleet.FleetOptions:
    """Those of all models, taken likewise.

    Raises:
        OptionError: a malformed option.
    """
    return fleet.FleetOptions(
        references,
        engine,
        names=server.pop("served_model_name"),
        aliases=server.pop("alias"),
        lazy=server.pop("lazy"),
        pins=server.pop("pin"),
        idle=fleet.parse_seconds(server.pop("idle_unload"), "--idle-unload"),
        moderation=server.pop("moderation"),
        image_hosts=server.pop("allow_image_urls"),
        drafts=server.pop("draft"),
        loras=server.pop("lora"),
    )


def _references(models: tuple[str, ...], *, toy: bool) -> tuple[str, ...]:
    if toy and models:
        raise OptionError(f"--toy serves the toy model alone: it takes no MODEL, got {shorten(models[0])}.")
    return (engines.TOY,) if toy else models or ("smollm2",)
