"""Fireworks' ``images``: whose they are, how many, how large. "Page": post-completions; "guide":
https://docs.fireworks.ai/guides/querying-vision-language-models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from quintet.errors import BadRequest, counted, shorten
from quintet.request import IMAGE_MARK, Image, Prompt

MOST = 30
"""Guide: "Maximum images per request: 30 images maximum, regardless of format (base64 or URL)"."""

MOST_BASE64 = 10 * 1024 * 1024
"""Guide: "Total base64-encoded images must be less than 10MB"."""

MOST_URL = 4096
_SCHEMES = ("data:", "http://", "https://")


@dataclass(frozen=True, slots=True)
class Given:
    """What the field holds.

    Args:
        images: one list, or a list for each prompt.
        by_prompt: the client has dealt them out to the prompts itself.
    """

    images: tuple[tuple[Image, ...], ...] = ()
    by_prompt: bool = False


NONE = Given()


@dataclass(frozen=True, slots=True)
class Images:
    """Page: "The list of base64 encoded images"; guide: "Provide images via URL or base64 encoding"; SDK: or lists of them."""

    type: str = "array<string> | array<array<string>>"
    range: str = f"up to {MOST} data, http or https URLs, less than 10 MB of base64 in all"

    def read(self, name: str, value: object) -> Given:
        if not isinstance(value, list):
            raise _wrong(name, "an array of strings, or of arrays of strings", value)
        for at, item in enumerate(value):
            if not isinstance(item, str | list):
                raise _wrong(f"{name}[{at}]", "a string, or an array of strings", item)
        by_prompt = bool(value) and isinstance(value[0], list)
        if by_prompt:
            images = tuple(tuple(_listed(f"{name}[{at}]", urls)) for at, urls in enumerate(value))
        else:
            images = (tuple(_listed(name, value)),)
        count = sum(map(len, images))
        size = sum(len(image.url) for image in chain.from_iterable(images) if _is_data(image.url))
        if count > MOST:
            raise BadRequest(name, f"must be at most {MOST} images", f"{count} images")
        if size >= MOST_BASE64:
            raise BadRequest(name, f"must be less than {MOST_BASE64} bytes of data URLs in all", f"{size} bytes")
        return Given(images, by_prompt) if count else NONE


def by_prompt(given: Given, prompts: Sequence[Prompt]) -> tuple[tuple[Image, ...], ...]:
    """The images of each prompt; empty if there are none at all.

    One list is dealt out in the order of the places for images in the prompts' texts, as transformers' processors do it.

    Raises:
        BadRequest: they do not fit the prompts.
    """
    if given.by_prompt:
        if len(given.images) != len(prompts):
            raise BadRequest("images", "must have a list for each prompt", f"{len(given.images)} for {len(prompts)}")
        return given.images
    if len(prompts) == 1 or not given.images:
        return given.images
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise BadRequest("images", "must be a list for each prompt, where prompts are token ids")
    places = [str(prompt).count(IMAGE_MARK) for prompt in prompts]
    images = given.images[0]
    if sum(places) != len(images):
        # Page: "the number of images provided should match the number of '<image>' special token in the prompt".
        raise BadRequest("images", f"must be as many as there are {IMAGE_MARK} in the prompts", f"{len(images)} for {sum(places)}")
    remaining = iter(images)
    return tuple(tuple(islice(remaining, count)) for count in places)


def _listed(name: str, value: object) -> Iterator[Image]:
    if not isinstance(value, list):
        raise _wrong(name, "an array of strings like those before it", value)
    for at, url in enumerate(value):
        param = f"{name}[{at}]"
        if not isinstance(url, str):
            raise _wrong(param, "a string", url)
        if not url[:8].lower().startswith(_SCHEMES):
            raise BadRequest(
                param, "must be a data URL such as data:image/png;base64,... or an http or https URL", counted(len(url), "character")
            )
        if not _is_data(url) and len(url) > MOST_URL:
            raise BadRequest(param, f"must be at most {MOST_URL} characters, or a data URL", f"{len(url)} characters")
        yield Image(url, param)


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"  # the rest may be megabytes


def _wrong(name: str, wanted: str, value: object) -> BadRequest:
    """``wrong_type`` of what may hold images, whose bytes are in no message."""
    kinds = ((str, "characters"), (list, "values"), (dict, "members"))
    got = next((f"{len(value)} {what}" for kind, what in kinds if isinstance(value, kind)), None)
    return BadRequest(name, f"must be {wanted}", got or shorten(value), code="invalid_type")
