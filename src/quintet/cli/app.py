"""The commands and their options; each hands over to its own module, imported only then, so that ``--help`` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quintet import __version__
from quintet.config import ServerConfig

app = typer.Typer(
    name="quintet",
    help="Text completions on your own machine, in the dialects of five providers.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DEFAULT_KV = "1GiB"
MODEL_HELP = "smollm2, a path to a .gguf file, or hf:user/repo[:QUANT or file]"
Model = Annotated[str, typer.Argument(help=MODEL_HELP, show_default=True)]
Offline = Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.")]
Threads = Annotated[int, typer.Option("--threads", "-t", min=0, max=1024, help="Compute threads; 0 = one per available CPU.")]
Context = Annotated[int, typer.Option("--ctx-size", "-c", min=0, help="Most tokens of prompt and completion; 0 = the model's own.")]
KvCache = Annotated[str, typer.Option("--kv-cache", metavar="SIZE", help="Memory for the KV cache, e.g. 512MiB or 2GiB.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quintet {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Text completions on your own machine, in the dialects of five providers."""


@app.command()
def serve(
    model: Model = "smollm2",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free one.")] = 8000,
    api_key: Annotated[list[str] | None, typer.Option(envvar="QUINTET_API_KEY", help="Key a request must carry; repeatable.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line, plain or as sha256:HEX; read again when it changes.")
    ] = None,
    no_api_key: Annotated[bool, typer.Option("--no-api-key", help="Listen beyond this machine without a key.")] = False,
    dialect: Annotated[str, typer.Option(help="Of paths without a provider's prefix; auto = by the SDK's User-Agent.")] = "openai",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse fields that the provider does not document.")] = False,
    served_model_name: Annotated[
        list[str] | None, typer.Option("--served-model-name", "-a", help="Name that requests use for the model; repeatable.")
    ] = None,
    ctx_size: Context = 0,
    threads: Threads = 0,
    kv_cache: KvCache = DEFAULT_KV,
    toy: Annotated[bool, typer.Option("--toy", help="Serve a deterministic toy model that needs no weights.")] = False,
    offline: Offline = False,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Most time for one completion; 0 = no limit.")] = 0,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="Largest request body.")] = "2MiB",
    max_choices: Annotated[int, typer.Option(min=1, max=128, help="Most choices of a request: prompts times n.")] = 128,
    max_waiting: Annotated[int, typer.Option(min=1, help="Most choices that wait for their turn; beyond it requests get 503.")] = 1024,
    max_per_key: Annotated[int, typer.Option(min=0, help="Most completions at once per API key; 0 = no limit.")] = 0,
    drain_timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Most time for running answers to end after SIGTERM.")
    ] = 30,
    think_tags: Annotated[
        str | None,
        typer.Option(metavar="START,END", help="What the model writes around its thinking; by default what its file tells."),
    ] = None,
    log_level: Annotated[str, typer.Option(help="error, warning, info or debug.")] = "info",
) -> None:
    """Serve a model over HTTP."""
    from quintet.cli import console, engines, serve

    if toy and (model, ctx_size, threads, kv_cache) != ("smollm2", 0, 0, DEFAULT_KV):
        raise console.OptionError("--toy has no weights and fixed sizes: it takes no MODEL, --ctx-size, --threads or --kv-cache.")
    kv_bytes, tags = engines.parse_size(kv_cache), engines.parse_tags(think_tags)
    engine = engines.EngineOptions(None if toy else model, ctx_size, threads, kv_bytes, offline, max_choices, max_waiting, tags)
    body = engines.parse_size(max_body, "--max-body")
    keys, names = tuple(api_key or ()), tuple(served_model_name or ())
    config = ServerConfig(host, port, keys, names, body, api_key_file, dialect, strict, timeout, max_per_key)
    raise typer.Exit(serve.serve(serve.ServeOptions(engine, config, no_api_key, log_level.lower(), drain_timeout)))


@app.command()
def run(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] [PROMPT]", help="A lone argument is the prompt.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=0, help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 to 2; 0 = always the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this total probability.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="Same seed, same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string; repeatable.")] = None,
    ctx_size: Context = 0,
    threads: Threads = 0,
    kv_cache: KvCache = DEFAULT_KV,
    offline: Offline = False,
) -> None:
    """Complete a prompt here in the terminal.

    One argument is the prompt, unless it is written like a model (smollm2, hf:..., *.gguf); two are model and prompt. Without a prompt
    it is read from standard input.
    """
    from quintet.cli import engines, run

    model, prompt = run.model_and_prompt(words or [])
    engine = engines.EngineOptions(model, ctx_size, threads, engines.parse_size(kv_cache), offline)
    drawn = run.draw_seed() if seed is None else seed
    raise typer.Exit(run.run(engine, run.RunOptions(prompt, max_tokens, temperature, top_p, drawn, tuple(stop or ()))))


@app.command()
def pull(
    model: Model = "smollm2",
    offline: Offline = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing if the model is here already.")] = False,
) -> None:
    """Fetch a model, or check that the one here is whole."""
    from quintet.cli import models

    models.pull(model, offline=offline, quiet=quiet)


@app.command("list")
def list_() -> None:
    """List the models on this machine."""
    from quintet.cli import models

    models.list_()


@app.command()
def show(model: Model = "smollm2", ctx_size: Context = 0, offline: Offline = False) -> None:
    """Describe a model: sizes, quantisation, memory it needs."""
    from quintet.cli import models

    models.show(model, ctx_size, offline=offline)


@app.command()
def doctor(port: Annotated[int, typer.Option(min=1, max=65535, help="Port to check.")] = 8000) -> None:
    """Check that this machine can run Quintet."""
    from quintet.cli import doctor

    raise typer.Exit(doctor.doctor(port))
