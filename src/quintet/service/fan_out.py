"""From a request to its sequences, and to what makes choices of their tokens: prompts x samples, spelled out. Plain code over values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from quintet.errors import BadRequest, counted
from quintet.inputs.capabilities import Capabilities
from quintet.inputs.images.expansion import AnyTraits
from quintet.inputs.sequence import Prepared, PreparedSequence, SequenceSpec
from quintet.prediction import Predicted
from quintet.request import IMAGE_MARK, CompletionRequest, Prompt, Sampling, Shown
from quintet.text.choice import Choice
from quintet.text.entries import Echo, Scores
from quintet.text.labels import Labels
from quintet.text.marks import IdMarks, Marks, TextMarks
from quintet.text.stop import compile_stops

_SEEDS = 2**64
_PLAIN = Shown()

T = TypeVar("T")


def candidates_of(request: CompletionRequest) -> int:
    """Sequences per prompt."""
    return max(request.best_of, request.n)


def require_choices(request: CompletionRequest, capabilities: Capabilities) -> None:
    """What must hold before prompts x samples are spelled out."""
    most, samples = capabilities.max_sequences, candidates_of(request)
    name = "best_of" if samples > request.n else dict(request.spelled).get("n", "n")
    if len(request.prompts) * samples > most:
        what = f"{counted(len(request.prompts), 'prompt')} with {name} = {samples}"
        rule = f"must give at most {counted(most, 'choice')} (prompts times {name}), which is this server's limit (--max-choices)"
        raise BadRequest(name if samples > most else "prompt", rule, what)


def specs_of(request: CompletionRequest) -> list[SequenceSpec]:
    """One sequence per candidate, each with its own seed.

    Sample *j* of every prompt draws with ``seed + j``, so a prompt in a list gets the texts that it gets alone. Where the client gave no
    seed nobody could tell, and equal prompts in a list are there to give different texts: then each sequence has one of its own.
    """
    seed, samples = request.sampling.seed, candidates_of(request)
    seeds = samples if request.sampling.seeded else samples * len(request.prompts)
    first = SequenceSpec(
        prompt="",
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        logprobs=0 if _ranked(request) else _alternatives(request),
        # Else the echo is the prompt's text, which the engine need not send back.
        echo=(request.echo and request.echo_scored and wants_entries(request)) or wants_scores(request),
        echo_last=request.echo_last,
        suffix=request.suffix,
        truncate=request.truncate,
        room=request.room,
        guide=request.guide,
        cache_salt=request.cache_salt,
        logprob_ids=request.logprob_ids,
        cut=request.cut,
        bare=request.bare,
        reasoning=request.reasoning,
        prediction=request.prediction,
        spelled=(*request.spelled, *_behind(request)),
    )
    images = request.images or ((),) * len(request.prompts)
    specs: list[SequenceSpec] = []
    for number, (prompt, shown) in enumerate(zip(request.prompts, images, strict=True)):
        for _ in range(samples):
            sampling = _drawing(request.sampling, (seed + len(specs) % seeds) % _SEEDS)
            specs.append(replace(first, prompt=prompt, images=shown, sampling=sampling, number=number))
    return specs


def _ranked(request: CompletionRequest) -> bool:
    """Candidates are compared by log-probabilities that nobody asked for."""
    return _alternatives(request) is None and candidates_of(request) > request.n


def _behind(request: CompletionRequest) -> Iterator[tuple[str, str]]:
    """See ``SequenceSpec.spelled``: what is asked of the engine for another field's sake."""
    scores, own = (request.shown or _PLAIN).prompt_logprobs, request.logprobs
    if _ranked(request):
        yield "logprobs", "best_of"
    if scores is not None and (own is None or scores > own):
        yield "logprobs", "prompt_logprobs"
    if scores is not None and not (request.echo and own is not None):
        yield "echo", "prompt_logprobs"


def _drawing(sampling: Sampling, seed: int) -> Sampling:
    return sampling if sampling.seed == seed else replace(sampling, seed=seed)


def wants_entries(request: CompletionRequest) -> bool:
    """The response needs every token, not only text."""
    shown = request.shown or _PLAIN
    return request.logprobs is not None or request.token_ids or shown.token_ids or shown.usage


def wants_scores(request: CompletionRequest) -> bool:
    """The response has the prompts' log-probabilities, apart from an echo."""
    return request.shown is not None and request.shown.prompt_logprobs is not None


