"""MessagePack that would become far more JSON than it is holds nobody up."""

from __future__ import annotations

import json

import msgspec
import pytest

from quintet.errors import BadRequest
from quintet.server.asgi import Headers
from quintet.server.unpack import as_json

MSGPACK = Headers([(b"content-type", b"application/msgpack")])
MOST = 1 << 24


@pytest.mark.fault("B01")
@pytest.mark.parametrize("prompt", ["\x01" * 1_100_000, [1.5] * 33_000, [[0.25] * 20_000] * 2])
def test_what_would_be_written_as_far_more_json_is_refused_before(prompt: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec.json, "encode", None)
    monkeypatch.setattr(json, "dumps", None)
    with pytest.raises(BadRequest):
        as_json(msgspec.msgpack.encode({"prompt": prompt}), MSGPACK, MOST)


def test_long_texts_with_lines_and_as_many_small_ids_as_may_be_are_read() -> None:
    for prompt in ("a\n\tb" * 1_000_000, [*range(256, 256 + 8192)] * 63, [1] * 500_000):
        assert json.loads(as_json(msgspec.msgpack.encode({"prompt": prompt}), MSGPACK, MOST)) == {"prompt": prompt}


@pytest.mark.parametrize("body", [{b"prompt": "a"}, {1: 2}, [1], None])
def test_what_is_no_map_of_names_is_told_so_and_nothing_of_limits_that_it_keeps(body: object) -> None:
    with pytest.raises(BadRequest) as caught:
        as_json(msgspec.msgpack.encode(body), MSGPACK, MOST)
    assert str(caught.value) == "The body must be a MessagePack map whose keys are texts."


def test_a_body_of_very_many_arrays_is_told_how_many_there_may_be_in_another() -> None:
    with pytest.raises(BadRequest, match="whose keys are texts; with more than 131072 arrays and maps"):
        as_json(msgspec.msgpack.encode({"prompt": [[1]] * 140_000}), MSGPACK, MOST)
