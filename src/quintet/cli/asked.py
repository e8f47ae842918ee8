"""What the options of ``quintet serve`` come to, and what is wrong with them as they stand: nothing is read, opened or loaded."""

from __future__ import annotations

import os
from typing import Any

from quintet.cli import batch, configuration, engines, exporting, fleet, net, serve, usage, vllm
from quintet.cli.cluster import ClusterOptions
from quintet.cli.console import OptionError
from quintet.cli.telling import TellOptions
from quintet.cli.values import check_key, taken
from quintet.config import EngineName, KvType, Quantize, ServerConfig
from quintet.errors import shorten


def options(
    told: TellOptions,
    models: tuple[str, ...],
    *,
    api_key: tuple[str, ...],
    no_api_key: bool,
    admin_key: str | None,
    served_model_name: tuple[str, ...],
    alias: tuple[str, ...],
    moderation: tuple[str, ...],
    lazy: bool,
    pin: tuple[str, ...],
    idle_unload: str,
    ctx_size: int,
    threads: int,
    kv_cache: str,
    kv_type: KvType,
    quantize: Quantize,
    mmproj: str,
    toy: bool,
    offline: bool,
    max_body: str,
    allow_image_urls: tuple[str, ...],
    image_longest_edge: int,
    max_choices: int,
    max_waiting: int,
    drain_timeout: float,
    watchdog: float,
    speculation: str,
    draft: tuple[str, ...],
    lora: tuple[str, ...],
    think_tags: str | None,
    spm_infill: bool,
    engine: EngineName,
    cluster: ClusterOptions | None = None,
    **server: Any,
) -> serve.ServeOptions:
    """The options of the command that runs, which has those of ``quintet serve``.

    Raises:
        OptionError: a malformed option.
    """
    sizes = ctx_size, threads, engines.parse_size(kv_cache), offline, max_choices, max_waiting
    tags, packs = engines.parse_tags(think_tags), engines.pack_bytes(server.pop("pack_cache"), server.pop("pack_cache_size"))
    kept = engines.prefix_cache(server.pop("prefix_cache_dir"), server.pop("prefix_cache_size"))
    drafts, files = speculation == "auto", (packs, quantize, image_longest_edge, mmproj)
    afar = bool(cluster and cluster.address)
    wanted = engines.EngineOptions("", *sizes, tags, spm_infill, drafts, *files, "", kept, engine, *vllm.take(server), kv_type, afar)
    idle, body = fleet.parse_seconds(idle_unload, "--idle-unload"), engines.parse_size(max_body, "--max-body")
    named = served_model_name, alias, lazy, pin, idle, moderation, allow_image_urls, draft, lora
    listen = taken(net.ListenOptions, server)
    if admin_key is not None:
        check_key(admin_key, "--admin-key")
    rows = usage.ledger_config(server.pop("ledger"), server.pop("ledger_full"), server.pop("ledger_keep"))
    # An option that is neither one of these nor named above is the server's setting of that name.
    config = ServerConfig(api_keys=api_key, admin_key=admin_key or "", max_body_bytes=body, batches=batch.config(server), **server)
    served = fleet.FleetOptions(_references(models, toy=toy), wanted, *named)
    return serve.ServeOptions(served, config, listen, no_api_key, told, drain_timeout, watchdog, rows, cluster)


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
        net.check_exposure(host, asked.config.api_keys, asked.no_api_key, closed=closed)
    if asked.told.otlp_endpoint:
        exporting.check(asked.told.otlp_endpoint, os.environ)


def _references(models: tuple[str, ...], *, toy: bool) -> tuple[str, ...]:
    if toy and models:
        raise OptionError(f"--toy serves the toy model alone: it takes no MODEL, got {shorten(models[0])}.")
    return (engines.TOY,) if toy else models or ("smollm2",)
