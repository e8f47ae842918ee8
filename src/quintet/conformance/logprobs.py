"""Judges of log-probabilities: parallel lists, or as the page has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintet.conformance.client import LONG, Answer, Client, need, shown
from quintet.conformance.item import Check, Untold
from quintet.errors import counted


def lists(answer: Answer, place: str = "choices.0.logprobs") -> Mapping[str, list[Any]]:
    """The parallel lists that an answer has there, all of one length; what is no list is no part of them."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset", "token_ids")
    found = {name: answer.member(f"{place}.{name}", "array") for name in names if answer.has_list(f"{place}.{name}")}
    need(
        "tokens" in found and "token_logprobs" in found,
        f"{place} should have lists of tokens and token_logprobs, and its lists are {', '.join(found) or 'none'}",
    )
    sizes = {name: len(one) for name, one in found.items()}
    need(len(set(sizes.values())) == 1, f"the lists have different lengths: {shown(sizes)}")
    return found


def with_alternatives(answer: Answer) -> Mapping[str, list[Any]]:
    """The same, with ``top_logprobs`` among them."""
    found = lists(answer)
    need("top_logprobs" in found, f"there are no top_logprobs, and the lists are {', '.join(found)}")
    return found


def ranked(top: object) -> list[float]:
    """The log-probabilities of an entry of ``top_logprobs``, the largest first."""
    values = list(top.values()) if isinstance(top, dict) else []
    need(bool(values) and all(isinstance(one, int | float) for one in values), f"an entry of top_logprobs is {shown(top)}")
    return sorted(values, reverse=True)


def logprobs(most: int, zero_has_top: bool = True) -> Check:
    """As many alternatives as were asked for, the sampled token among them, in falling order of nothing but probability.

    Args:
        most: the page's largest number.
        zero_has_top: whether ``top_logprobs`` may be there with 0.
    """

    def check(client: Client) -> None:
        many = min(most, 5)
        answer = client.ask(max_tokens=LONG, logprobs=many, temperature=1)
        found = with_alternatives(answer)
        if not found["tokens"] and not answer.text:
            raise Untold("the model ended before its first token")
        for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
            need(isinstance(value, int | float) and value <= 0, f"the log-probability of {shown(token)} is {shown(value)}")
            need(isinstance(top, dict) and 1 <= len(top) <= many + 1, f"with logprobs {many} the alternatives are {shown(top)}")
            need(token in top, f"the sampled token {shown(token)} is not among the alternatives {shown(top)}")
        need(any(len(top) >= many for top in found["top_logprobs"]), f"never {counted(many, 'alternative')}")
        none = client.greedy(logprobs=0)
        alone = lists(none).get("top_logprobs")
        need(zero_has_top or alone is None, "with logprobs 0 there are top_logprobs")
        need(all(one is None or len(one) <= 1 for one in alone or ()), f"with logprobs 0 there are alternatives: {shown(alone)}")
        client.refused(logprobs=most + 1)
        need(not client.greedy().has("choices.0.logprobs.tokens"), "there are log-probabilities without being asked for")

    return check


def null_or_lists(client: Client) -> None:
    """Null where none were asked for, and an object of lists where some were."""
    client.greedy().member("choices.0.logprobs", "null")
    lists(client.greedy(logprobs=2))


def off_or_lists(client: Client) -> None:
    """Null or nothing where none were asked for, and an object of lists where some were."""
    need(not client.greedy().has("choices.0.logprobs"), "there are log-probabilities without being asked for")
    lists(client.greedy(logprobs=2))


def tokens_join(client: Client) -> None:
    """Strings, which are the text when put together."""
    answer = client.greedy(logprobs=2)
    found = lists(answer)["tokens"]
    need(all(isinstance(one, str) for one in found), f"the tokens are {shown(found)}")
    need("".join(found) == answer.text, f"the tokens {shown(found)} do not make up the text {shown(answer.text)}")


def token_logprobs(client: Client) -> None:
    """Numbers, none above 0; greedy, each is the largest of its alternatives."""
    found = lists(client.greedy(logprobs=2))
    values = found["token_logprobs"]
    need(bool(values) and all(isinstance(one, int | float) and one <= 0 for one in values), f"they are {shown(values)}")
    for value, top in zip(values, found.get("top_logprobs", []), strict=False):
        need(value >= ranked(top)[0] - 1e-6, f"greedy, {value} is less than another of {shown(top)}")


def top_logprobs(client: Client) -> None:
    """A list of objects, of text and log-probability."""
    for top in client.greedy(logprobs=2).member("choices.0.logprobs.top_logprobs", "array"):
        need(isinstance(top, dict) and len(top) >= 2, f"an entry is {shown(top)}")
        need(all(isinstance(one, int | float) for one in top.values()), f"an entry is {shown(top)}")


def text_offset(base: int | None) -> Check:
    """Where each token begins: each is its predecessor's length further on. ``base``: the first one; ``None`` = it is not said."""

    def check(client: Client) -> None:
        answer = client.greedy(logprobs=1)
        offsets = answer.member("choices.0.logprobs.text_offset", "array")
        need(bool(offsets) and all(isinstance(one, int) for one in offsets), f"the offsets are {shown(offsets)}")
        texts = lists(answer)["tokens"]
        expected = [offsets[0]]
        for one in texts[:-1]:
            expected.append(expected[-1] + len(one))
        need(offsets == expected, f"the offsets are {shown(offsets)} for {shown(texts)}")
        need(base is None or offsets[0] == base, f"the first token is at {offsets[0]}")

    return check
