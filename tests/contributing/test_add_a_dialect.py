"""docs/contributing/add-a-dialect.md, followed: one module and one entry in the catalog, and the whole server speaks it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contributing.parrot import KNOWN, PROVIDER
from tests.dialects.test_hostile_parse import bodies
from tests.server.asgi import SOURCE, Answer, acall, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.server.toy import MODEL, toy_app
from tests.test_architecture import foreign_faults, layer_faults, purity_faults

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.fields import table
from quintet.dialects.openapi import document
from quintet.errors import BadRequest
from quintet.server.routing import AUTO, HEADER

ASKED = {"bird": MODEL, "say": "Polly", "words": 8, "mood": 1, "seed": 7}


@pytest.fixture(autouse=True)
def in_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a real one is, by its line in ``catalog.py``."""
    monkeypatch.setitem(PROVIDERS, PROVIDER.name, PROVIDER)


def ask(body: dict[str, Any], dialect: str = "parrot", **options: Any) -> Answer:
    async def on_toy() -> Answer:
        async with toy_app(dialect) as app:
            return await acall(app, body, **options)

    return asyncio.run(on_toy())


def test_it_answers_in_its_own_words_and_its_stream_adds_up_to_the_body() -> None:
    answer = ask(ASKED)
    assert (answer.status, answer.header(HEADER)) == (200, "parrot")
    body = answer.json()
    assert body["bird"] == MODEL
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    (said,) = body["said"]
    assert (said["beak"], said["became"], len(said["text"])) == (0, "tired", 8)
    frames = ask({**ASKED, "stream": True}).body.decode().removesuffix("\n\n").split("\n\n")
    assert frames.pop() == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert "".join(piece["text"] for chunk in chunks for piece in chunk["said"]) == said["text"]
    assert (chunks[-1]["said"][0]["became"], chunks[-1]["usage"]) == ("tired", body["usage"])


def test_it_is_found_by_prefix_by_header_and_by_the_user_agent_of_its_sdk() -> None:
    asked = {**ASKED, "bird": "scripted"}
    served = create_app(ScriptedBackend(), ServerConfig(dialect=AUTO), source=SOURCE)
    for path, headers in (
        ("/parrot/v1/completions", []),
        ("/v1/completions", [(HEADER, "parrot")]),
        ("/v1/completions", [("user-agent", "Polly/1.0")]),
    ):
        answer = call(served, asked, path=path, headers=[("content-type", "application/json"), *headers])
        assert (answer.status, answer.header(HEADER)) == (200, "parrot"), path
    assert call(served, method="GET", path="/parrot/v1/models").json() == {"birds": ["scripted"]}


def test_its_errors_name_the_field_the_rule_and_the_value_and_unknown_fields_are_a_warning() -> None:
    squawk = ask({**ASKED, "words": 65})
    assert (squawk.status, squawk.json()["at"]) == (400, "words")
    assert "between 0 and 64" in squawk.json()["squawk"]
    assert ask({"bird": MODEL}).json()["at"] == "say"
    assert "cracker" in str(ask({**ASKED, "cracker": 1}).header("warning"))


def test_what_has_no_effect_beside_another_field_is_a_warning_and_what_asks_for_nothing_is_none() -> None:
    assert "top_k" in str(ask({**ASKED, "mirostat": 2, "top_k": 3}).header("warning"))
    assert ask({**ASKED, "skip_special_tokens": True, "grammar_lazy": False}).header("warning") is None


def test_it_has_the_extensions_that_every_dialect_has() -> None:
    assert {"top_k", "min_p", "dry_multiplier"} <= {field.name for field in KNOWN}
    assert ask({**ASKED, "top_k": 1}).json()["said"] == ask({**ASKED, "mood": 0}).json()["said"]


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_body_is_understood_or_refused(data: st.DataObject) -> None:
    try:
        PROVIDER.dialect.parse(data.draw(bodies(tuple(KNOWN))), 7)
    except BadRequest as error:
        assert json.loads(PROVIDER.dialect.error(error).body)["squawk"].isascii()


def test_its_table_and_its_openapi_document_are_made_of_its_fields() -> None:
    assert "| `words` | `integer` | 0 to 64 | `8` | done |" in table(KNOWN)
    made = msgspec.json.decode(msgspec.json.encode(document(PROVIDER)))
    assert made["servers"][0]["url"] == "/parrot/v1"
    body = made["paths"]["/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"say", "words", "mood"} <= body["properties"].keys()
    assert {"Said", "Completion", "Squawk"} <= made["components"]["schemas"].keys()


def test_it_keeps_the_rules_of_its_room() -> None:
    place, source = "dialects/parrot/dialect.py", (Path(__file__).parent / "parrot.py").read_text(encoding="utf-8")
    assert layer_faults(place, source) == foreign_faults(place, source) == purity_faults(place, source) == []
