"""``--draft``: which model drafts for which, and whether it can."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from quintet.backends.native.worker.load import load_tokenizer
from quintet.cli import references
from quintet.cli.console import OptionError
from quintet.errors import ModelError, shorten
from quintet.models.files import StoredModel

FIRST = ""
"""In place of a model's name: the first model."""


def by_model(given: Sequence[str]) -> dict[str, str]:
    """The values of ``--draft``: name of a model, or ``FIRST`` -> reference of its draft model.

    Raises:
        OptionError: a model with two of them.
    """
    found: dict[str, str] = {}
    for text in given:
        name, reference = references.split(text)
        if name in found:
            raise OptionError(f"--draft gives {shorten(name) if name else 'the first model'} two draft models.")
        found[name] = reference
    return found


def of_one(given: Sequence[str]) -> str:
    """The draft model of the only model that there is; empty = none.

    Raises:
        OptionError: it is given two, or one of a name.
    """
    found = by_model(given)
    if named := next((name for name in found if name != FIRST), None):
        raise OptionError(f"--draft must be a model here, without a name before it, got {shorten(f'{named}={found[named]}')}.")
    return found.get(FIRST, "")


def require_same_tokens(model: StoredModel, draft: StoredModel) -> None:
    """A draft is of token ids: they must mean the same to both. Ids that only one of them has must be padding, which is no text.

    Raises:
        ModelError: they do not.
    """
    first, second = (load_tokenizer(one.path).pieces for one in (model, draft))
    if first == second:
        return
    for token, (mine, its) in enumerate(zip_longest(first, second, fillvalue=b"")):
        if mine != its:
            texts = (shorten(piece.decode("utf-8", "replace")) for piece in (its, mine))
            what = f"token {token} is {' there and '.join(texts)} here"
            raise ModelError(f"--draft {draft.name} does not have the vocabulary of {model.name}: {what}.")
