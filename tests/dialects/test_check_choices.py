"""The rules over ``n``, ``best_of``, ``stream`` and the number of prompts that dialects share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.requests import MINIMAL

from quintet.dialects.base import check_choices
from quintet.errors import BadRequest
from quintet.request import CompletionRequest


def request(prompts: int = 1, n: int = 1, best_of: int = 1, stream: bool = False) -> CompletionRequest:
    return replace(MINIMAL, prompts=("a",) * prompts, n=n, stream=stream, best_of=best_of)


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request(prompts=128),
        request(n=128, best_of=128),
        request(prompts=64, n=2, best_of=2),
        request(n=2, best_of=5),
        request(n=2, best_of=2, stream=True),
    ],
)
def test_what_is_allowed(asked: CompletionRequest) -> None:
    check_choices(asked, 128)


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        (request(n=2, best_of=1), "best_of", "must be at least n, got best_of 1 with n 2"),
        (request(prompts=65, n=2, best_of=2), "n", r"at most 128 choices \(prompts times n\), got 65 times 2"),
        (request(prompts=65, n=1, best_of=2), "best_of", r"at most 128 choices \(prompts times best_of\), got 65 times 2"),
        (request(n=2, best_of=3, stream=True), "best_of", "must be n, or left out, with stream: true"),
    ],
)
def test_what_is_refused(asked: CompletionRequest, param: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        check_choices(asked, 128)
    assert caught.value.param == param


def test_the_number_of_choices_has_the_name_that_the_client_gave_it() -> None:
    with pytest.raises(BadRequest, match=r"at most 128 choices \(prompts times n_cmpl\)") as caught:
        check_choices(replace(request(prompts=65, n=2, best_of=2), spelled=(("n", "n_cmpl"),)), 128)
    assert caught.value.param == "n_cmpl"
