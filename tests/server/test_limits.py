"""Keys with limits over the whole stack: what is let in, what is said of it, and to whom what is shown."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.asgi import JSON, Answer, acall, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.backends.base import State
from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.errors import TooManyRequests
from quintet.keys.key import Key, Scope
from quintet.keys.limits import Limiter
from quintet.keys.ring import LOOK_S
from quintet.keys.store import KeyStore
from quintet.quota import Limits
from quintet.server.asgi import ASGIApp
from quintet.server.auth import ANYBODY
from quintet.server.gate import Gate
from quintet.server.source import Source


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Tenant:
    """A key in a store, and the server that reads it."""

    store: KeyStore
    secret: str
    app: ASGIApp
    clock: Clock
    backend: ScriptedBackend

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [*JSON, ("authorization", f"Bearer {self.secret}")]

    def ask(self, path: str = "/v1/completions", **body: Any) -> Answer:
        return call(self.app, {"prompt": "abcd", "max_tokens": 3, **body}, path=path, headers=self.headers)

    def get(self, path: str) -> Answer:
        return call(self.app, method="GET", path=path, headers=self.headers)


@contextmanager
def tenant(folder: Path, key: Key | None = None, names: tuple[str, ...] = ("scripted",), **limits: Any) -> Iterator[Tenant]:
    store, clock = KeyStore(folder / "keys.db"), Clock()
    secret = store.add(replace(key or Key(b""), name="alice", limits=Limits(**limits)))
    backend = ScriptedBackend(length=None)
    app = create_app(backend, ServerConfig(keys=store.path), names, source=Source(clock=clock))
    yield Tenant(store, secret, app, clock, backend)


def limits_of(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers if name.startswith(("x-ratelimit", "x-tokenlimit"))}


def base(provider: str) -> str:
    return f"{PROVIDERS[provider].bases[0]}/completions"


# Exactly so much


@pytest.mark.fault("F08", "B18")
@pytest.mark.parametrize("limit", [{"requests_per_minute": 10}, {"requests_per_day": 10}, {"tokens_per_minute": 70}, {"budget": 70}])
def test_of_200_requests_at_once_with_credit_for_10_as_many_are_answered(tmp_path: Path, limit: dict[str, Any]) -> None:
    """Each needs 4 tokens of prompt and 3 at most of completion. Refused ones never reach the engine."""
    with tenant(tmp_path, **limit) as alice:

        async def flood() -> list[Answer]:
            body = {"prompt": "abcd", "max_tokens": 3, "ignore_eos": True}
            return await asyncio.gather(*(acall(alice.app, body, headers=alice.headers) for _ in range(200)))

        answers = asyncio.run(flood())
        assert Counter(answer.status for answer in answers) == {200: 10, 429: 190}
        assert alice.backend.submitted == 10


def test_tokens_that_were_held_and_not_computed_come_back(tmp_path: Path) -> None:
    with tenant(tmp_path, tokens_per_minute=60) as alice:
        first = alice.ask(max_tokens=50, stop=[" cat"])
        assert first.json()["usage"]["total_tokens"] == 6
        assert limits_of(first)["x-ratelimit-remaining-tokens"] == "6", "told while the completion runs: all that it may come to is held"
        assert limits_of(alice.ask(max_tokens=1))["x-ratelimit-remaining-tokens"] == "49"


@pytest.mark.parametrize("body", [{}, {"stream": True}])
def test_who_has_the_last_byte_has_the_place_and_the_tokens_that_were_not_used(tmp_path: Path, body: dict[str, Any]) -> None:
    """The next request of a client that sends one after the other comes while the first is still put away."""
    with tenant(tmp_path, tokens_per_minute=60, parallel=1) as alice:

        async def one_after_the_other() -> list[int]:
            first, asked = Answer(), {"prompt": "abcd", "max_tokens": 50, "stop": [" cat"], **body}
            running = asyncio.create_task(acall(alice.app, asked, headers=alice.headers, into=first))
            while not first.complete:
                await asyncio.sleep(0)
            second = await acall(alice.app, asked, headers=alice.headers)
            return [(await running).status, second.status]

        assert asyncio.run(one_after_the_other()) == [200, 200]
        assert limits_of(alice.ask(max_tokens=1))["x-ratelimit-remaining-tokens"] == str(60 - 2 * 6 - 5), "what was used counts once"


@pytest.mark.parametrize("body", [{"n": "x"}, {"max_tokens": 10_000}, {"model": "none"}, {"stream": True}])
def test_whatever_becomes_of_a_request_nothing_stays_held(tmp_path: Path, body: dict[str, Any]) -> None:
    with tenant(tmp_path, tokens_per_minute=100, parallel=1) as alice:
        alice.ask(**body)
        used = 7 if body.get("stream") else 0
        assert limits_of(alice.ask())["x-ratelimit-remaining-tokens"] == str(93 - used)


def test_who_is_refused_for_tokens_or_while_the_engine_takes_nothing_has_used_no_request(tmp_path: Path) -> None:
    with tenant(tmp_path, requests_per_day=10, tokens_per_minute=20) as alice:

        def refused(**body: Any) -> tuple[int, str]:
            answer = alice.ask(**body)
            return answer.status, limits_of(answer)["x-ratelimit-remaining-requests"]

        assert [refused(max_tokens=50) for _ in range(3)] == [(429, "10")] * 3
        for state, status in ((State.LOADING, 503), (State.DRAINING, 503), (State.DEAD, 500)):
            alice.backend.state = state
            assert [refused() for _ in range(3)] == [(status, "10")] * 3
        alice.backend.state = State.READY
        assert refused(n="x") == (400, "9"), "a client that sends nothing but these costs work too"
        assert refused() == (200, "8")


def test_a_refusal_for_an_idempotency_key_says_where_the_limits_stand(tmp_path: Path) -> None:
    with tenant(tmp_path, requests_per_day=10) as alice:
        once = [*alice.headers, ("idempotency-key", "a")]
        assert call(alice.app, {"prompt": "a", "max_tokens": 1}, headers=once).status == 200
        other = call(alice.app, {"prompt": "b", "max_tokens": 1}, headers=once)
        none = call(alice.app, {"prompt": "b", "max_tokens": 1}, headers=[*alice.headers, ("idempotency-key", "")])
        assert [one.status for one in (other, none)] == [422, 400]
        assert [limits_of(one)["x-ratelimit-remaining-requests"] for one in (other, none)] == ["9", "9"]


def test_a_request_whose_work_began_is_used_though_the_engine_fails(tmp_path: Path) -> None:
    with tenant(tmp_path, requests_per_day=10) as alice:
        alice.backend.break_after = 1
        assert alice.ask().status == 500
        alice.backend.break_after = None
        assert limits_of(alice.ask())["x-ratelimit-remaining-requests"] == "8"


def test_fireworks_tells_who_is_refused_for_a_limit_and_nobody_else(tmp_path: Path) -> None:
    with tenant(tmp_path, requests_per_minute=1) as alice:
        answers = [alice.ask(base("fireworks")) for _ in range(2)]
        assert [(one.status, one.header("x-ratelimit-over-limit")) for one in answers] == [(200, None), (429, "yes")]


def test_what_is_computed_in_the_background_needs_no_place_and_takes_none() -> None:
    """Docs, batches: its lines wait for the key's other limits alone."""
    door = Gate(Limiter(1, lambda: 0.0, lambda: 0.0, None), ServerConfig())
    line: Any = SimpleNamespace(http=SimpleNamespace(), caller=replace(ANYBODY, background=True))
    asked: Any = SimpleNamespace(http=SimpleNamespace(), caller=ANYBODY)
    with door.admit(line), door.admit(asked), door.admit(line), pytest.raises(TooManyRequests), door.admit(asked):
        pass


