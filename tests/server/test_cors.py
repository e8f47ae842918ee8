"""What pages of other sites may do: nothing, unless their origin is allowed, and never with credentials."""

from __future__ import annotations

import pytest
from tests.server.asgi import JSON, Answer, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.server import app as server
from quintet.server.cors import is_origin

pytestmark = pytest.mark.fault("F11")

PAGE = "https://app.example.org"
ASK = {"prompt": "a"}


def ask(origins: tuple[str, ...], method: str = "POST", origin: str = PAGE, preflight: bool = False, key: str = "") -> Answer:
    wanted = [("access-control-request-method", "POST"), ("access-control-request-headers", "authorization")] if preflight else []
    headers = [*JSON, ("origin", origin), *wanted, *([("authorization", f"Bearer {key}")] if key else [])]
    app = create_app(ScriptedBackend(), ServerConfig(cors_origins=origins, api_keys=("sk",)))
    return call(app, ASK, method=method, headers=headers)


def cors(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers if name.startswith("access-control-") or name == "vary"}


def test_without_the_option_no_page_is_told_anything() -> None:
    for answer in (ask(()), ask((), key="sk"), ask((), "OPTIONS", preflight=True)):
        assert cors(answer) == {}
    assert ask((), "OPTIONS", preflight=True).status == 401


def test_a_page_of_an_allowed_site_may_ask_and_reads_answers_and_errors() -> None:
    for key, status in ("sk", 200), ("", 401):
        answer = ask((PAGE,), key=key)
        assert answer.status == status
        assert cors(answer) == {"vary": "origin", "access-control-allow-origin": PAGE, "access-control-expose-headers": "*"}


def test_its_browser_asks_first_and_needs_no_key_for_that() -> None:
    answer = ask((PAGE, "http://localhost:3000"), "OPTIONS", preflight=True)
    assert (answer.status, answer.body) == (200, b"")
    told = cors(answer)
    assert told["access-control-allow-origin"] == PAGE
    assert told["access-control-allow-methods"] == "GET, HEAD, POST, DELETE"
    assert told["access-control-allow-headers"] == "*, authorization"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://app.example.org", "https://app.example.org.evil.example", ""])
def test_a_page_of_another_site_gets_no_leave(origin: str) -> None:
    for answer in (ask((PAGE,), origin=origin), ask((PAGE,), "OPTIONS", origin=origin, preflight=True)):
        assert answer.status == 401
        assert cors(answer) == {"vary": "origin"}  # so that no cache hands it another's


@pytest.mark.parametrize("origins", [("*",), (PAGE,), ("*", PAGE)])
def test_credentials_are_never_allowed(origins: tuple[str, ...]) -> None:
    for preflight in (False, True):
        answer = ask(origins, "OPTIONS" if preflight else "POST", preflight=preflight, key="sk")
        assert answer.status == 200
        assert "access-control-allow-credentials" not in cors(answer)
        assert cors(answer)["access-control-allow-origin"] == ("*" if "*" in origins else PAGE)


def test_options_without_a_preflights_headers_is_a_method_like_any_other() -> None:
    assert ask(("*",), "OPTIONS", key="sk").status == 405


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""])
def test_a_form_of_any_page_starts_no_work(media: str) -> None:
    """What a browser sends without asking first; it always tells the origin."""
    backend = ScriptedBackend()
    for origins in ((), ("*",)):
        app = create_app(backend, ServerConfig(cors_origins=origins))
        assert call(app, ASK, headers=[("content-type", media), ("origin", "https://evil.example")]).status == 415
    assert backend.submitted == 0


IMAGE = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")]
"""What a browser adds to the GET of an image in a page of another site."""


@pytest.mark.parametrize("path", ["/props", "/slots", "/tokenizer_info", "/cerebras/v1/models/cat?format=openrouter"])
def test_a_get_of_any_page_loads_no_model(path: str) -> None:
    path, _, query = path.partition("?")

    def get(headers: list[tuple[str, str]], *origins: str, lazy: bool = True) -> tuple[int, str]:
        registry = Registry([Model("cat", ScriptedBackend, lazy=lazy)], name_models([("cat",)]))
        app = server.create_app(registry, ServerConfig(cors_origins=origins))
        return call(app, method="GET", path=path, query=query, headers=headers).status, registry.entries["cat"].status

    assert get(IMAGE) == get([("sec-fetch-site", "same-site")]) == get([("origin", PAGE)]) == (403, "unloaded")
    for own in [], [("sec-fetch-site", "none")], [("sec-fetch-site", "same-origin")]:
        assert get(own) == (200, "ready"), "no browser, an address that was typed, and the server's own page"
    assert get([("sec-fetch-site", "cross-site"), ("origin", PAGE)], PAGE) == (200, "ready")
    assert get(IMAGE, lazy=False) == (200, "ready"), "it costs next to nothing, and the page does not get to read it"


def test_what_is_an_origin() -> None:
    assert all(is_origin(text) for text in ("*", PAGE, "http://localhost:3000", "http://[::1]:80", "chrome-extension://abc"))
    assert not any(is_origin(text) for text in ("", "null", "app.example.org", f"{PAGE}/", "https://", "https://A.b", "https://a/b", "*.b"))
