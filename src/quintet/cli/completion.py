"""``quintet completion``: what a shell reads to complete commands and options; click's own scripts."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_QUINTET_COMPLETE"
"""By which a shell asks for words; click's rule for a command of this name."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes quintet's words in a shell.

    bash: put eval "$(quintet completion bash)" into ~/.bashrc; zsh: the same into ~/.zshrc; fish: quintet completion fish >
    ~/.config/fish/completions/quintet.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "quintet", VARIABLE).source())
