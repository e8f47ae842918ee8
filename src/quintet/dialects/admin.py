"""``POST /models/load`` and ``/models/unload``: ours, the same in every dialect."""

from __future__ import annotations

from quintet.dialects.fields import Field, String
from quintet.dialects.json_guard import decode_object
from quintet.dialects.wire import encode

MODEL = Field("model", String(256), "")


def parse_model(body: bytes) -> str:
    """The name of a model.

    Raises:
        BadRequest: and nothing else, whatever the bytes.
    """
    return MODEL.required(decode_object(body))


def model_status(name: str, status: str) -> bytes:
    """The answer to both."""
    return encode({"model": name, "status": status})
