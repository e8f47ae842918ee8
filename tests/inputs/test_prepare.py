"""What ``resolve`` refuses, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quintet.backends.toy import ToyTokenizer
from quintet.errors import BadRequest, PromptTooLong, Unsupported
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.resolve import Known, inside_texts, prompt_texts, resolve
from quintet.inputs.sampling import word_forms
from quintet.inputs.sequence import SequenceSpec
from quintet.inputs.supported import require_supported
from quintet.inputs.tokenizer import separator_of
from quintet.models.traits import Roles, Traits
from quintet.request import Cut, Prompt, Reasoning, Sampling

CAPABILITIES = Capabilities(
    model="m", context=20, vocab=300, pieces=[b""] * 300, max_logprobs=5, max_sequences=4, fingerprint="f", supported=EVERYTHING
)


def spec(prompt: Prompt = (1, 2, 3), max_tokens: int | None = 4, logprobs: int | None = None) -> SequenceSpec:
    return SequenceSpec(prompt, max_tokens, Sampling(0.0, 1.0, 0), logprobs, echo=False)


def refusal(*specs: SequenceSpec, separator: int | None = 9) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        require_supported(specs, CAPABILITIES)
        resolve(specs, Known({"": []}, separator=separator), CAPABILITIES)
    return caught.value


def test_a_text_that_begins_with_its_own_bos_does_not_get_another() -> None:
    """Together's page has the prompt "<s>[INST] ...", for a model whose tokenizer puts `<s>` before every text."""

    def tokens(prompt: Prompt, ids: list[int], before: int) -> tuple[int, ...]:
        encoded = {prompt: ids} if isinstance(prompt, str) else {}
        return resolve([spec(prompt)], Known(encoded, separator=9, before=before), CAPABILITIES)[0].tokens

    assert tokens("<s>ab", [1, 1, 5, 6], 1) == (1, 5, 6)
    assert tokens("<s><s>ab", [1, 1, 1, 5, 6], 1) == (1, 1, 5, 6), "as many as are written"
    assert tokens("ab", [1, 5, 6], 1) == (1, 5, 6)
    assert tokens("", [1], 1) == (1,)
    assert tokens("aab", [5, 5, 6], 0) == (5, 5, 6), "nothing is put before it"
    assert tokens((1, 1, 5), [], 1) == (1, 1, 5), "ids are taken as they are"


@pytest.mark.parametrize(
    ("words", "end", "separator"),
    [
        (("</s>", "<|endoftext|>", "<|im_end|>"), "<|im_end|>", 1),  # Qwen's instruct models: by its name
        (("[EOS]", "</s>", "<|im_end|>"), "</s>", 1),  # the file's own end
        (("[EOS]", "<eos>", ""), "<turn|>", 0),  # of a file whose end is not told by name: any
        ((), "", None),
    ],
)
def test_a_new_document_begins_after_the_separator(words: tuple[str, ...], end: str, separator: int | None) -> None:
    """OpenAI's page: "`<|endoftext|>` is the document separator that the model sees during training"."""

    class Words(ToyTokenizer):
        eos_ids = frozenset(range(len(words)))

        def spelling(self, token: int) -> str:
            return words[token]

    tokenizer = Words()
    tokenizer.traits = Traits(roles=Roles(eos=end))
    assert separator_of(tokenizer) == separator


def test_a_bare_text_has_nothing_around_it_whatever_it_begins_with() -> None:
    def tokens(ids: list[int]) -> tuple[int, ...]:
        known = Known({"text": ids}, separator=9, before=1, after=2)
        return resolve([replace(spec("text"), bare=True)], known, CAPABILITIES)[0].tokens

    assert tokens([1, 5, 6, 2, 2]) == (5, 6)
    assert tokens([1, 1, 5, 6, 2, 2]) == (1, 5, 6), "one that is written stays"
    assert tokens([1, 2, 2]) == (9,), "as an empty text of a model without a BOS"


