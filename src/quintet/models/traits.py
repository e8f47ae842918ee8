"""What a tokenizer tells of its model beside ids and pieces: the tokens and texts with a role. Plain code over values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fim:
    """Token ids for fill-in-the-middle; ``None`` where the vocabulary has none."""

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    pad: int | None = None
    repo: int | None = None
    separator: int | None = None


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """What stands around a model's thinking in its text.

    Args:
        token: the id that is the end tag as a whole; ``None`` = it takes several.
    """

    start: str
    end: str
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Roles:
    """What a client needs to prepare prompts by itself; empty = the model has none.

    Args:
        eos, bos, pad: texts of the model's own tokens.
        chat_template: in Jinja.
    """

    eos: str = ""
    bos: str = ""
    pad: str = ""
    chat_template: str = ""


@dataclass(frozen=True, slots=True)
class Traits:
    """All of it; the defaults are those of a model that has nothing of the kind.

    Args:
        added: how many tokens ``encode`` puts before and after a text.
        think: ``None`` = the model does not think.
        longest: most bytes of a text that become one token; ``None`` = any number.
        dropped: bytes of a text that become none.
    """

    added: tuple[int, int] = (0, 0)
    fim: Fim = Fim()
    think: ThinkTags | None = None
    roles: Roles = Roles()
    longest: int | None = None
    dropped: bytes = b""
