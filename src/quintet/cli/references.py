"""How a model is written on the command line and in the file of settings: a reference, or ``NAME=REFERENCE``."""

from __future__ import annotations

from pathlib import Path

from quintet.cli.console import OptionError
from quintet.errors import shorten
from quintet.models.files import HUB, expanded

NO_ENCODER = "none"
"""In place of an image encoder's file: the model sees no images, whatever is beside it."""

_WHOLE = (".", "/", "~", HUB)


def split(text: str) -> tuple[str, str]:
    """The name, empty if there is none, and the reference. What begins like a path or a hub reference is one as a whole.

    Raises:
        OptionError: an equals sign without a name before it or a reference behind it.
    """
    name, equals, reference = text.partition("=")
    if equals and not (name and reference) and not text.startswith(_WHOLE):
        raise OptionError(f"a model is written REFERENCE or NAME=REFERENCE, got {shorten(text)}.")
    return (name, reference) if equals and not text.startswith(_WHOLE) else ("", text)


def based(folder: Path, text: str) -> str:
    """The same with the path of a file or a folder, if it is one, made relative to where the command runs instead of to ``folder``."""
    name, reference = split(text)
    if reference.startswith(HUB) or not ("/" in reference or reference.lower().endswith((".gguf", ".toml"))):
        return text
    return f"{name}{'=' if name else ''}{folder / expanded(reference)}"


def based_encoder(folder: Path, text: str) -> str:
    """The same of an image encoder's file, which an empty text or ``NO_ENCODER`` is not."""
    return text if text in ("", NO_ENCODER) else str(folder / expanded(text))


def based_adapter(folder: Path, text: str) -> str:
    """The same of ``NAME=MODEL:PATH``; what has no path is left to be refused as it was written."""
    head, colon, path = text.partition(":")
    return f"{head}{colon}{folder / expanded(path)}" if path else text
