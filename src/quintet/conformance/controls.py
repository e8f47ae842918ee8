"""Judges of fields that decide what is generated: each finds out a field that is taken and ignored. Pure.

A judge is made for a field with the words of its page and is a ``Check``. The likeliest continuation, asked for with the page's own
``greedy`` fields, is the yardstick: a field must change it, or bring it about, as the page says.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any

from quintet.conformance.client import LONG, PROMPT, SHORT, Answer, Client, need, shown
from quintet.conformance.item import Check, Differs, Untold
from quintet.errors import counted

HOT: Mapping[str, Any] = {"temperature": 1}


def every(*checks: Check) -> Check:
    """All of them; what cannot be told of one does not keep another from finding a difference."""

    def check(client: Client) -> None:
        untold: Untold | None = None
        for one in checks:
            try:
                one(client)
            except Untold as error:
                untold = untold or error
        if untold is not None:
            raise untold

    return check


def refuses(*bodies: Mapping[str, Any]) -> Check:
    """Each of these, beside a request that is all right, is refused."""

    def check(client: Client) -> None:
        for fields in bodies:
            client.refused(**fields)

    return check


def takes(*bodies: Mapping[str, Any]) -> Check:
    """Each of these is taken."""

    def check(client: Client) -> None:
        for fields in bodies:
            client.greedy(**fields)

    return check


def changes_nothing(**fields: Any) -> Check:
    """The field is taken, and the likeliest text is what it is without it."""

    def check(client: Client) -> None:
        need(client.greedy(**fields).text == client.greedy().text, "the text is another with it")

    return check


def changed_by(field: str, value: Any) -> Check:
    """The likeliest text is another one with it."""

    def check(client: Client) -> None:
        need(client.greedy(**{field: value}).text != client.greedy().text, f"the text is the same with {field} {shown(value)}")

    return check


def default(field: str, value: Any, **others: Any) -> Check:
    """Left out, or null, the field is as if it had this value."""

    def check(client: Client) -> None:
        texts = {json.dumps(client.greedy(**others, **given).texts) for given in ({}, {field: value})}
        need(len(texts) == 1, f"without it the answer is not that of {value}")

    return check


def max_tokens(default_is: int | None) -> Check:
    """No more tokens are generated than were asked for."""

    def check(client: Client) -> None:
        for most in (1, 5):
            answer = client.greedy(max_tokens=most)
            count = answer.completion_tokens
            need(count == most or (count < most and answer.finish != "length"), f"{counted(count, 'token')} with max_tokens {most}")
        if default_is is not None:
            answer = client.taken(client.reply({"model": client.model, "prompt": PROMPT, **client.page.greedy}))
            count = answer.completion_tokens
            need(count <= default_is, f"{counted(count, 'token')} without max_tokens")
            need(count == default_is or answer.finish != "length", f"the default seems to be {count}")

    return check


def temperature(high: float) -> Check:
    """0 is deterministic, ``high`` is not."""

    def check(client: Client) -> None:
        cold = [client.ask(take, max_tokens=LONG, temperature=0).text for take in (0, 1)]
        need(cold[0] == cold[1], "two answers at temperature 0 differ")
        hot = {client.ask(take, max_tokens=LONG, temperature=high).text for take in range(3)}
        need(len(hot) > 1, f"three answers at temperature {high} are the same")

    return check


def keeps_one(**fields: Any) -> Check:
    """With these fields and a temperature of 1 only one token is left at each step, so that two draws are the likeliest text."""

    def check(client: Client) -> None:
        wanted = client.greedy(max_tokens=LONG).text
        for take in (0, 1):
            text = client.ask(take, max_tokens=LONG, **{**HOT, **fields}).text
            need(text == wanted, f"{shown(fields)} does not keep to the likeliest token: {shown(text)} where {shown(wanted)} was due")

    return check


def same_each_time(**fields: Any) -> Check:
    """With these fields and a temperature of 1 one token is left at each step, though not the likeliest."""

    def check(client: Client) -> None:
        need(len({client.ask(take, max_tokens=LONG, **HOT).text for take in range(3)}) > 1, "three draws are the same without it")
        found = {client.ask(take, max_tokens=LONG, **{**HOT, **fields}).text for take in range(2)}
        need(len(found) == 1, f"two draws with {shown(fields)} differ")

    return check


def seed(client: Client) -> None:
    """The same seed gives the same text, and another one another."""
    first, again = (client.ask(take, max_tokens=LONG, seed=7, **HOT).text for take in (0, 1))
    need(first == again, "two answers with seed 7 differ")
    others = {client.ask(max_tokens=LONG, seed=number, **HOT).text for number in (8, 9, 10)}
    need(others != {first}, "seeds 7 to 10 all give the same text")


def stop(most: int, *, kept: bool = False, string: bool = True) -> Check:
    """Generation ends at a stop string, wherever it falls; ``kept``: the text ends with it.

    Args:
        most: the page's most strings; 0 = it has no such number.
        string: whether one string will do, without a list.
    """

    def check(client: Client) -> None:
        whole = client.greedy(max_tokens=LONG).text
        needle, start = _needle(whole)
        wanted = whole[: start + (len(needle) if kept else 0)]
        never = ["\x00zq", "\x00qz", "\x00zz"][: max(most - 1, 1)]
        for given in [*([needle] if string else []), [needle], [*never, needle]]:
            answer = client.greedy(max_tokens=LONG, stop=given)
            need(answer.text == wanted, f"with stop {shown(given)} the text is {shown(answer.text)} where {shown(wanted)} was due")
            need(answer.finish == "stop", f"the finish_reason at a stop string is {shown(answer.finish)}")
        if most:
            client.refused(stop=[f"\x00{number}" for number in range(most + 1)])

    return check


def _needle(whole: str) -> tuple[str, int]:
    """Two characters from the middle of a text, and where they come first."""
    for place in range(len(whole) // 2, 0, -1):
        needle = whole[place : place + 2]
        if len(needle) == 2 and (start := whole.find(needle)) > 0:
            return needle, start
    raise Untold(f"the model's text is too short to be stopped: {shown(whole)}")


def tokens(answer: Answer) -> list[str]:
    """The texts of an answer's tokens if it has them, else its words."""
    for path, name in (("choices.0.logprobs.tokens", ""), ("choices.0.logprobs.content", "token"), ("choices.0.tokens", "")):
        if answer.has(path):
            found = answer.member(path, "array")
            return [shown(one.get(name) if name and isinstance(one, dict) else one) for one in found]
    return answer.text.split()


