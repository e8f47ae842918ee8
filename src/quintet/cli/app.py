"""The commands and their options; each hands over to its own module, imported only then, so that ``--help`` is quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from quintet import __version__, logs
from quintet.cli import batch, clients, cluster, configuration, vllm
from quintet.cli.completion import completion
from quintet.cli.keys import keys
from quintet.cli.telling import TellOptions
from quintet.cli.values import CHOICES, MOST_SECONDS, PATH, Number, taken
from quintet.config import LOG_LEVELS, MAX_LOGPROBS, KvType, Quantize

if TYPE_CHECKING:
    from quintet.backends.native.front.spawn import Ahead

_F = TypeVar("_F", bound=Callable[..., Any])


def _option(*names: str, **settings: Any) -> Callable[[_F], _F]:
    """An option whose help tells its default."""
    return click.option(*names, **{"show_default": settings.get("default") is not None and not settings.get("is_flag"), **settings})


_model = click.argument("model", default="smollm2", required=False)
_offline = _option("--offline", is_flag=True, help="Use only what is on this machine.")
_threads = _option("--threads", "-t", type=click.IntRange(0, 1024), default=0, help="Compute threads; 0 = one per available CPU.")
_context = _option("--ctx-size", "-c", type=click.IntRange(0), default=0, help="Most tokens of prompt and completion; 0 = the model's own.")
_pack_cache = _option(
    "--pack-cache/--no-pack-cache", default=True, help="Keep packed weights in the cache folder: a model is ready sooner the next time."
)
_pack_size = _option("--pack-cache-size", metavar="SIZE", default="20GiB", help="Most bytes of them; what was not used for longest goes.")
_kv_cache = _option("--kv-cache", metavar="SIZE", default="1GiB", help="Memory for the KV cache, e.g. 512MiB or 2GiB.")
_kv_type = _option(
    "--kv-type", type=click.Choice(get_args(KvType)), default="f16", help="Keys and values in 16 bits, or 8: nearly twice the tokens."
)

_quantize = _option(
    "--quantize",
    type=click.Choice(get_args(Quantize)),
    default="q8",
    help="What becomes of float weights on load: 8 bits, 4 bits, or none = they are kept, and activations are floats too.",
)


_mmproj = _option(
    "--mmproj",
    metavar="FILE",
    default="",
    show_default=False,
    help="Image encoder of the first model; by default mmproj*.gguf beside it, or what its folder has; none = it sees no images.",
)


_draft = _option(
    "--draft",
    metavar="[NAME=]MODEL",
    multiple=True,
    help="Smaller model with the same tokens that drafts for the first model, or for the one named; the output is the same.",
)
_draft_of_one = _option(
    "--draft", metavar="MODEL", multiple=True, help="Smaller model with the same tokens that drafts for it; the output is the same."
)


def _ahead(told: TellOptions, *, first: bool) -> Ahead:
    """Where engines' processes come from. The ``first`` starts before all else: it imports while this one does."""
    from quintet.backends.native.front.spawn import Ahead

    known = told.level in LOG_LEVELS
    return click.get_current_context().with_resource(Ahead(told.level.upper(), first=first and known, form=told.form))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 140}, no_args_is_help=True)
@click.version_option(__version__, prog_name="quintet", message="%(prog)s %(version)s", help="Print the version.")
def app() -> None:
    """Text completions on your own machine, in the dialects of five providers."""


app.command_class = configuration.Command


