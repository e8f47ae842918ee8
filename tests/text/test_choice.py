"""One choice, case by case: what each token's entry says and when it comes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

import pytest

from quintet.events import ChoiceDelta, ChoiceDone, Finish, TokenEvent, TokenText
from quintet.prediction import Predicted
from quintet.text.choice import Choice, _PendingToken
from quintet.text.entries import Echo, Entries, Scores
from quintet.text.labels import Labels
from quintet.text.stop import compile_stops
from quintet.thinking import Thinking

PIECES = [b"<eos>"[:0], b"a", b"b", b"ab", b"ab", b"\xe2", b"\x82\xac", b"\x82\xacx", b"<", b">c", b"a<"]
EOS, A, B, AB, AB2, E1, E23, E23X, LESS, MORE_C, A_LESS = range(11)
LABELS = Labels(PIECES, lambda token: "</s>" if token == EOS else "")


def token(token: int, logprob: float | None = -1.0, finish: Finish | None = None, **rest: object) -> TokenEvent:
    return TokenEvent(0, token, PIECES[token], logprob, finish=finish, **rest)  # type: ignore[arg-type]


def choice(
    stops: Iterable[str] = (), *, prompt: str = "", echo: Iterable[TokenEvent] | None = None, logprobs: bool = True, include: bool = False
) -> Choice:
    """``echo``: the prompt is shown, with these tokens."""
    shown = None if echo is None else echoed(prompt, list(echo))
    rest = {"logprobs": logprobs, "patterns": compile_stops(stops), "include": include, "seed": 9, "labels": LABELS}
    return Choice(0, start=len(prompt), echo=shown, **rest)  # type: ignore[arg-type]


def echoed(prompt: str, events: Iterable[TokenEvent], tokens: Iterable[int] | None = None) -> Echo:
    """With ``tokens`` the prompt has these, of which not all have come."""
    made = Echo(prompt, [event.token for event in events] if tokens is None else list(tokens), LABELS)
    for event in events:
        made.add(event)
    return made


def feed(to: Choice, events: Iterable[TokenEvent]) -> list[ChoiceDelta | ChoiceDone]:
    return [new for event in events for new in to.feed(event)]


def entries(out: list[ChoiceDelta | ChoiceDone]) -> list[TokenText]:
    return [entry for event in out if isinstance(event, ChoiceDelta) for entry in event.tokens]


def shown(out: list[ChoiceDelta | ChoiceDone]) -> list[tuple[int, str, int]]:
    """(token, text, offset) of every entry."""
    return [(entry.token, entry.text, entry.offset) for entry in entries(out)]


def test_end_of_sequence_as_the_only_token_keeps_its_slot() -> None:
    """lm-eval asks for one token and slices the arrays by the prompt's length: a missing slot loses the last scored token."""
    asked = [token(A, None, prompt=True), token(B, -2.0, prompt=True)]
    ended = choice(prompt="ab", echo=asked)
    out = feed(ended, [token(EOS, -0.25, Finish.EOS, top=((EOS, -0.25),))])
    assert shown(out) == [(A, "a", 0), (B, "b", 1), (EOS, "", 2)]
    assert [entry.logprob for entry in entries(out)] == [None, -2.0, -0.25]
    assert [entry.top for entry in entries(out)] == [(), ((B, "b", -2.0),), ((EOS, "</s>", -0.25),)]
    assert [entry.label for entry in entries(out)] == ["a", "b", "</s>"], "p(end of text) can be read"
    assert out[-1] == ChoiceDone(0, Finish.EOS, "", 9, tokens=1)
    assert ended.completion_tokens == 1


def test_nothing_precedes_the_first_prompt_token() -> None:
    first = choice(prompt="a", echo=[token(A, None, prompt=True)])
    (delta, done) = feed(first, [TokenEvent(0, -1, finish=Finish.LENGTH)])
    assert delta == ChoiceDelta(0, "a", (TokenText(A, "a", b"a", None, (), 0),))
    assert done == ChoiceDone(0, Finish.LENGTH, "", 9)
    assert first.completion_tokens == 0