def test_equal_first_tokens_of_a_text_that_was_cut_are_no_bos_that_is_there_twice() -> None:
    """The BOS is a token of the prompt like any other, and the first that a cut from the left takes away."""

    def tokens(ids: list[int], cut: Cut) -> tuple[int, ...]:
        return resolve([replace(spec("text"), cut=cut)], Known({"text": ids}, before=1), CAPABILITIES)[0].tokens

    assert tokens([1, 7, 5, 5], Cut(2)) == (5, 5)
    assert tokens([1, 7, 5, 5, 5], Cut(3)) == (5, 5, 5)
    assert tokens([1, 5, 5], Cut(3)) == tokens([1, 1, 5, 5], Cut(3)) == (1, 5, 5)
    assert tokens([1, 1, 5, 6], Cut(2, left=False)) == (1, 5)


@pytest.mark.fault("A15")
@pytest.mark.parametrize("length", [3, 18])
def test_min_tokens_beyond_max_tokens_are_refused_whether_that_fits_or_is_lowered(length: int) -> None:
    asked = replace(spec((1,) * length, max_tokens=4), truncate=True)
    assert "'min_tokens' must be at most 4" in str(refusal(replace(asked, sampling=replace(asked.sampling, min_tokens=5))))
    (sequence,) = resolve([replace(asked, sampling=replace(asked.sampling, min_tokens=4))], Known({}), CAPABILITIES)
    assert sequence.sampling.min_tokens == sequence.max_tokens == min(4, 20 - length)


@pytest.mark.parametrize("max_tokens", [20, 21, 10**30])
@pytest.mark.parametrize("truncate", [True, False])
def test_a_prompt_that_is_to_be_cut_to_what_fits_is_never_cut_to_nothing(max_tokens: int, truncate: bool) -> None:
    """Nor is the separator taken for it."""
    asked = replace(spec((1,) * 40, max_tokens), cut=Cut(None), truncate=truncate)
    error = refusal(asked)
    assert (error.param, error.code) == ("max_tokens", "context_length_exceeded")
    assert "must leave room in the context, 20, for some of prompt, as truncate_prompt_tokens is -1" in str(error)
    (sequence,) = resolve([replace(asked, max_tokens=19)], Known({}), CAPABILITIES)
    assert (sequence.tokens, sequence.max_tokens) == ((1,), 19)


def test_equal_texts_are_tokenised_once() -> None:
    assert prompt_texts([spec("a"), spec("b"), spec("a"), spec((1,))]) == ["a", "b"]


def test_the_controls_of_a_thousand_samples_are_resolved_once_however_their_prompts_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it holds the event loop up, or the interpreter: 500 forms of bad words a thousand times took 12 s."""
    asked: list[Sampling] = []

    def counted(sampling: Sampling) -> list[str]:
        asked.append(sampling)
        return word_forms(sampling)

    monkeypatch.setattr("quintet.inputs.resolve.word_forms", counted)
    first = replace(spec(max_tokens=None), sampling=Sampling(1.0, 1.0, 0, bad_words=("a", "b"), min_tokens=-1))
    samples = [replace(first, prompt=(1,) * (1 + seed % 2), sampling=replace(first.sampling, seed=seed)) for seed in range(6)]
    known = Known({}, {form: [ord(form[-1])] for form in inside_texts(samples)})
    assert len(asked) == 1
    sequences = resolve(samples, known, CAPABILITIES)
    assert len({id(sequence.bad_words) for sequence in sequences}) == 1
    assert [(one.sampling.seed, one.sampling.min_tokens) for one in sequences] == [(seed, 19 - seed % 2) for seed in range(6)]


def test_a_prompt_of_exactly_the_context_is_an_error_but_where_no_room_need_be_left() -> None:
    """Fireworks' page: `truncate` "limits the `max_tokens` to at most `context_window_length - prompt_length`", `error` is an error."""
    ids = (1,) * CAPABILITIES.context
    full = spec(ids, max_tokens=5)
    (sequence,) = resolve([replace(full, truncate=True, room=False)], Known({}), CAPABILITIES)
    assert sequence.max_tokens == 0
    for asked in (full, replace(full, truncate=True), replace(full, prompt=(*ids, 1), truncate=True, room=False)):
        with pytest.raises(PromptTooLong):
            resolve([asked], Known({}), CAPABILITIES)


