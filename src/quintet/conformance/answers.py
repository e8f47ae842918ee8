"""Judges of what an answer or a chunk has in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quintet.conformance.client import LONG, PROMPT, SHORT, Answer, Client, Stream, member, need, shown
from quintet.conformance.item import Check, Untold
from quintet.errors import counted

REAL = (946_684_800, 4_102_444_800)
"""Unix times of this century."""


def has(path: str, *kinds: str, **fields: Any) -> Check:
    """An answer to these fields has the member, of one of these JSON types."""

    def check(client: Client) -> None:
        client.greedy(**fields).member(path, *kinds)

    return check


def is_one_of(path: str, *values: object, **fields: Any) -> Check:
    """An answer's member has one of a few values."""

    def check(client: Client) -> None:
        found = client.greedy(**fields).member(path)
        need(found in values, f"{path} is {shown(found)}")

    return check


def optional(path: str, *kinds: str) -> Check:
    """An answer may lack the member; if it is there it is of one of these JSON types."""

    def check(client: Client) -> None:
        answer = client.greedy()
        if not answer.has(path):
            raise Untold("it is left out, and the page does not require it")
        answer.member(path, *kinds)

    return check


def same_twice(path: str, *kinds: str) -> Check:
    """Two answers have the member, and in both it is the same."""

    def check(client: Client) -> None:
        first, second = (client.greedy(take).member(path, *kinds) for take in (0, 1))
        need(first == second, f"it is {shown(first)} in one answer and {shown(second)} in the next")

    return check


def identifier(client: Client) -> None:
    """A text, and another one for each request."""
    first, second = (client.greedy(take).member("id", "string") for take in (0, 1))
    need(bool(first) and first != second, f"two answers have the id {shown(first)}")


def created(client: Client) -> None:
    """A Unix time in seconds."""
    when = client.greedy().member("created", "integer")
    need(REAL[0] < when < REAL[1], f"created is {when}, which is no time in seconds of this century")


def model_named(client: Client) -> None:
    """The answer's model is the name that was asked for."""
    named = client.greedy().member("model", "string")
    need(named == client.model, f"model is {shown(named)}, where {shown(client.model)} was asked for")


def model_required(client: Client) -> None:
    """A request without a model is refused, and so is a model that there cannot be."""
    client.refused(model="no-such-model/of-this-name")
    reply = client.reply({"prompt": PROMPT, "max_tokens": 1, **client.page.greedy})
    need(400 <= reply.status < 500, f"a request without model has status {reply.status}")


def prompt_required(client: Client) -> None:
    """A request without a prompt is refused."""
    reply = client.reply({"model": client.model, "max_tokens": 1, **client.page.greedy})
    need(400 <= reply.status < 500, f"a request without prompt has status {reply.status}")


def prompt_forms(client: Client) -> None:
    """A string, strings, ids and lists of ids: each gives the choices that each of its prompts gives alone."""
    one, two = PROMPT, "The sky is"
    alone = [client.greedy(prompt=one).text, client.greedy(prompt=two).text]
    both = client.greedy(prompt=[one, two])
    by_index = [member(choice, "text", "string") for choice in sorted(both.choices, key=lambda choice: str(choice.get("index")))]
    need(by_index == alone, f"two prompts give {shown(by_index)}, and each alone {shown(alone)}")
    ids, more = [65, 66, 67, 68, 69], [70, 71]
    answer = client.greedy(prompt=ids)
    count = answer.member("usage.prompt_tokens", "integer")
    need(count in (len(ids), len(ids) + 1), f"a prompt of {len(ids)} ids counts as {count}")
    lists = client.greedy(prompt=[ids, more])
    need(len(lists.choices) == 2, f"two lists of ids give {counted(len(lists.choices), 'choice')}")
    need(lists.texts[0] == answer.text, "a list of ids in a list gives another text than alone")