def tells_prompt(request: CompletionRequest) -> bool:
    """The first delta of a choice is the prompt's."""
    return _wants_prompt_ids(request) or wants_scores(request) or (request.echo and request.echo_last != 0)


def _wants_prompt_ids(request: CompletionRequest) -> bool:
    shown = request.shown or _PLAIN
    return request.prompt_ids or shown.token_ids or shown.usage


def _alternatives(request: CompletionRequest) -> int | None:
    """As many as any of its tokens needs."""
    asked = (request.logprobs, (request.shown or _PLAIN).prompt_logprobs)
    return max((count for count in asked if count is not None), default=None)


def echoes_of(request: CompletionRequest, prepared: Prepared, texts: Sequence[str], labels: Labels, seen: AnyTraits | None) -> list[Echo]:
    """What is shown of each prompt; none if nothing is."""
    if not request.echo or request.echo_last == 0:
        return []
    firsts = prepared.sequences[:: candidates_of(request)]
    prompts = zip(request.prompts, firsts, texts, strict=True)
    return [
        _echo(request, sequence, text, labels, _marks(prompt, sequence, seen), written=not isinstance(prompt, str))
        for prompt, sequence, text in prompts
    ]


def _echo(request: CompletionRequest, sequence: PreparedSequence, text: str, labels: Labels, marks: Marks | None, *, written: bool) -> Echo:
    """What is shown of one prompt.

    Args:
        written: see ``Echo``.
    """
    own = sequence.tokens[: sequence.prompt_end]
    if request.echo_last is None:
        return Echo(text, own[sequence.echo_from :] if sequence.echo else (), labels, written=written, marks=marks)
    return Echo(text, own, labels, len(own) - min(request.echo_last, len(own) - sequence.echo_from), written, marks)


def _marks(prompt: Prompt, sequence: PreparedSequence, seen: AnyTraits | None) -> Marks | None:
    """Where the images of a prompt are."""
    images = sequence.images
    if seen is None or not images:
        return None
    runs = [image.span for image in images]
    if isinstance(prompt, str):
        return TextMarks(runs=runs, text=IMAGE_MARK, around=seen.around)
    (first, _), *_ = images[0].places
    return IdMarks(runs=runs, ids=prompt, mark=sequence.tokens[first])


def by_first(echoes: Sequence[T], prepared: Prepared, candidates: int) -> dict[int, list[T]]:
    """What is made of each prompt's tokens, by the sequence whose events bring these.

    Equal prompts with equal images are told once, with the first sequence that has them.
    """
    firsts: dict[tuple[object, ...], int] = {}
    grouped: dict[int, list[T]] = {}
    for number, echo in enumerate(echoes):
        seq = number * candidates
        sequence = prepared.sequences[seq]
        images = tuple(image.digest for image in sequence.images)
        first = firsts.setdefault((sequence.tokens, images, sequence.echo_from, sequence.prompt_end), seq)
        grouped.setdefault(first, []).append(echo)
    return grouped


def choices_of(
    request: CompletionRequest, prepared: Prepared, texts: Sequence[str], echoes: Sequence[Echo], scores: Sequence[Scores], labels: Labels
) -> list[Choice]:
    """What makes text of each sequence's tokens.

    Args:
        texts: the prompts'.
        echoes, scores: one for each prompt, or none at all.
    """
    patterns, samples = compile_stops(request.stop.strings), candidates_of(request)
    predicted = prepared.sequences[0].prediction  # a request has one
    prediction = Predicted(predicted) if predicted else None
    entries = wants_entries(request) or request.safety_model is not None  # so that where a chunk ends does not depend on what is shown
    return [
        Choice(
            index,
            start=len(texts[index // samples]),
            echo=echoes[index // samples] if echoes else None,
            logprobs=entries,
            patterns=patterns,
            include=request.stop.include,
            stop_tokens=prepared.stop_tokens,
            min_tokens=sequence.sampling.min_tokens,
            seed=sequence.sampling.seed,
            labels=labels,
            thinking=sequence.thinking,
            prediction=prediction,
            prompt_ids=sequence.tokens if _wants_prompt_ids(request) else None,
            scores=scores[index // samples] if scores else None,
            stop_ids=request.sampling.stop_token_ids,
        )
        for index, sequence in enumerate(prepared.sequences)
    ]


def text_of(prompt: Prompt, labels: Labels) -> str:
    """A prompt as text; the bytes of token ids are decoded as a whole, so that characters may span tokens."""
    return prompt if isinstance(prompt, str) else b"".join(map(labels.written, prompt)).decode("utf-8", "replace")