def test_a_client_that_leaves_is_charged_what_was_computed_and_no_more(tmp_path: Path) -> None:
    with tenant(tmp_path, tokens_per_minute=200, parallel=1) as alice:
        alice.backend.pause = 0.02

        async def leave() -> Answer:
            await acall(alice.app, {"prompt": "abcd", "max_tokens": 50, "stream": True}, headers=alice.headers, leave_at=3)
            alice.backend.pause = 0.0
            return await acall(alice.app, {"prompt": "abcd", "max_tokens": 3}, headers=alice.headers)

        left = int(limits_of(asyncio.run(leave()))["x-ratelimit-remaining-tokens"])
        assert 200 - 54 - 7 < left < 200 - 4 - 7


@pytest.mark.parametrize(("provider", "left"), [("fireworks", 15), ("openai", 19)])
def test_samples_count_as_requests_where_the_provider_says_so(tmp_path: Path, provider: str, left: int) -> None:
    with tenant(tmp_path, requests_per_minute=20) as alice:
        assert limits_of(alice.ask(base(provider), n=5))["x-ratelimit-remaining-requests"] == str(left)
    (folder := tmp_path / "bob").mkdir()
    with tenant(folder, requests_per_minute=20) as bob:
        several = limits_of(bob.ask(base(provider), n=1, prompt=["a", "b", "c", "d", "e"]))
        assert several["x-ratelimit-remaining-requests"] == str(left), "of each prompt"