def test_no_tokens_at_all_is_no_delta() -> None:
    assert feed(choice(), [TokenEvent(0, -1, finish=Finish.LENGTH)]) == [ChoiceDone(0, Finish.LENGTH, "", 9)]


def test_a_text_prompt_comes_back_exactly_as_sent_without_prompt_tokens() -> None:
    out = feed(choice(prompt="<|im_start|> e\u0301", echo=[], logprobs=False), [token(A), token(B, finish=Finish.LENGTH)])
    assert out[:-1] == [ChoiceDelta(0, "<|im_start|> e\u0301"), ChoiceDelta(0, "a"), ChoiceDelta(0, "b")]


def test_a_prompt_of_control_tokens_only_still_has_its_delta() -> None:
    out = feed(choice(prompt="", echo=[token(EOS, None, prompt=True)]), [token(A, finish=Finish.LENGTH)])
    assert isinstance(out[0], ChoiceDelta)
    assert (out[0].text, len(out[0].tokens)) == ("", 1)
    assert shown(out) == [(EOS, "", 0), (A, "a", 0)]


def test_offsets_count_the_prompt_without_echo() -> None:
    assert shown(feed(choice(prompt="€€"), [token(A), token(B, finish=Finish.LENGTH)])) == [(A, "a", 2), (B, "b", 3)]


def test_the_token_that_completes_a_character_carries_it_and_fragments_wait_for_it() -> None:
    to = choice()
    assert to.feed(token(A)) != []
    assert to.feed(token(E1)) == []
    (delta,) = to.feed(token(E23X))
    assert isinstance(delta, ChoiceDelta)
    assert [(entry.text, entry.raw, entry.offset) for entry in delta.tokens] == [("", b"\xe2", 1), ("€x", b"\x82\xacx", 1)]


def test_only_the_token_that_opens_a_character_waits_for_its_end() -> None:
    """Characters that each straddle a border do not hold back the ones before them."""
    to = choice()
    straddling = TokenEvent(0, E23, b"\x82\xac\xe2", -1.0)
    feed(to, [token(E1), straddling])
    assert shown(feed(to, [straddling])) == [(E23, "€", 0)]
    assert shown(feed(to, [token(E23)])) == [(E23, "€", 1), (E23, "€", 2)]


def test_a_token_that_a_stop_string_cuts_is_not_whole_nor_is_what_shares_a_character_with_it() -> None:
    """Such ids stand for more, or less, than the text that is shown; tokens before them are not shown until that is known."""

    def wholes(stop: str, *ids: int) -> list[tuple[int, str, bool]]:
        told = feed(choice([stop]), map(token, ids))
        return [(one.token, one.text, one.whole) for delta in told if isinstance(delta, ChoiceDelta) for one in delta.tokens]

    assert wholes("b", A, AB) == [(A, "a", True), (AB, "a", False)]
    assert wholes("x", A, E1, E23X) == [(A, "a", True), (E1, "", False), (E23X, "\u20ac", False)]
    assert wholes("b", A, E1, E23, B) == [(A, "a", True), (E1, "", True), (E23, "\u20ac", True)]
    assert wholes("xb", E1, E23X, A) == [(E1, "", True), (E23X, "\u20acx", True), (A, "a", True)]