@pytest.mark.fault("A16")
def test_max_tokens_is_given_filled_up_to_the_context_or_truncated_to_it() -> None:
    sequences = resolve([spec(max_tokens=17), spec(max_tokens=None), replace(spec(max_tokens=900), truncate=True)], Known({}), CAPABILITIES)
    assert [sequence.max_tokens for sequence in sequences] == [17, 17, 17]


@pytest.mark.fault("A16")
def test_a_prompt_and_max_tokens_beyond_the_context_are_refused_with_all_numbers() -> None:
    error = refusal(spec(max_tokens=18))
    assert isinstance(error, PromptTooLong)
    assert error.param == "max_tokens"
    assert str(error) == "'max_tokens' and the 3 tokens of prompt must together be at most 20, the context, got 18."


def test_numbers_out_of_bounds_are_refused_by_the_names_that_the_client_gave_them() -> None:
    spelled = (("max_tokens", "max_completion_tokens"), ("logprobs", "top_logprobs"))
    named = {"max_tokens": 18}, {"max_tokens": -1}, {"max_tokens": 20, "cut": Cut(None)}, {"logprobs": 6}
    params = [refusal(replace(spec(), spelled=spelled, **fields)).param for fields in named]
    assert params == ["max_completion_tokens"] * 3 + ["top_logprobs"]


@pytest.mark.fault("A16")
@pytest.mark.parametrize(("length", "max_tokens"), [(21, 0), (21, 5), (20, 1), (20, None)])
def test_a_prompt_that_leaves_no_room_is_refused_as_the_prompt(length: int, max_tokens: int | None) -> None:
    error = refusal(spec((1,) * length, max_tokens))
    assert isinstance(error, PromptTooLong)
    assert (error.param, error.got) == ("prompt", str(length))


@pytest.mark.fault("A14", "A16")
def test_a_prompt_that_fills_the_context_is_fine_when_nothing_is_generated() -> None:
    assert resolve([spec((1,) * 20, 0)], Known({}), CAPABILITIES)[0].max_tokens == 0


@pytest.mark.fault("A05")
@pytest.mark.parametrize("token", [-1, 300, 2**40])
def test_a_token_id_outside_the_logits_is_refused(token: int) -> None:
    """Against the width of the logits, not the length of the tokenizer."""
    error = refusal(spec((1, token, 2)))
    assert str(error) == f"'prompt' token ids must be from 0 to 299, got {token}."


def test_of_several_prompts_the_bad_one_is_named() -> None:
    good, bad = (1, 2), (3, 999)
    assert refusal(spec(good), spec(good), replace(spec(bad), number=1), replace(spec(bad), number=1)).param == "prompt[1]"
    assert refusal(spec(bad), spec(bad)).param == "prompt"


@pytest.mark.fault("A03")
@pytest.mark.parametrize("prompt", ["", ()])
def test_an_empty_prompt_is_the_separator_and_refused_where_there_is_none(prompt: Prompt) -> None:
    assert resolve([spec(prompt)], Known({"": []}, separator=9), CAPABILITIES)[0].tokens == (9,)
    assert refusal(spec(prompt), separator=None).param == "prompt"


@pytest.mark.fault("B05")
def test_too_many_alternatives_or_negative_counts_are_refused() -> None:
    assert refusal(spec(logprobs=6)).param == "logprobs"
    assert refusal(spec(logprobs=-1)).param == "logprobs"
    assert refusal(spec(max_tokens=-1)).param == "max_tokens"


def test_no_thinking_is_all_that_a_model_that_does_not_reason_can_do() -> None:
    assert resolve([replace(spec(), reasoning=Reasoning(0, "thinking"))], Known({}), CAPABILITIES)[0].thinking is None
    error = refusal(replace(spec(), reasoning=Reasoning(5, "thinking")))
    assert isinstance(error, Unsupported) and error.param == "thinking" and "m does not reason" in str(error)