@pytest.mark.fault("F02")
def test_what_is_changed_in_the_store_counts_within_a_second_and_a_revoked_keys_answer_is_finished(tmp_path: Path) -> None:
    with tenant(tmp_path) as alice:
        assert alice.ask().status == 200
        alice.store.change("alice", lambda key: replace(key, limits=Limits(requests_per_minute=1)))
        alice.clock.now += LOOK_S
        assert [alice.ask().status for _ in range(2)] == [200, 429]
        alice.clock.now += 60
        alice.backend.pause = 0.01

        async def revoked_meanwhile() -> Answer:
            running = asyncio.create_task(acall(alice.app, {"prompt": "a", "max_tokens": 8}, headers=alice.headers))
            await asyncio.sleep(0.02)
            alice.store.change("alice", lambda key: replace(key, revoked=1.0))
            alice.clock.now += LOOK_S
            assert (await acall(alice.app, {"prompt": "a"}, headers=alice.headers)).status == 401
            return await running

        assert asyncio.run(revoked_meanwhile()).status == 200


@pytest.mark.fault("E11")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_request_with_an_idempotency_key_is_told_of_its_limits_as_one_without(tmp_path: Path, provider: str, stream: bool) -> None:
    """Answered twice, over the limit, and refused for what it asks, each with all headers that tell of limits, and when to come again."""

    def told(folder: str, key: bool) -> list[tuple[int, dict[str, str]]]:
        (tmp_path / folder).mkdir()
        with tenant(tmp_path / folder, requests_per_minute=3, tokens_per_minute=100) as alice:

            def ask(number: int, **body: Any) -> Answer:
                headers = [*alice.headers, *([("idempotency-key", f"order-{number}")] if key else [])]
                asked = {"model": "scripted", "prompt": "abcd", "max_tokens": 3, "stream": stream, **body}
                return call(alice.app, asked, path=base(provider), headers=headers)

            answers = [ask(0), ask(1, temperature="warm"), ask(2), ask(3)]
            return [(one.status, {**limits_of(one), "retry-after": one.header("retry-after") or ""}) for one in answers]

    plain = told("without", False)
    assert [status for status, _ in plain] == [200, 400, 200, 429]
    assert told("with", True) == plain


@pytest.mark.fault("E11")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_answer_that_is_given_again_tells_of_limits_as_they_stand_then(tmp_path: Path, provider: str) -> None:
    with tenant(tmp_path, tokens_per_minute=120) as alice:

        def ask(order: str) -> Answer:
            asked = {"model": "scripted", "prompt": "abcd", "max_tokens": 3}
            return call(alice.app, asked, path=base(provider), headers=[*alice.headers, ("idempotency-key", order)])

        first = ask("order-0")
        assert [ask(f"order-{number}").status for number in range(1, 18)] == [200] * 16 + [429]
        again = ask("order-0")
        assert (again.body, again.header("idempotent-replayed")) == (first.body, "true")
        assert len(dict(again.headers)) == len(again.headers), "each header once"
        assert limits_of(first).keys() == limits_of(again).keys()
        told = [{name: int(value) for name, value in limits_of(one).items() if "remaining" in name} for one in (first, again)]
        assert told[0] != told[1] or provider == "novita", "what the others used shows; Novita tells nothing"
        assert all(told[0][name] >= told[1][name] for name in told[0])
        alice.store.change("alice", lambda key: replace(key, limits=Limits()))
        alice.clock.now += LOOK_S
        assert limits_of(ask("order-0")) == {}


# Models


@pytest.mark.fault("F02")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_model_that_a_key_may_not_use_is_not_there_for_it(tmp_path: Path, provider: str) -> None:
    with tenant(tmp_path, Key(b"", models=("own*",)), ("shared", "own-one", "secret")) as alice:
        root = PROVIDERS[provider].bases[0]
        refused, unknown = alice.ask(base(provider), model="secret"), alice.ask(base(provider), model="nothing")
        assert (refused.status, unknown.status) == (403 if provider == "novita" else 404, 404)
        assert all(name not in unknown.body.decode() for name in ("secret", "shared"))
        assert "shared" not in refused.body.decode()
        assert alice.get(f"{root}/models/secret").status == refused.status
        listed = alice.get(f"{root}/models").body.decode()
        assert "own-one" in listed and "secret" not in listed and "shared" not in listed
        named = alice.ask(base(provider)).json()
        assert named["model"] == "own-one", "its first model is the one for requests that name none"


@pytest.mark.parametrize(("asked", "said"), [({"model": "llama3.1-8b"}, "The model 'llama3.1-8b' does not exist"), ({}, "names no model")])
def test_a_key_for_models_that_are_not_there_is_told_of_the_name_it_asked_for(tmp_path: Path, asked: dict[str, str], said: str) -> None:
    """Also of one of those on Cerebras' page, which stand for whatever the key may use."""
    with tenant(tmp_path, Key(b"", models=("gone*",)), ("shared",)) as alice:
        answer = alice.ask(base("cerebras"), **asked)
        assert (answer.status, answer.json()["code"]) == (404, "model_not_found")
        assert said in answer.json()["message"]