@pytest.mark.parametrize("stops", [["zz"], []])
def test_characters_that_never_complete_take_linear_work(stops: list[str]) -> None:
    """Each token's bytes break off the character before and open another, so that none is whole."""

    class Walked(deque[_PendingToken]):
        steps = 0

        def __iter__(self) -> Iterator[_PendingToken]:
            for one in super().__iter__():
                self.steps += 1
                yield one

    to, count = choice(stops), 500
    assert to._pending is not None
    to._pending._waiting = walked = Walked()
    out = feed(to, [*(token(E1) for _ in range(count)), token(A, finish=Finish.LENGTH)])
    assert "".join(text for _, text, _ in shown(out)) == "\ufffd" * count + "a"
    assert walked.steps <= 2 * count


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_a_control_token_whose_text_is_a_stop_string_ends_the_choice(include: bool, logprobs: bool) -> None:
    """It has no text in which the string could be found. Where the text is to contain what ended it, it contains that."""

    def ended(*events: TokenEvent, min_tokens: int = 0, stops: Iterable[str] = ("</s>",)) -> tuple[str, Finish, str]:
        rest = {"logprobs": logprobs, "patterns": compile_stops(stops), "include": include, "seed": 9, "labels": LABELS}
        to = Choice(0, start=0, echo=None, stop_tokens={EOS: "</s>"}, min_tokens=min_tokens, **rest)  # type: ignore[arg-type]
        told = feed(to, events)
        done = told[-1]
        assert isinstance(done, ChoiceDone)
        deltas = [delta for delta in told if isinstance(delta, ChoiceDelta)]
        assert not logprobs or "".join(one.text for delta in deltas for one in delta.tokens) == "".join(delta.text for delta in deltas)
        return "".join(delta.text for delta in deltas), done.finish, done.stop

    named = "</s>" if include else ""
    assert ended(token(A), token(EOS)) == (f"a{named}", Finish.STOP, "</s>")
    assert ended(token(A), token(LESS), token(EOS)) == (f"a<{named}", Finish.STOP, "</s>"), "what was held back comes before it"
    assert ended(token(A), token(E1), token(EOS)) == (f"a\ufffd{named}", Finish.STOP, "</s>")
    assert ended(token(EOS), token(A, finish=Finish.LENGTH), min_tokens=2) == ("a", Finish.LENGTH, "")
    assert ended(token(A), token(EOS), min_tokens=2) == (f"a{named}", Finish.STOP, "</s>")
    broken = "\ufffd" if include else ""
    assert ended(token(A), token(E1), token(EOS), stops=("</s>", "\ufffd")) == (f"a{broken}", Finish.STOP, "\ufffd"), "it came before"
    own = (f"a{named}", Finish.STOP, "</s>") if include else ("a", Finish.EOS, "")
    assert ended(token(A), token(EOS, finish=Finish.EOS)) == own, "the model's own end is told as that"


def test_an_unfinished_character_at_the_end_belongs_to_its_last_byte_not_to_end_of_sequence() -> None:
    assert shown(feed(choice(), [token(A), token(E1), token(EOS, finish=Finish.EOS)])) == [(A, "a", 0), (E1, "\ufffd", 1), (EOS, "", 2)]


def test_a_token_waits_while_part_of_it_is_held_back() -> None:
    to = choice(["<>"])
    assert to.feed(token(A_LESS)) == []
    (delta,) = to.feed(token(B))
    assert isinstance(delta, ChoiceDelta)
    assert (delta.text, len(delta.tokens)) == ("a<b", 2)
    plain = choice(["<>"], logprobs=False)
    assert plain.feed(token(A_LESS)) == [ChoiceDelta(0, "a")]


def test_a_token_cut_by_the_stop_keeps_the_part_that_is_returned() -> None:
    out = feed(choice(["<>"]), [token(A), token(A_LESS, top=((B, -0.5), (A_LESS, -1.0))), token(MORE_C)])
    assert shown(out) == [(A, "a", 0), (A_LESS, "a", 1)]
    assert entries(out)[1].raw == b"a<"
    assert entries(out)[1].top == ((B, "b", -0.5), (A_LESS, "a", -1.0))
    assert out[-1] == ChoiceDone(0, Finish.STOP, "<>", 9, tokens=3)


def test_an_included_stop_trims_what_follows_it_in_its_last_token() -> None:
    out = feed(choice(["<>"], include=True), [token(A_LESS), token(MORE_C)])
    assert shown(out) == [(A_LESS, "a<", 0), (MORE_C, ">", 2)]


def test_tokens_of_a_character_that_is_cut_have_no_entry() -> None:
    assert shown(feed(choice(["€"]), [token(A), token(E1), token(E23)])) == [(A, "a", 0)]