def finish_reason(*reasons: str, ended: str = "stop") -> Check:
    """``length`` at ``max_tokens``, ``ended`` where the model ended, and nothing that the page does not list."""

    def check(client: Client) -> None:
        answer = client.greedy(max_tokens=1)
        need(answer.finish == "length" or answer.completion_tokens < 1, f"at max_tokens the finish_reason is {shown(answer.finish)}")
        seen = {"length"}
        for take in range(6):
            choice = client.ask(take, prompt="Yes.", max_tokens=64, temperature=1).member("choices.0.finish_reason")
            need(choice in reasons, f"a finish_reason is {shown(choice)}")
            seen.add(str(choice))
            if ended in seen:
                return
        need(seen <= {*reasons}, f"the finish_reasons are {shown(sorted(seen))}")

    return check


def indexes(client: Client) -> None:
    """Numbered from 0, without a gap."""
    answer = client.greedy(prompt=[PROMPT, "The sky is", "One"])
    found = [choice.get("index") for choice in answer.choices]
    need(sorted(map(str, found)) == ["0", "1", "2"], f"the indexes of three choices are {shown(found)}")


def first_index(client: Client) -> None:
    """An integer, 0 for the only choice."""
    found = client.greedy().member("choices.0.index", "integer")
    need(found == 0, f"the index of the only choice is {found}")


def text(client: Client) -> None:
    """Not empty, and more of it with more tokens."""
    short, long = client.greedy(max_tokens=SHORT).text, client.greedy(max_tokens=LONG).text
    need(bool(long), "the text is empty")
    need(long.startswith(short), f"with more tokens the text is another one: {shown(long)} after {shown(short)}")


