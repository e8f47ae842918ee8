"""Commands that ask a server over HTTP, whoever's it is, and their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from quintet.cli.values import MOST_SECONDS, PATH, Number, check_key

PAGES = ("openai", "fireworks", "together", "cerebras", "novita")
_F = TypeVar("_F", bound=Callable[..., Any])


def key_option(variable: str) -> Callable[[_F], _F]:
    """The server's key, also from a variable. One that no header can carry ends here, unquoted: http.client would quote it."""

    def checked(_: click.Context, __: click.Parameter, key: str) -> str:
        if key:
            check_key(key, f"--key or {variable}")
        return key

    told = "The server's key; others may read it off a command line."
    return click.option("--key", envvar=variable, show_envvar=True, default="", callback=checked, help=told)


_key = key_option("QUINTET_CLIENT_KEY")
_timeout = click.option(
    "--timeout",
    type=Number(0, MOST_SECONDS, above=True),
    metavar="SECONDS",
    default=60,
    show_default=True,
    help="Most time for one answer.",
)


@click.command()
@click.argument("url", default="http://127.0.0.1:8000")
@_key
@click.option("--interval", type=Number(0.1, MOST_SECONDS), metavar="SECONDS", default=1, show_default=True, help="Between two looks.")
@click.option("--once", is_flag=True, help="Look twice, an interval apart, print what there is, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line for each look.")
def top(url: str, *, key: str, interval: float, once: bool, as_json: bool) -> int:
    """Watch a server at work, until Ctrl-C.

    URL is the server's, or that of its metrics. It is read from /metrics, under vLLM's names: so a vLLM server is shown too, as far as its
    names are the same.
    """
    from quintet.cli import top

    return top.top(top.TopOptions(url=url, key=key, interval=interval, once=once, as_json=as_json))


@click.command()
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--as", "page", type=click.Choice(PAGES), default="openai", show_default=True, help="The page whose words requests are in.")
@_key
@click.option("--model", default="", help="Model to ask; by default the first that the server lists.")
@click.option("--clients", "-c", type=click.IntRange(1, 10_000), help="Clients that each wait for their answer; by default 4.")
@click.option("--rate", type=Number(0, 100_000, above=True), help="In their place: arrivals per second that wait for nobody.")
@click.option("--requests", "-n", type=click.IntRange(1), help="Requests in all.")
@click.option("--duration", metavar="TIME", help="In their place: how long requests are sent, e.g. 2m; by default 30s.")
@click.option("--prompt-tokens", metavar="N|N-M", default="64", show_default=True, help="Words of a prompt; most are a token.")
@click.option("--max-tokens", metavar="N|N-M", default="64", show_default=True, help="Most tokens of an answer.")
@click.option("--same-prefix", type=click.IntRange(0), default=0, help="So many of these are the same in all, for a prefix cache.")
@click.option("--stream/--no-stream", default=True, help="Whether answers are streams.")
@click.option("--extra", metavar="JSON", default="{}", help='More members of each body, such as {"ignore_eos": true}.')
@click.option("--seed", type=int, help="Same seed, same requests at the same times; by default another each time, which the report tells.")
@click.option("--warm-up", type=click.IntRange(0), default=1, show_default=True, help="Requests before those that count.")
@_timeout
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--svg", type=PATH, metavar="FILE", help="Write the report as a picture too.")
def bench(
    url: str,
    *,
    page: str,
    key: str,
    model: str,
    clients: int | None,
    rate: float | None,
    requests: int | None,
    duration: str | None,
    prompt_tokens: str,
    max_tokens: str,
    same_prefix: int,
    stream: bool,
    extra: str,
    seed: int | None,
    warm_up: int,
    timeout: float,
    as_json: bool,
    svg: Path | None,
) -> int:
    """Put load on any server, and see what its clients feel.

    URL is its base URL as SDKs take it, such as http://127.0.0.1:8000/v1. The exit status is 1 if no request was answered.
    """
    from quintet.cli import bench

    amount = bench.parse_amount(clients, rate, requests, duration)
    words = bench.parse_span(prompt_tokens, "--prompt-tokens")
    bench.require_within(same_prefix, words)
    load = bench.LoadOptions(
        clients=amount.clients,
        rate=amount.rate,
        requests=amount.requests,
        duration=amount.duration,
        prompt_tokens=words,
        max_tokens=bench.parse_span(max_tokens, "--max-tokens"),
        same_prefix=same_prefix,
        stream=stream,
        extra=bench.parse_extra(extra),
        seed=bench.fresh_seed() if seed is None else seed,
        warm_up=warm_up,
    )
    return bench.bench(bench.BenchOptions(url=url, page=page, key=key, model=model, timeout=timeout, as_json=as_json, svg=svg), load)


@click.command("eval")
@click.argument("model")
@click.argument("tasks", metavar="TASK...", nargs=-1, required=True)
@click.option("--url", default="", metavar="URL", help="Ask this server, where MODEL is a name, in place of one that is started.")
@_key
@click.option("--tokenizer", default="", metavar="NAME", help="A Hugging Face tokenizer, where the server has no /tokenize.")
@click.option("--concurrent", type=click.IntRange(1), default=8, show_default=True, help="Requests at once.")
@click.option("--limit", type=Number(0, above=True), help="So many questions of each task, or, below 1, that share.")
@click.option("--num-fewshot", type=click.IntRange(0), help="Examples before each question; by default as the task has it.")
@click.option("--include-path", type=PATH, metavar="DIR", help="A folder of tasks of your own.")
@click.option("--output", "-o", type=PATH, metavar="FILE", help="Write lm-eval's results there, as JSON.")
@click.option("--offline", is_flag=True, help="Fetch no model.")
def evaluate(
    model: str,
    tasks: tuple[str, ...],
    *,
    url: str,
    key: str,
    tokenizer: str,
    concurrent: int,
    limit: float | None,
    num_fewshot: int | None,
    include_path: Path | None,
    output: Path | None,
    offline: bool,
) -> int:
    """Evaluate a model with lm-eval, on a server that is started for it.

    MODEL is a reference, as for quintet serve; TASK is one of lm-eval's (lm_eval ls tasks).
    """
    from quintet.cli import evaluate

    options = evaluate.EvalOptions(
        model=model,
        tasks=tasks,
        url=url,
        key=key,
        tokenizer=tokenizer,
        concurrent=concurrent,
        limit=limit,
        fewshot=num_fewshot,
        include=include_path,
        output=output,
        offline=offline,
    )
    return evaluate.evaluate(options)