def test_a_stop_at_the_very_start_leaves_nothing() -> None:
    assert feed(choice(["ab"]), [token(A), token(B)]) == [ChoiceDone(0, Finish.STOP, "ab", 9, tokens=2)]


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    assert feed(choice(["b"]), [token(A), token(B, finish=Finish.LENGTH)])[-1] == ChoiceDone(0, Finish.STOP, "b", 9, tokens=2)


def test_a_stop_does_not_match_in_the_prompt_nor_across_its_border() -> None:
    asked = [token(A, None, prompt=True), token(AB, prompt=True), token(A, prompt=True)]
    out = feed(choice(["ab"], prompt="aaba", echo=asked), [token(B), token(B, finish=Finish.LENGTH)])
    assert shown(out)[3:] == [(B, "b", 4), (B, "b", 5)]
    assert out[-1] == ChoiceDone(0, Finish.LENGTH, "", 9, tokens=2)


def test_the_sampled_token_is_appended_to_alternatives_that_lack_it() -> None:
    (entry,) = entries(feed(choice(), [token(A, -3.0, Finish.LENGTH, top=((B, -0.1), (AB, -2.5)))]))
    assert entry.top == ((B, "b", -0.1), (AB, "ab", -2.5), (A, "a", -3.0))


def test_the_sampled_token_is_among_the_alternatives_once_wherever_it_is() -> None:
    many = tuple((token, -float(token)) for token in range(1, 10))
    (entry,) = entries(feed(choice(), [token(LESS, -8.0, Finish.LENGTH, top=many)]))
    assert [id_ for id_, _, _ in entry.top] == [id_ for id_, _ in many]


def test_with_no_alternatives_asked_for_the_sampled_token_stands_alone() -> None:
    (entry,) = entries(feed(choice(), [token(A, -3.0, Finish.LENGTH)]))
    assert entry.top == ((A, "a", -3.0),)


def test_two_ids_of_the_same_text_both_stay_and_fragments_are_decoded_alone() -> None:
    (entry,) = entries(feed(choice(), [token(AB, -1.0, Finish.LENGTH, top=((AB2, -0.5), (AB, -1.0), (E1, -4.0)))]))
    assert entry.top == ((AB2, "ab", -0.5), (AB, "ab", -1.0), (E1, "\ufffd", -4.0))


def test_minus_infinity_stays_a_number() -> None:
    (entry,) = entries(feed(choice(), [token(A, -math.inf, Finish.LENGTH, top=((B, 0.0),))]))
    assert (entry.logprob, entry.top[1][2]) == (-math.inf, -math.inf)


def test_an_aborted_choice_gives_what_it_held_back() -> None:
    out = feed(choice(["<>"], logprobs=False), [token(A), token(LESS), TokenEvent(0, -1, finish=Finish.ABORT)])
    assert out == [ChoiceDelta(0, "a"), ChoiceDelta(0, "<"), ChoiceDone(0, Finish.ABORT, "", 9, tokens=2)]


def test_a_prompt_whose_tokens_did_not_all_come_is_still_whole() -> None:
    """Aborted in the middle of the prompt."""
    made = echoed("aab", [token(A, None, prompt=True)], tokens=[A, A, B])
    assert (made.text, [(one.token, one.text, one.offset) for one in made.tokens]) == ("aab", [(A, "aab", 0)])


def test_only_the_last_tokens_of_a_prompt_are_shown_from_where_they_begin() -> None:
    made = Echo("aabab", [A, AB, AB], LABELS, skip=1)
    for event in (token(AB), token(AB)):
        made.add(event)
    assert (made.text, [(one.text, one.offset) for one in made.tokens]) == ("abab", [("ab", 1), ("ab", 3)])


@pytest.mark.fault("B06")
def test_all_samples_of_a_prompt_have_the_same_entries_and_not_copies_of_them() -> None:
    shown_once = echoed("ab", [token(A, None, prompt=True), token(B, prompt=True)])
    rest = {"logprobs": True, "patterns": compile_stops(()), "include": False, "seed": 9, "labels": LABELS}
    samples = [Choice(index, start=2, echo=shown_once, **rest) for index in range(3)]  # type: ignore[arg-type]
    deltas = [sample.feed(token(A, finish=Finish.LENGTH))[0] for sample in samples]
    assert len({id(delta.tokens) for delta in deltas if isinstance(delta, ChoiceDelta)}) == 1


