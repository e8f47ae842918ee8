"""Which names mean the served model."""

from __future__ import annotations

import json

import pytest
from tests.server.asgi import SOURCE, Answer, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.backends.base import State
from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS

LONG = "accounts/fireworks/models/scripted"


def asked(name: str, dialect: str, *names: str) -> tuple[int, str | None]:
    """Status of a completion, and the model it names."""
    app = create_app(ScriptedBackend(), ServerConfig(dialect=dialect), names or ("scripted",))
    answer = call(app, {"model": name, "prompt": "a", "max_tokens": 1})
    shown = call(app, method="GET", path=f"/v1/models/{name}")
    assert shown.status == answer.status
    return answer.status, json.loads(answer.body).get("model")


@pytest.mark.parametrize("name", [LONG, "accounts/my-team/models/scripted"])
def test_fireworks_long_name_is_the_model_of_the_short_one(name: str) -> None:
    assert asked(name, "fireworks") == (200, name)


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


@pytest.mark.parametrize("dialect", sorted(PROVIDERS.keys() - {"fireworks"}))
def test_the_long_name_is_fireworks_alone(dialect: str) -> None:
    assert asked(LONG, dialect)[0] == 404


def listed(dialect: str, query: str, state: State = State.READY) -> Answer:
    app = create_app(ScriptedBackend(state=state), ServerConfig(dialect=dialect), ("a/b", "c"), source=SOURCE)
    return call(app, method="GET", path="/v1/models", query=query)


def test_cerebras_list_has_the_forms_of_its_sdk() -> None:
    """Read by the SDK's own types, which take each form for itself alone."""
    types = pytest.importorskip("cerebras.cloud.sdk.types.model_list_response")
    kinds = types.OpenRouterModelsResponse, types.HuggingFaceModelsResponse, types.ModelMetadataList
    for form, kind in zip(("openrouter", "huggingface", "default"), kinds, strict=True):
        answer = listed("cerebras", f"format={form}")
        read = kind.model_validate(answer.json(), strict=True)
        assert [one.id for one in read.data] == ["a/b", "c"]
    assert [one["context_length"] for one in listed("cerebras", "format=openrouter").json()["data"]] == [64, 64]


def test_one_model_has_them_too() -> None:
    app = create_app(ScriptedBackend(), ServerConfig(dialect="cerebras"))
    shown = call(app, method="GET", path="/v1/models/scripted", query="format=huggingface").json()
    assert (shown["id"], shown["pricing"]) == ("scripted", {"input": 0.0, "output": 0.0})


def test_another_form_is_refused_by_cerebras_and_means_nothing_to_the_others() -> None:
    refused = listed("cerebras", "format=xml")
    assert (refused.status, refused.json()["param"]) == (400, "format")
    for dialect in PROVIDERS.keys() - {"cerebras"}:
        assert listed(dialect, "format=xml").body == listed(dialect, "").body


def test_while_the_model_loads_there_is_no_context_to_tell() -> None:
    assert listed("cerebras", "format=openrouter", state=State.LOADING).status == 503
    assert listed("cerebras", "", state=State.LOADING).status == 200


def of_project(path: str, dialect: str = "together") -> Answer:
    app = create_app(ScriptedBackend(), ServerConfig(), ("a/b", "c"), source=SOURCE)
    return call(app, method="GET", path=f"/{dialect}{path}")


def test_togethers_sdk_lists_the_models_of_its_project_whichever_it_is() -> None:
    """SDK 3.x: ``Together(base_url=".../together", project_id="p").models.list()`` and ``.retrieve(id)``."""
    entry = {"organizationId": "quintet", "visibility": "VISIBILITY_INTERNAL"}
    entry |= {"projectId": "p", "weights": {"type": "WEIGHTS_TYPE_DEFAULT", "contextLength": "64"}}  # type: ignore[dict-item]
    for base in ("", "/v1"):
        listed = of_project(f"{base}/v2/projects/p/models")
        assert (listed.status, listed.json()) == (200, {"data": [{"id": "a/b", "name": "a/b", **entry}, {"id": "c", "name": "c", **entry}]})
        assert of_project(f"{base}/v2/projects/p/models/a/b").json() == listed.json()["data"][0]
    assert of_project("/v2/projects/p/models/other").status == 404


@pytest.mark.parametrize("path", ["/v2/projects/p", "/v2/projects//models", "/v2/projects/p/models/", "/v2/models", "/v2/projects/p/other"])
def test_there_is_nothing_else_of_a_project(path: str) -> None:
    assert of_project(path).status == 404


@pytest.mark.parametrize("dialect", sorted(PROVIDERS.keys() - {"together"}))
def test_projects_are_togethers_alone(dialect: str) -> None:
    assert of_project("/v2/projects/p/models", dialect).status == 404
