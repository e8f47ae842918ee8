"""From a model reference to its files on this machine.

A reference is ``smollm2`` (the bundled model), a path to a ``.gguf`` file or to a folder of Hugging Face, or ``hf:user/repo[:QUANT or
file]``.
"""

from __future__ import annotations

from quintet.errors import ModelError, shorten
from quintet.models import bundled
from quintet.models.files import HUB, Report, StoredModel, expanded, file_errors, local_model

_URLS = ("http://", "https://")
_FORMS = f"{bundled.NAME}, a path to a .gguf file or a folder, or {HUB}user/repo[:QUANT]"


def is_reference(text: str) -> bool:
    """Whether ``text`` is written as a model reference; decided by its form alone, never by what lies on the disk."""
    return text == bundled.NAME or text.startswith(HUB) or text.lower().endswith((".gguf", "/"))


def resolve(text: str, report: Report, *, offline: bool = False, refresh: bool = False) -> StoredModel:
    """The file for a reference, fetched first if it is not here.

    Args:
        offline: use only what is here already.
        refresh: check what is here against its source (hash, newest revision) before using it.

    Raises:
        ModelError: unknown reference, unusable file, failed download; one clear line.
    """
    if text == bundled.NAME:
        return bundled.resolve(report, offline=offline, refresh=refresh)
    if text.startswith(HUB):
        from quintet.models import hub  # only for its references: a server with a file of its own is ready sooner

        return hub.resolve(text, report, offline=offline, refresh=refresh)
    return _local(text)


def stored() -> list[StoredModel]:
    """Every model file in the caches, by reference."""
    from quintet.models import hub

    return sorted(bundled.stored() + hub.stored(), key=lambda model: model.reference)


def _local(text: str) -> StoredModel:
    if text.lower().startswith(_URLS):  # as a path it would lose a slash
        raise ModelError(f"{shorten(text)} is a URL, which is not fetched: give {_FORMS}.")
    path = expanded(text)
    with file_errors(path):
        known = bool(text) and (is_reference(text) or path.exists())
    if not known:
        meant = _meant(text)
        raise ModelError(f"unknown model {shorten(text)}: give {_FORMS}.{f' Did you mean {meant}?' if meant else ''}")
    if path.name == "config.json" or path.suffix == ".safetensors":
        raise ModelError(f"{path} is one file of a model: give the folder that it is in.")
    return local_model(str(path), path)


def _meant(text: str) -> str:
    """A reference that is written much like it; empty = there is none."""
    import difflib

    if text.count("/") == 1 and text[0] not in "./~":
        return f"{HUB}{text}"
    return bundled.NAME if difflib.get_close_matches(text.lower(), [bundled.NAME]) else ""
