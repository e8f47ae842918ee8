"""``quintet batch``, and the options that say how a server keeps batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from quintet.cli import configuration
from quintet.cli.console import OptionError
from quintet.cli.values import PATH
from quintet.config import BatchConfig
from quintet.errors import shorten
from quintet.models.files import xdg

_F = TypeVar("_F", bound=Callable[..., Any])
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_OPTIONS: dict[str, dict[str, Any]] = {
    "batch_dir": {"type": PATH, "metavar": "FOLDER", "help": "Where files and batches are kept; one server each."},
    "no_batches": {"is_flag": True, "help": "Keep no files and no batches."},
    "batch_keep": {"metavar": "TIME", "default": "30d", "help": "Keep files and batches for so long, e.g. 12h; 0 = for ever."},
    "batch_max_file": {"metavar": "SIZE", "default": "200MB", "help": "Largest file."},
    "batch_max_lines": {"type": click.IntRange(1), "metavar": "N", "default": 50_000, "help": "Most requests of a batch."},
    "batch_storage": {"metavar": "SIZE", "default": "10GB", "help": "Most bytes of the files of one key."},
}


def options(command: _F) -> _F:
    """Those of ``serve``."""
    for name, settings in reversed(_OPTIONS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, **{"show_default": "default" in settings, **settings})(command)
    return command


def config(server: dict[str, Any]) -> BatchConfig | None:
    """How batches are to be kept, of all options of ``serve``, from which these are taken away.

    Raises:
        OptionError: a malformed option.
    """
    from quintet.cli import engines, usage

    given: Mapping[str, Any] = {name: server.pop(name) for name in _OPTIONS}
    folder: Path | None = given["batch_dir"]
    max_file, storage = (engines.parse_size(given[name], f"--{name.replace('_', '-')}") for name in ("batch_max_file", "batch_storage"))
    keep = usage.parse_keep(given["batch_keep"], "--batch-keep")
    if given["no_batches"]:
        return None
    return BatchConfig(
        folder or state_dir(),
        keep=keep,
        max_file=max_file,
        max_lines=given["batch_max_lines"],
        max_stored=storage,
        chosen=folder is not None,
    )


def state_dir() -> Path:
    """``quintet/batches`` in the XDG state folder.

    Raises:
        ModelError: nobody knows where that is.
    """
    return xdg("XDG_STATE_HOME", "~/.local/state") / "quintet" / "batches"


@click.group()
def batch() -> None:
    """Files of requests."""


batch.command_class = configuration.Command


def connect(*of_engine: Decorator) -> None:
    """Add ``batch run``, with options that other commands have too."""

    @batch.command("run")
    @click.argument("file", type=PATH, metavar="IN.jsonl")
    @click.option("--output", "-o", type=PATH, required=True, metavar="OUT.jsonl", help="Where the answers go.")
    @click.option("--errors", type=PATH, metavar="FILE", help="Where refusals go; by default OUT.errors.jsonl.")
    @click.option("--model", default="smollm2", show_default=True, help="Model that computes every line, whatever model the line names.")
    @click.option(
        "--dialect", default="openai", show_default=True, help="Whose requests the lines are: openai, fireworks, ...; auto = openai."
    )
    @click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Other texts for lines without a seed.")
    @click.option("--toy", is_flag=True, help="Use a deterministic toy model that needs no weights.")
    @_all(of_engine)
    def run(
        *, file: Path, output: Path, errors: Path | None, model: str, dialect: str, seed: int, toy: bool, offline: bool, **engine: Any
    ) -> int:
        """Compute a file of requests here, without a server.

        Can be interrupted at any moment, and goes on with the same command. The same file gives the same answers, byte for byte.
        """
        from quintet.cli import batch_run, engines
        from quintet.server.routing import AUTO

        if not output.name:
            raise OptionError(f"--output must be a file's name, got {shorten(str(output))}.")
        if toy and "model" in configuration.given():
            raise OptionError(f"--toy computes with the toy model alone: it takes no --model, got {shorten(model)}.")
        configuration.require_partners()
        wanted = engines.EngineOptions(
            model=engines.TOY if toy else model,
            kv_bytes=engines.parse_size(engine.pop("kv_cache")),
            offline=offline,
            pack_bytes=engines.pack_bytes(engine.pop("pack_cache_size"), wanted=engine.pop("pack_cache")),
            given=configuration.given(),
            **engine,
        )
        options = batch_run.BatchOptions(
            file=file,
            output=output,
            errors=errors or output.with_name(f"{output.stem}.errors{output.suffix}"),
            dialect="openai" if dialect == AUTO else dialect,  # as a server that shares the setting reads what tells of no client
            seed=seed,
        )
        return batch_run.run(wanted, options)


def _all(decorators: tuple[Decorator, ...]) -> Decorator:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(decorators):
            command = one(command)
        return command

    return decorate