def _repeated(client: Client, **fields: Any) -> float:
    """The commonest token's share of a greedy text."""
    found = tokens(client.greedy(max_tokens=LONG, logprobs=1, **fields))
    return max((found.count(one) for one in set(found)), default=0) / max(len(found), 1)


def _different(client: Client, **fields: Any) -> float:
    """The share of a greedy text's tokens that have not come before."""
    found = tokens(client.greedy(max_tokens=LONG, logprobs=1, **fields))
    return len(set(found)) / max(len(found), 1)


def frequency_penalty(client: Client) -> None:
    """Greedy text repeats itself less at 2 than at -2."""
    high, low = (_repeated(client, frequency_penalty=value) for value in (2, -2))
    need(high < low, f"the commonest token is {high:.0%} of the text at 2 and {low:.0%} at -2")


def presence_penalty(client: Client) -> None:
    """Greedy text has more different tokens at 2 than at -2."""
    high, low = (_different(client, presence_penalty=value) for value in (2, -2))
    need(high > low, f"{high:.0%} of the tokens are new at 2 and {low:.0%} at -2")


def repetition_penalty(client: Client) -> None:
    """Greedy text has more different tokens at 1.9 than at 0.6."""
    high, low = (_different(client, repetition_penalty=value) for value in (1.9, 0.6))
    need(high > low, f"{high:.0%} of the tokens are new at 1.9 and {low:.0%} at 0.6")


def repetition_of_prompt(client: Client) -> None:
    """The first token already is another one where the likeliest stands in the prompt."""
    stuck = []
    for word in (" dog", " the", " one two", " a b c", " 1, 2, 3,", " etaoin shrdlu"):
        prompt = word * 8
        first = client.greedy(prompt=prompt, max_tokens=1).text
        if first.strip() and first in prompt:
            if client.greedy(prompt=prompt, max_tokens=1, repetition_penalty=1.9).text != first:
                return
            stuck.append(first)
    if not stuck:
        raise Untold("the model repeats none of our prompts")
    raise Differs(f"{shown(stuck)} of the prompt come with a penalty of 1.9 as without")