def test_scores_are_of_tokens_as_they_are_called_alone_and_the_same_for_every_sample() -> None:
    scores = Scores(LABELS)
    scores.add(token(A, None, prompt=True))
    scores.add(token(EOS, -1.0, top=((B, -0.5), (EOS, -1.0)), prompt=True))
    first, second = scores.tokens
    assert (first.text, first.logprob, first.top) == ("a", None, ())
    assert (second.text, second.logprob, second.top) == ("</s>", -1.0, ((B, "b", -0.5), (EOS, "</s>", -1.0)))
    assert scores.tokens is scores.tokens


def test_control_tokens_have_names_of_their_own_in_lists_and_are_written_out_in_an_echo_of_ids() -> None:
    other = len(PIECES) + 1
    labels = Labels([*PIECES, b"", b""], {EOS: "</s>", other: "<|im_end|>"}.get)  # type: ignore[arg-type]
    assert [labels.alone(one) for one in (A, EOS, other)] == ["a", "</s>", "<|im_end|>"]
    prompt = "a</s>b"
    echo = Echo(prompt, [A, EOS, B], labels, written=True)
    for event in (token(A, None, prompt=True), token(EOS, -1.0, prompt=True), token(B, -2.0, prompt=True)):
        echo.add(event)
    assert [(entry.label, entry.text, entry.offset) for entry in echo.tokens] == [("a", "a", 0), ("</s>", "</s>", 1), ("b", "b", 5)]


def test_a_token_that_the_vocabulary_does_not_write_is_called_by_its_id_and_all_are_if_asked_for() -> None:
    assert Labels([b"a", b""]).alone(1) == "token_id:1"
    named = Labels([b"a", b""], lambda _: "</s>", as_ids=True)
    assert [named.alone(0), named.alone(1), named.of(0, b"a"), Labels([b"a"]).of(0, b"a")] == ["token_id:0", "token_id:1", "token_id:0", ""]
    assert (Entries(0, named).add(token(0), "a").label, Entries(0, LABELS).add(token(A), "a").label) == ("token_id:0", "a")
    assert Labels([b" a"], lambda _: "\u0120a").of(0, b"") == " a", "an ordinary token that ended the text"


def test_what_is_cut_off_is_neither_thinking_nor_predicted() -> None:
    """However far the engine ran ahead: the counts are those of a choice that had no more tokens."""
    rest = {"logprobs": False, "patterns": compile_stops(()), "include": False, "seed": 9, "labels": LABELS}

    def counted(tokens: int, cut: int, *, thinks: bool = True) -> tuple[int, int, tuple[int, int]]:
        thinking = Thinking(b"<", b">c", (LESS, MORE_C), inside=True) if thinks else None
        made = Choice(0, start=0, echo=None, thinking=thinking, prediction=Predicted([A, B, A, A, B, B]), **rest)  # type: ignore[arg-type]
        feed(made, [token(one) for one in (A, B, A, MORE_C, LESS, A, B, B)[:tokens]])
        made.cut(cut)
        assert made.done
        return made.completion_tokens, made.reasoning_tokens, made.predicted

    assert counted(8, 3) == counted(3, 3) == (3, 3, (3, 3))
    assert counted(8, 8) == (8, 6, (6, 0))
    assert counted(8, 3, thinks=False) == (3, 0, (3, 3))
    assert all(counted(8, cut, thinks=one) == counted(cut, cut, thinks=one) for cut in range(9) for one in (True, False))


def test_the_end_of_text_that_breaks_thinking_off_is_no_token_of_it() -> None:
    thinking = Thinking(b"<", b">c", (LESS, MORE_C), inside=True)
    made = Choice(
        0, logprobs=False, start=0, echo=None, patterns=compile_stops(()), include=False, seed=9, labels=LABELS, thinking=thinking
    )
    feed(made, [token(A), token(B), token(EOS, finish=Finish.EOS)])
    assert (made.completion_tokens, made.reasoning_tokens) == (3, 2)
