"""Which names mean the served model."""

from __future__ import annotations

import json

import pytest
from tests.unit.server.asgi import call
from tests.unit.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.server.app import create_app

LONG = "accounts/fireworks/models/scripted"


def asked(name: str, dialect: str, *names: str) -> tuple[int, str | None]:
    """Status of a completion, and the model it names."""
    app = create_app(ScriptedBackend(), ServerConfig(model_names=names or ("scripted",), dialect=dialect))
    answer = call(app, {"model": name, "prompt": "a", "max_tokens": 1})
    shown = call(app, method="GET", path=f"/v1/models/{name}")
    assert shown.status == answer.status
    return answer.status, json.loads(answer.body).get("model")


@pytest.mark.parametrize("name", [LONG, "accounts/my-team/models/scripted"])
def test_fireworks_long_name_is_the_model_of_the_short_one(name: str) -> None:
    assert asked(name, "fireworks") == (200, "scripted")


def test_a_name_that_is_served_as_it_is_stays_as_it_is() -> None:
    assert asked(LONG, "fireworks", "scripted", LONG) == (200, LONG)


@pytest.mark.parametrize(
    "name",
    [
        *("accounts/fireworks/models/other", "accounts/a/b/models/scripted", "accounts//models/scripted", f"x/{LONG}"),
        *("accounts/fireworks/models/", "models/scripted", f"accounts/a/models/{LONG}"),
    ],
)
def test_other_names_stay_unknown(name: str) -> None:
    assert asked(name, "fireworks")[0] == 404


@pytest.mark.parametrize("dialect", PROVIDERS.keys() - {"fireworks"})
def test_the_long_name_is_fireworks_alone(dialect: str) -> None:
    assert asked(LONG, dialect)[0] == 404