@app.command()
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@_option("--host", default="127.0.0.1", help="Address to listen on.")
@_option("--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on; 0 = any free one.")
@_option("--uds", type=PATH, metavar="PATH", help="Unix socket to listen on, in place of an address and a port.")
@_option("--uds-mode", metavar="OCTAL", default="600", help="Who may use the Unix socket, as for chmod.")
@_option("--admin-listen", metavar="HOST:PORT", help="Have metrics and administration there, and there alone.")
@_option("--tls-cert", type=PATH, metavar="FILE", help="Certificate in PEM; read again when it changes.")
@_option("--tls-key", type=PATH, metavar="FILE", help="Its private key in PEM.")
@_option("--allowed-host", metavar="NAME", multiple=True, help="Name that a request's Host may have, *.NAME or *; repeatable.")
@_option("--cors-origin", metavar="ORIGIN", multiple=True, help="Web site whose pages may send requests, or *; repeatable.")
@_option("--max-connections", type=click.IntRange(1), help="Most connections at once; by default what the system's limit allows, to 8192.")
@_option("--api-key", multiple=True, show_envvar=True, help="Key a request must carry; repeatable.")
@_option(
    "--api-key-file",
    type=PATH,
    metavar="FILE",
    help="Keys, one a line, plain or as sha256:HEX; read again when it changes.",
)
@_option("--keys", type=PATH, metavar="FILE", help="Store of keys with limits, made with quintet keys.")
@_option("--trusted-proxy", metavar="NETWORK", multiple=True, help="Who is believed about a client's address, or unix; repeatable.")
@_option("--no-api-key", is_flag=True, help="Listen beyond this machine without a key.")
@_option("--dialect", default="openai", help="Of paths without a provider's prefix; auto = by the SDK's User-Agent.")
@_option("--admin-key", show_envvar=True, help="Key for loading and unloading models over HTTP.")
@_option("--strict", is_flag=True, help="Refuse fields that neither the provider has nor an extension is.")
@_option("--served-model-name", "-a", multiple=True, help="Name that requests use for the first model; repeatable.")
@_option("--alias", metavar="NAME=MODEL", multiple=True, help="Another name for a model, * in it = any text; repeatable.")
@_option(
    "--moderation", metavar="NAME=FORMAT", multiple=True, help="Model that judges texts, and how: a format's name or file; repeatable."
)
@_option("--lazy", is_flag=True, help="Load each model at its first request.")
@_option("--pin", metavar="NAME", multiple=True, help="Model that is loaded at the start and stays; repeatable.")
@_option("--idle-unload", metavar="TIME", default="0", help="Free a model after so long without a request, e.g. 10m; 0 = never.")
@_context
@_threads
@_kv_cache
@_kv_type
@_quantize
@_mmproj
@_pack_cache
@_pack_size
@_option("--prefix-cache-dir", type=PATH, metavar="FOLDER", help="Keep prefixes of prompts here beyond a restart.")
@_option("--prefix-cache-size", metavar="SIZE", default="8GiB", help="Most bytes of them; what was not used for longest goes.")
@_option("--toy", is_flag=True, help="Serve a deterministic toy model that needs no weights.")
@_offline
@_option("--timeout", type=Number(0, MOST_SECONDS), metavar="SECONDS", default=0, help="Most time for one completion; 0 = no limit.")
@_option("--max-body", metavar="SIZE", default="12MiB", help="Largest request body.")
@_option("--allow-image-urls", metavar="HOST", multiple=True, help="Host that images may be fetched from, *.NAME or *; repeatable.")
@_option("--image-longest-edge", type=click.IntRange(0), default=0, help="Most pixels of an image's longer edge; 0 = the model's own.")
@_option("--max-choices", type=CHOICES, default=1024, help="Most choices of a request: prompts times n, or best_of.")
@_option(
    "--max-logprobs",
    type=click.IntRange(1),
    default=MAX_LOGPROBS,
    help="Most log-probabilities of an answer: choices times tokens times one more than alternatives.",
)
@_option("--max-waiting", type=CHOICES, default=1024, help="Most choices that wait for their turn; beyond it requests get 503.")
@_option(
    "--max-per-key",
    type=click.IntRange(0),
    default=0,
    help="Most completions at once per API key, or of all where none is needed; 0 = no limit.",
)
@_option("--ledger", type=PATH, metavar="FILE", help="Keep a row for each completion in this file.")
@_option(
    "--ledger-full",
    type=click.Choice(["refuse", "serve"]),
    default="refuse",
    help="What happens to requests while the ledger cannot be written: they get 503, or their rows wait in memory.",
)
@_option("--ledger-keep", metavar="TIME", default="0", help="Sum rows up by day after so long, e.g. 90d; 0 = never.")
@batch.options
@_option(
    "--drain-timeout",
    type=Number(0, MOST_SECONDS),
    metavar="SECONDS",
    default=30,
    help="Most time for running answers to end after SIGTERM.",
)
@_option(
    "--watchdog",
    type=Number(1, MOST_SECONDS, off=True),
    metavar="SECONDS",
    default=30,
    help="End a server that stands still for so long, to be started again; 0 = never.",
)
@_option("--speculation", type=click.Choice(["auto", "off"]), default="auto", help="Draft tokens where few completions run.")
@_draft
@_option("--think-tags", metavar="START,END", help="What the model writes around its thinking; by default what its file tells.")
@_option("--spm-infill", is_flag=True, help="Fill in the middle with the suffix before the prefix, which some models prefer.")
@_option("--otlp-endpoint", metavar="URL", default="", show_default=False, help="Send spans and metrics to this OpenTelemetry collector.")
@_option("--log-level", default="info", help="error, warning, info or debug.")
@_option("--log-format", type=click.Choice(logs.FORMS), help="Form of the log's lines; by default text on a terminal, else JSON.")
@vllm.options
@configuration.option
def serve(**values: Any) -> int:
    """Serve models over HTTP; the first answers requests that name none.

    MODEL is smollm2 (default), a path to a .gguf file or a Hugging Face folder, or hf:user/repo[:QUANT or file]; NAME=MODEL names it.
    """
    configuration.require_partners()
    told = taken(TellOptions, values)
    ahead = _ahead(told, first=not (values["toy"] or values["lazy"] or values["engine"] == "vllm" or values.get("cluster")))
    from quintet.cli import asked, serve

    return serve.serve(asked.options(told, **values), ahead)


