"""Administration, the same in every dialect: ``POST /models/load`` and ``/models/unload``, and vLLM's two of LoRA adapters."""

from __future__ import annotations

from typing import NamedTuple

from quintet.dialects.fields import Field, String
from quintet.dialects.json_guard import decode_object
from quintet.dialects.wire import encode

MODEL = Field("model", String(256), "")
LORA_NAME = Field("lora_name", String(256), "")
LORA_PATH = Field("lora_path", String(4096), "")
BASE_MODEL = Field("base_model_name", String(256), "")


def parse_model(body: bytes) -> str:
    """The name of a model.

    Raises:
        BadRequest: and nothing else, whatever the bytes.
    """
    return MODEL.required(decode_object(body))


class AskedAdapter(NamedTuple):
    """An adapter to load.

    Args:
        base: name of the model that it is of; empty = the first that takes any.
    """

    name: str
    path: str
    base: str


def parse_adapter(body: bytes) -> AskedAdapter:
    """Of ``POST /load_lora_adapter``.

    Raises:
        BadRequest: and nothing else, whatever the bytes.
    """
    found = decode_object(body)
    return AskedAdapter(LORA_NAME.required(found), LORA_PATH.required(found), BASE_MODEL.of(found))


def parse_adapter_name(body: bytes) -> str:
    """Of ``POST /unload_lora_adapter``.

    Raises:
        BadRequest: and nothing else, whatever the bytes.
    """
    return LORA_NAME.required(decode_object(body))


def model_status(name: str, status: str) -> bytes:
    """The answer of ``/models/load`` and ``/models/unload``."""
    return encode({"model": name, "status": status})