def test_a_key_that_may_use_a_model_may_call_it_by_its_other_names(tmp_path: Path) -> None:
    with tenant(tmp_path, Key(b"", models=("cat",)), ("cat", "also")) as alice:
        assert [alice.ask(base("openai"), model=name).json()["model"] for name in ("cat", "also")] == ["cat", "also"]
        assert [one["id"] for one in alice.get("/v1/models").json()["data"]] == ["cat", "also"]


def test_a_moderation_model_that_a_key_may_not_use_is_not_there_for_it(tmp_path: Path) -> None:
    with tenant(tmp_path, Key(b"", models=("own",)), ("shared", "own")) as alice:
        told = [alice.ask(base("together"), model="own", safety_model=name) for name in ("shared", "nothing", "own")]
        assert [answer.status for answer in told] == [404, 404, 404]
        assert [answer.json()["error"]["param"] for answer in told] == ["safety_model"] * 3
        assert told[0].body.replace(b"shared", b"nothing") == told[1].body


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_a_models_tokenizer_is_not_there_either(tmp_path: Path, path: str) -> None:
    with tenant(tmp_path, Key(b"", models=("own",)), ("shared", "own")) as alice:
        body = {"model": "shared", "prompt": "a", "tokens": [1]}
        assert call(alice.app, body, path=path, headers=alice.headers).status == 404
        assert call(alice.app, {**body, "model": "own"}, path=path, headers=alice.headers).status == 200


# Scopes


@pytest.mark.fault("F05")
@pytest.mark.parametrize(
    ("scopes", "statuses"), [((), (403, 403, 403)), ((Scope.METRICS,), (200, 200, 403)), ((Scope.ADMIN,), (200, 200, 200))]
)
def test_everybodys_counts_and_models_are_shown_to_those_with_the_scope(
    tmp_path: Path, scopes: tuple[Scope, ...], statuses: tuple[int, int, int]
) -> None:
    with tenant(tmp_path, Key(b"", scopes=frozenset(scopes))) as alice:
        load = call(alice.app, {"model": "scripted"}, path="/v1/models/load", headers=alice.headers)
        assert (alice.get("/metrics").status, alice.get("/health/models").status, load.status) == statuses
        assert alice.get("/version").status == 200


@pytest.mark.parametrize(
    ("config", "status"), [({}, 200), ({"api_keys": ("sk",)}, 403), ({"api_keys": ("other",), "admin_key": "sk"}, 200)]
)
def test_a_server_without_keys_shows_its_metrics_and_one_with_keys_to_the_admin(config: dict[str, Any], status: int) -> None:
    app = create_app(ScriptedBackend(), ServerConfig(**config))
    for path in ("/metrics", "/health/models"):
        assert call(app, method="GET", path=path, headers=[("authorization", "Bearer sk")]).status == status


def test_a_store_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    with tenant(tmp_path) as alice:
        alice.store.change("alice", lambda key: replace(key, revoked=1.0))
        alice.clock.now += LOOK_S
        assert call(alice.app, {"prompt": "a"}).status == 401


# Where they come from


@pytest.mark.fault("F07")
def test_behind_a_trusted_proxy_a_guesser_locks_out_its_own_address_and_no_other() -> None:
    app = create_app(ScriptedBackend(), ServerConfig(api_keys=("sk",), trusted_proxy=("127.0.0.0/8",)))

    def ask(key: str, address: str) -> int:
        return call(app, {"prompt": "a"}, headers=[*JSON, ("authorization", f"Bearer {key}"), ("x-forwarded-for", address)]).status

    assert [ask(f"guess-{number}", "192.0.2.1") for number in range(22)][-1] == 429
    assert [ask("sk", "192.0.2.1"), ask("sk", "192.0.2.2")] == [429, 200]


@pytest.mark.parametrize(("stream", "keep_alive"), [(False, 15.0), (False, 0.005), (True, 15.0)])
def test_whoever_has_read_the_end_of_an_answer_has_its_place_for_the_next_request(stream: bool, keep_alive: float) -> None:
    """Though what is left to do for the first may take longer than the way there and back."""

    async def go() -> list[Answer]:
        app, read = create_app(ScriptedBackend(pause=0.01), ServerConfig(max_per_key=1), keep_alive=keep_alive), asyncio.Event()
        first = asyncio.ensure_future(acall(app, {"prompt": "a", "max_tokens": 4, "stream": stream}, gone=read))
        await read.wait()
        return [await acall(app, {"prompt": "b", "max_tokens": 1}), await first]

    assert [answer.status for answer in asyncio.run(go())] == [200, 200]