def _check(**values: Any) -> None:
    """What is wrong with the options of ``serve``."""
    from quintet.cli import asked

    asked.check(**values)


@app.command()
@click.argument("words", metavar="[MODEL] [PROMPT]", nargs=-1)
@_option("--max-tokens", "-n", type=click.IntRange(0), help="Most tokens to generate; by default 128, or what fits the context.")
@_option("--temperature", type=float, default=1.0, help="0 to 2; 0 = always the likeliest token.")
@_option("--top-p", type=float, default=1.0, help="Draw from the likeliest tokens of this total probability.")
@_option("--seed", type=click.IntRange(0, 2**64 - 1), help="Same seed, same text.")
@_option("--stop", multiple=True, help="End the text before this string; repeatable.")
@_context
@_threads
@_kv_cache
@_kv_type
@_quantize
@_mmproj
@_draft_of_one
@_pack_cache
@_pack_size
@_offline
@configuration.option
def run(
    words: tuple[str, ...],
    *,
    max_tokens: int | None,
    temperature: float,
    top_p: float,
    seed: int | None,
    stop: tuple[str, ...],
    ctx_size: int,
    threads: int,
    kv_cache: str,
    kv_type: KvType,
    quantize: Quantize,
    mmproj: str,
    draft: tuple[str, ...],
    pack_cache: bool,
    pack_cache_size: str,
    offline: bool,
) -> int:
    """Complete a prompt here in the terminal.

    One argument is the prompt, unless it is written like a model (smollm2, hf:..., *.gguf, folder/); two are model and prompt. Without
    a prompt it is read from standard input.
    """
    from quintet.cli import drafts, engines, run

    configuration.require_partners()
    model, prompt = run.model_and_prompt(list(words))
    packs = engines.pack_bytes(pack_cache_size, wanted=pack_cache)
    engine = engines.EngineOptions(
        model=model,
        ctx_size=ctx_size,
        threads=threads,
        kv_bytes=engines.parse_size(kv_cache),
        offline=offline,
        pack_bytes=packs,
        quantize=quantize,
        mmproj=mmproj,
        draft=drafts.of_one(draft),
        kv_type=kv_type,
        given=configuration.given(),
    )
    drawn = run.draw_seed() if seed is None else seed
    return run.run(
        engine, run.RunOptions(prompt=prompt, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=drawn, stop=stop)
    )