def usage(client: Client) -> None:
    """Integers that add up, also for several choices."""
    for answer in (client.greedy(), client.greedy(max_tokens=LONG)):
        counted = {name: answer.member(f"usage.{name}", "integer") for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        need(counted["total_tokens"] == counted["prompt_tokens"] + counted["completion_tokens"], f"the usage is {shown(counted)}")


def usage_prompt(client: Client) -> None:
    """More for a longer prompt."""
    short, long = (client.greedy(prompt=words).member("usage.prompt_tokens", "integer") for words in (PROMPT, PROMPT * 9))
    need(0 < short < long, f"a prompt has {counted(short, 'token')}, and nine times that prompt {long}")


def usage_completion(client: Client) -> None:
    """What was generated: ``max_tokens`` where it ended by that."""
    for most in (1, 5, LONG):
        answer = client.greedy(max_tokens=most)
        found = answer.completion_tokens
        need(found == most if answer.finish == "length" else 0 <= found <= most, f"{found} completion_tokens with max_tokens {most}")


def count(path: str) -> Check:
    """An integer, at least 0; a usage without it is that with 0, as the page's default says."""

    def check(client: Client) -> None:
        answer = client.greedy(prompt=PROMPT * 3)
        if not answer.has(path):
            raise Untold("it is left out, which stands for its default of 0")
        found = answer.member(path, "integer")
        need(found >= 0, f"{path} is {found}")

    return check


def cached(path: str) -> Check:
    """An integer, and no more than the prompt has."""

    def check(client: Client) -> None:
        prompt = " ".join([PROMPT] * 40)
        answers = [client.greedy(take, prompt=prompt) for take in (0, 1)]
        found = [answer.member(path, "integer") for answer in answers]
        whole = answers[1].member("usage.prompt_tokens", "integer")
        need(0 <= found[0] <= whole and 0 <= found[1] <= whole, f"{found} of {whole} prompt tokens were cached")

    return check


def echo(client: Client) -> None:
    """The prompt stands before what is generated; with log-probabilities, its own too."""
    plain = client.greedy().text
    for given in (PROMPT, "One two three."):
        echoed = client.greedy(prompt=given, echo=True).text
        need(echoed.startswith(given), f"the text begins with {shown(echoed[: len(given)])}")
        need(len(echoed) > len(given), "nothing follows the prompt")
    need(client.greedy(echo=True).text == PROMPT + plain, "what follows the prompt is another text than without echo")
    need(client.greedy(echo=False).text == plain, "echo false is not what is without it")


# Streams


def stream(client: Client) -> None:
    """Events of data alone, several, ended by ``[DONE]``; put together they are the text that comes without a stream."""
    streamed = client.stream(max_tokens=LONG)
    need(streamed.done, "the stream does not end with data: [DONE]")
    need(not streamed.fields, f"events have other fields than data: {', '.join(sorted(set(streamed.fields)))}")
    need(len(streamed.chunks) > 2, f"{LONG} tokens come in {counted(len(streamed.chunks), 'chunk')}")
    whole = client.greedy(max_tokens=LONG).text
    need(streamed.text == whole, f"the stream says {shown(streamed.text)}, and without it the text is {shown(whole)}")


def chunks_where(path: str, *values: object) -> Check:
    """Every chunk's member has one of a few values."""

    def check(client: Client) -> None:
        for chunk in client.stream().chunks:
            found = chunk.member(path)
            need(found in values, f"{path} is {shown(found)}")

    return check


def chunk_indexes(client: Client) -> None:
    """Every choice of every chunk has its index; all of those asked for come."""
    found = [member(choice, "index", "integer") for choice in client.stream(n=2).choices()]
    need(set(found) == {0, 1}, f"the indexes of two choices are {shown(sorted(set(found)))}")


def chunk_texts(client: Client) -> None:
    """The choices' texts, one after another, are the text that comes without a stream."""
    found, whole = client.stream(max_tokens=LONG).text, client.greedy(max_tokens=LONG).text
    need(found == whole, f"the texts are {shown(found)} where {shown(whole)} was due")


def include_usage(client: Client) -> None:
    """With it a last chunk has the usage and no choices, and the others a null; without it there is no such chunk."""
    streamed = client.stream(stream_options={"include_usage": True})
    need(len(streamed.chunks) > 1, "there is one chunk")
    *others, last = streamed.chunks
    need(last.member("choices", "array") == [], f"the last chunk's choices are {shown(last.body.get('choices'))}")
    need(last.member("usage", "object") == client.greedy().member("usage", "object") or _adds_up(last), "the last chunk's usage is another")
    for chunk in others:
        need(member(chunk.body, "usage") is None, f"another chunk has the usage {shown(chunk.body['usage'])}")


def _adds_up(chunk: Answer) -> bool:
    parts = [chunk.member(f"usage.{name}", "integer") for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    return bool(parts[0] + parts[1] == parts[2])


def usage_last(streamed: Stream) -> Mapping[str, Any]:
    """The usage in the very last chunk."""
    need(bool(streamed.chunks), "there is no chunk")
    found: Mapping[str, Any] = streamed.chunks[-1].member("usage", "object")
    need(_adds_up(streamed.chunks[-1]), f"it is {shown(dict(found))}")
    return found


def usage_everywhere(client: Client) -> None:
    """In an answer, and in the very last chunk of a stream."""
    usage(client)
    usage_last(client.stream(max_tokens=LONG))


def no_prompt(client: Client) -> None:
    """A request without a prompt goes on from nothing."""
    answer = client.taken(client.reply({"model": client.model, "max_tokens": 4, "temperature": 0}))
    need(answer.completion_tokens > 0 or answer.finish == "stop", "nothing came without a prompt")


# Errors


def unauthorized(client: Client) -> None:
    """A key that nobody has is refused with a 401."""
    sent = (("authorization", "Bearer quintet-check-no-such-key"),)
    reply = client.reply(client.body({"max_tokens": 1}), headers=sent, keyed=False)
    if reply.status == 200:
        raise Untold("the server takes any key")
    need(reply.status == 401, f"a key that nobody has is answered {reply.status}")


def not_provoked(what: str) -> Check:
    """What a run would have to overload or break a server for."""

    def check(_: Client) -> None:
        raise Untold(what)

    return check


def example(fields: Mapping[str, Any], *members: tuple[str, Sequence[str]]) -> Check:
    """The page's own request, as it stands but for the model, has an answer with the members of the page's own answer."""

    def check(client: Client) -> None:
        answer = client.taken(client.reply({**fields, "model": client.model}))
        for path, kinds in members:
            answer.member(path, *kinds)

    return check


def example_stream(fields: Mapping[str, Any], *members: tuple[str, Sequence[str]]) -> Check:
    """The page's own request for a stream has chunks with the members of the page's own chunk."""

    def check(client: Client) -> None:
        streamed = client.streamed(client.reply({**fields, "model": client.model, "stream": True}))
        need(streamed.done and len(streamed.chunks) > 1, "the stream has no several chunks and an end")
        for path, kinds in members:
            streamed.chunks[0].member(path, *kinds)

    return check