def logit_bias(client: Client) -> None:
    """A bias of 100 makes a token the only one: two ids that are as likely as not words of any vocabulary are tried."""
    plain = client.greedy(max_tokens=1).text
    forced = []
    for number in ("65", "66", "97", "300", "1639"):
        reply = client.reply(client.body({**client.page.greedy, "max_tokens": 1, "logit_bias": {number: 100}}))
        if reply.status != 200:
            continue  # beyond a small vocabulary
        one = client.taken(reply).text
        if not one.strip() or one == plain or "\ufffd" in one:
            continue
        four = client.greedy(max_tokens=4, logit_bias={number: 100}).text
        need(four.replace(" ", "") == 4 * one.replace(" ", ""), f"with a bias of 100 for token {number} the text is {shown(four)}")
        forced.append(one)
    need(len(set(forced)) > 1, "a bias of 100 brings no token about: " + (shown(forced) if forced else f"the text stays {shown(plain)}"))


def count(most: int | None) -> Check:
    """As many choices as were asked for, numbered, and not all alike."""

    def check(client: Client) -> None:
        answer = client.ask(n=3, max_tokens=LONG, **HOT)
        need(len(answer.choices) == 3, f"n 3 gives {counted(len(answer.choices), 'choice')}")
        need(len(set(answer.texts)) > 1, "three choices at temperature 1 are the same")
        numbers = [choice.get("index") for choice in answer.choices]
        need(set(numbers) in ({0, 1, 2}, {None}), f"their indexes are {shown(numbers)}")
        client.refused(n=0)
        if most is not None:
            client.refused(n=most + 1)

    return check


_ROUNDS, _MANY, _FAR = 4, 16, 4.5
"""The largest of 16 draws lies 1.77 standard deviations above their mean, on the average: over 4 rounds 7.1 in all, and one draw 0."""


def best_of(client: Client) -> None:
    """The one of 16 is much better than 16 are; of two the first is the better; fewer than ``n`` are refused, and so is a stream."""
    above = 0.0
    for number in range(_ROUNDS):
        hot: dict[str, Any] = {"temperature": 1, "logprobs": 0, "max_tokens": SHORT, "seed": 1000 * number}
        best = client.ask(best_of=_MANY, **hot)
        need(len(best.choices) == 1, f"best_of {_MANY} gives {len(best.choices)} choices")
        plain = client.ask(n=_MANY, **{**hot, "seed": 1000 * number + 500})
        means = [_mean(plain, place) for place in range(len(plain.choices))]
        spread = statistics.pstdev(means)
        need(spread > 0, f"{_MANY} choices at temperature 1 are the same")
        above += (_mean(best, 0) - statistics.fmean(means)) / spread
    need(
        above > _FAR, f"in {_ROUNDS} rounds the best of {_MANY} was {above / _ROUNDS:.1f} standard deviations above the mean on the average"
    )
    two = client.ask(best_of=4, n=2, **hot)
    need(len(two.choices) == 2, f"best_of 4 with n 2 gives {counted(len(two.choices), 'choice')}")
    need(_mean(two, 0) >= _mean(two, 1), "the first is not the best")
    client.refused(n=3, best_of=2)
    client.refused(best_of=2, stream=True)


def _mean(answer: Answer, place: int) -> float:
    found = answer.member(f"choices.{place}.logprobs.token_logprobs", "array")
    numbers = [one for one in found if isinstance(one, int | float)]
    need(bool(numbers), "there are no log-probabilities")
    return float(sum(numbers) / len(numbers))


def suffix(client: Client) -> None:
    """Text that fits between is another than text that just goes on."""
    reply = client.reply(client.body({**client.page.greedy, "suffix": " and they lived happily ever after."}))
    if 400 <= reply.status < 500:
        raise Untold("the model is not for filling in, and the server says so")
    need(client.taken(reply).text != client.greedy().text, "the text is the same with a suffix and without")


def ignore_eos(client: Client) -> None:
    """What ends by itself without it goes on with it."""
    for prompt in (PROMPT, "The end", "Yes."):
        ended = client.ask(prompt=prompt, n=8, max_tokens=96, **HOT)
        if all(choice.get("finish_reason") == "length" for choice in ended.choices):
            continue
        on = client.ask(prompt=prompt, n=8, max_tokens=96, ignore_eos=True, **HOT)
        reasons = [choice.get("finish_reason") for choice in on.choices]
        need(set(reasons) == {"length"}, f"with ignore_eos the choices end by {shown(reasons)}")
        need(on.completion_tokens == 8 * 96, f"with ignore_eos there are {counted(on.completion_tokens, 'token')} of {8 * 96}")
        return
    raise Untold("no text of this model ended by itself within 96 tokens")