@app.command()
@_model
@_offline
@_option("--quiet", "-q", is_flag=True, help="Say nothing if the model is here already.")
def pull(model: str, *, offline: bool, quiet: bool) -> None:
    """Fetch a model, or check that the one here is whole.

    MODEL is smollm2 (the default), a path to a .gguf file or a Hugging Face folder, or hf:user/repo[:QUANT or file].
    """
    from quintet.cli import models

    models.pull(model, offline=offline, quiet=quiet)


@app.command("list")
def list_() -> None:
    """List the models on this machine."""
    from quintet.cli import models

    models.list_()


@app.command()
@_model
@_context
@_kv_type
@_quantize
@_draft_of_one
@_offline
def show(model: str, *, ctx_size: int, kv_type: KvType, quantize: Quantize, draft: tuple[str, ...], offline: bool) -> None:
    """Describe a model: sizes, quantisation, memory it needs.

    MODEL is smollm2 (the default), a path to a .gguf file or a Hugging Face folder, or hf:user/repo[:QUANT or file].
    """
    from quintet.cli import drafts, models

    models.show(model, ctx_size, quantize, kv_type, drafts.of_one(draft), offline=offline)


@app.command()
@_option("--ledger", type=PATH, metavar="FILE", help="The ledger; by default the one that quintet serve is set to keep.")
@_option("--by", metavar="WORDS", default="key,model", help="Some of key, model, day, dialect and state, with commas; days are in UTC.")
@_option("--since", metavar="DATE", help="Only what arrived then or later, e.g. 2026-11-30 or 2026-11-30T12:00 (UTC).")
@_option("--until", metavar="DATE", help="Only what arrived before.")
@_option("--key", metavar="ID", help="Of one key alone: the 8 hex digits of its id.")
@_option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", help="How it is printed.")
@configuration.option
def usage(*, ledger: Path | None, by: str, since: str | None, until: str | None, key: str | None, form: str) -> None:
    """Sum up what a ledger holds, also while a server writes it."""
    from quintet.cli import usage

    usage.report(ledger, by, since, until, key, form)


@app.command()
@_option("--port", type=click.IntRange(1, 65535), default=8000, help="Port to check.")
def doctor(*, port: int) -> int:
    """Check that this machine can run Quintet."""
    from quintet.cli import doctor

    return doctor.doctor(port)


@app.command()
@click.argument("url")
@_option("--as", "page", type=click.Choice(clients.PAGES), required=True, help="The provider whose page the server is put through.")
@clients.key_option("QUINTET_CHECK_KEY")
@_option("--model", default="", show_default=False, help="Model to ask; by default the first that the server lists.")
@_option("--only", metavar="ITEM", multiple=True, help="Check this item alone; repeatable.")
@_option("--timeout", type=Number(0, MOST_SECONDS, above=True), metavar="SECONDS", default=60, help="Most time for one answer.")
@_option("--json", "as_json", is_flag=True, help="Print JSON, with each item's request and answer.")
def check(url: str, *, page: str, key: str, model: str, only: tuple[str, ...], timeout: float, as_json: bool) -> int:
    """Put any server through a provider's page, item by item.

    URL is its base URL as SDKs take it, such as http://127.0.0.1:8000/together/v1 or https://api.together.xyz/v1. The exit status is 0 if
    nothing differs from the page.
    """
    from quintet.cli import check

    return check.check(check.CheckOptions(url=url, page=page, key=key, model=model, only=only, timeout=timeout, as_json=as_json))


batch.connect(_context, _threads, _kv_cache, _kv_type, _quantize, _mmproj, _pack_cache, _pack_size, _offline, configuration.option)
configuration.connect(serve, run, pull, show, usage, *keys.commands.values(), *batch.batch.commands.values())
for _command in (keys, batch.batch, clients.top, clients.bench, clients.evaluate):
    app.add_command(_command)
app.add_command(completion)
app.add_command(cluster.command(serve))
app.add_command(configuration.command(serve, _check))
