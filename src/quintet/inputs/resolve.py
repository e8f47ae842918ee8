"""From specs to sequences that can run: every rule a prompt can break, checked before anything starts. Plain code over values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from quintet.errors import BadRequest, PromptTooLong, Unsupported, counted, shorten
from quintet.inputs.capabilities import Capabilities, Feature
from quintet.inputs.infill import Infill
from quintet.inputs.sampling import Limits, Resolved, resolve_sampling, word_forms
from quintet.inputs.sequence import PreparedSequence, SequenceSpec
from quintet.inputs.supported import unsupported
from quintet.inputs.think_tags import Tags
from quintet.models.traits import Traits
from quintet.prediction import REACH
from quintet.request import Guide, Prompt, Sampling

MOST_SUFFIXES = 1 << 22
"""Tokens of a suffix in all prompts of a request, each of which it is put together with: a body without one hardly holds more."""

MOST_CUT = 1 << 21
"""Bytes of a prompt that is to be cut, where the context holds less: no context bounds it, and to cut it all of it is tokenised."""


def prompt_texts(specs: Sequence[SequenceSpec]) -> list[str]:
    """The distinct texts among the prompts."""
    return list(dict.fromkeys(spec.prompt for spec in specs if isinstance(spec.prompt, str)))


def inside_texts(specs: Sequence[SequenceSpec]) -> list[str]:
    """The distinct texts that must be tokenised as they stand inside a longer one."""
    predictions = [spec.prediction for spec in specs if isinstance(spec.prediction, str) and spec.prediction]
    samplings = {id(spec.sampling.bad_words): spec.sampling for spec in specs}  # all samples hold the same words, which may be many
    suffixes = [spec.suffix for spec in specs if spec.suffix]
    return list(dict.fromkeys([*suffixes, *predictions, *(form for sampling in samplings.values() for form in word_forms(sampling))]))


def require_fitting(specs: Sequence[SequenceSpec], traits: Traits, context: int) -> None:
    """Refuse by their bytes texts that cannot fit, before they are tokenised.

    Raises:
        PromptTooLong: there is such a text. A prompt is never cut to fit, whatever ``truncate`` says; one with a ``cut`` has a bound too.
    """
    checked: set[tuple[str, bool]] = set()
    for spec, prompt in zip(specs, prompt_names(specs), strict=True):
        for name, text in ((prompt, spec.prompt), ("suffix", spec.suffix), (_spelled(spec, "prediction"), spec.prediction)):
            cut = name == prompt and spec.cut is not None
            if not isinstance(text, str) or (text, cut) in checked:
                continue
            checked.add((text, cut))
            if cut:
                _require_cuttable(name, text, traits, context)
            else:
                require_length(name, least_tokens(text, traits, context), context, least=True)


def least_tokens(text: str, traits: Traits, context: int) -> int:
    """How many tokens a text has that may be longer than the context, at least, as no token is longer than the longest; else 0."""
    longest = traits.longest
    return 0 if longest is None else -(-_size(text, longest * context, traits.dropped) // longest)


def require_length(name: str, tokens: int, context: int, *, least: bool = False) -> None:
    """Refuse a prompt before it is resolved.

    Args:
        least: it may have more tokens.

    Raises:
        PromptTooLong: so many exceed the context.
    """
    if tokens > context:
        raise PromptTooLong(
            name, f"must have at most {counted(context, 'token')}, the context", f"at least {tokens}" if least else str(tokens)
        )


def _require_cuttable(name: str, text: str, traits: Traits, context: int) -> None:
    most = max(MOST_CUT, (traits.longest or 0) * context)
    size = _size(text, most, traits.dropped)
    if size > most:
        raise PromptTooLong(name, f"must be at most {most} bytes, of which truncate_prompt_tokens keeps a part", f"{size} bytes")


def _spelled(spec: SequenceSpec, name: str) -> str:
    """The client's field that stands for this one."""
    return dict(spec.spelled).get(name, name)


def _size(text: str, most: int, dropped: bytes) -> int:
    """Bytes that become tokens, of a text that may have over ``most``; else 0."""
    return len(text.encode("utf-8", "surrogatepass").translate(None, dropped)) if len(text) * 4 > most else 0


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about the texts and guides of a request, and about its model.

    Args:
        encoded: token ids of each of ``prompt_texts(specs)``.
        inside: token ids of each of ``inside_texts(specs)``.
        grammars: each guide in the notation of ``guides``.
        separator: stands for a prompt without tokens; ``None`` = such a prompt is refused.
        before: tokens that the tokenizer puts before a text: none, or a BOS.
        after: tokens that it puts behind one: none, or an EOS.
        infill: how the model fills in the middle; ``None`` = it cannot.
        tags: what the model writes around its thinking; ``None`` = it does not think.
        image: the model's token for images; ``None`` = it sees none.
    """

    encoded: Mapping[str, Sequence[int]]
    inside: Mapping[str, Sequence[int]] = field(default_factory=dict)
    grammars: Mapping[Guide, str] = field(default_factory=dict)
    separator: int | None = None
    before: int = 0
    after: int = 0
    infill: Infill | None = None
    tags: Tags | None = None
    image: int | None = None


def size_of(specs: Sequence[SequenceSpec], known: Known) -> int:
    """What distinct prompts come to, in characters or ids, with the suffix that each of them is put together with.

    Raises:
        BadRequest: a suffix that makes more of a short body than a long one could hold.
    """
    prompts = {id(spec.prompt): spec for spec in specs}.values()
    suffixes = sum(len(known.inside[spec.suffix]) for spec in prompts if spec.suffix)
    if suffixes > MOST_SUFFIXES:
        rule = f"stands in each of {len(prompts)} prompts, and must come to at most {MOST_SUFFIXES} tokens in all of them"
        raise BadRequest(_spelled(specs[0], "suffix"), rule, str(suffixes))
    return suffixes + sum(len(spec.prompt) for spec in prompts)


def resolve(specs: Sequence[SequenceSpec], known: Known, capabilities: Capabilities) -> tuple[PreparedSequence, ...]:
    """Check each spec, all of which the engine supports, and give it its tokens and ``max_tokens``.

    Raises:
        BadRequest: a token id or a control out of range, an empty prompt.
        Unsupported: a suffix for a model that cannot fill in the middle, or reasoning on one that does not reason.
        PromptTooLong: a prompt, or a prompt and ``max_tokens``, exceed the context.
    """
    tags, names = known.tags, prompt_names(specs)
    forms: dict[tuple[Prompt, str], _Form] = {}
    controls, predictions = _ControlsOfSamples(known.inside, capabilities.vocab), _Predictions(known.inside, capabilities.vocab)
    sequences = []
    for spec, name in zip(specs, names, strict=True):
        key = spec.prompt, spec.suffix
        if key not in forms:
            forms[key] = _filled(spec, name, known, capabilities) if spec.suffix else _plain(spec, name, known, capabilities)
            if tags is not None:
                form = forms[key]
                forms[key] = replace(form, in_block=tags.open_in(form.tokens[form.start : form.end], capabilities.pieces))
        sequence = _sequence(spec, forms[key], name, capabilities, controls, predictions)
        if spec.guide is not None:
            _refuse_longer(spec.guide, spec.sampling)
            sequence = replace(sequence, grammar=known.grammars[spec.guide])
        if tags is not None:
            if spec.reasoning is not None and Feature.THINKING_BUDGET not in capabilities.supported.features:
                raise unsupported(spec.reasoning.param, capabilities)
            sequence = replace(sequence, thinking=tags.thinking(forms[key].in_block, spec))
        elif spec.reasoning and spec.reasoning.budget:
            rule = f"must ask for no thinking, or be left out: {capabilities.model} does not reason"
            raise Unsupported(spec.reasoning.param, rule, spec.reasoning.given or str(spec.reasoning.budget))
        sequences.append(sequence)
    return tuple(sequences)


@dataclass(frozen=True, slots=True)
class _Form:
    """A prompt's tokens as the model gets them.

    Args:
        start, end: where the client's own are among them.
        stops: tokens that end the completion of such a prompt.
        in_block: the client's own end in an open think block; a suffix is behind what is generated.
    """

    tokens: tuple[int, ...]
    start: int
    end: int
    stops: tuple[int, ...] = ()
    in_block: bool = False


def prompt_names(specs: Sequence[SequenceSpec]) -> list[str]:
    """``prompt``, or ``prompt[i]`` where there are several."""
    several = specs[-1].number > 0 if specs else False
    return [f"prompt[{spec.number}]" if several else "prompt" for spec in specs]


class _ControlsOfSamples:
    """Resolves the controls of a request's samples once: they differ in the seed, and in ``min_tokens`` where their prompts' lengths do."""

    def __init__(self, inside: Mapping[str, Sequence[int]], vocab: int) -> None:
        self._inside = inside
        self._vocab = vocab
        self._last: tuple[object, Resolved] | None = None

    def resolve(self, spec: SequenceSpec, limits: Limits, stops: tuple[int, ...]) -> Resolved:
        key = replace(spec.sampling, seed=0), stops
        if self._last is None or self._last[0] != key:
            wanted = replace(spec.sampling, stop_token_ids=(*spec.sampling.stop_token_ids, *stops)) if stops else spec.sampling
            self._last = key, resolve_sampling(wanted, limits, self._inside, self._vocab)
        last, seed, min_tokens = self._last[1], spec.sampling.seed, limits.resolve(spec.sampling.min_tokens)
        if (last.sampling.seed, last.sampling.min_tokens) == (seed, min_tokens):
            return last
        return replace(last, sampling=replace(last.sampling, seed=seed, min_tokens=min_tokens))


class _Predictions:
    """The tokens of predictions, of which as many count as can; once for all samples, which hold the same object."""

    def __init__(self, inside: Mapping[str, Sequence[int]], vocab: int) -> None:
        self._inside = inside
        self._vocab = vocab
        self._tokens: dict[Prompt, tuple[int, ...]] = {"": ()}

    def of(self, spec: SequenceSpec) -> tuple[int, ...]:
        prediction = spec.prediction
        if prediction not in self._tokens:
            name = _spelled(spec, "prediction")
            ids = self._inside[prediction] if isinstance(prediction, str) else _in_range(prediction, name, self._vocab)
            self._tokens[prediction] = tuple(ids[:REACH])
        return self._tokens[prediction]


def _refuse_longer(guide: Guide, sampling: Sampling) -> None:
    """What conforms may be complete before so many tokens, and then nothing could follow."""
    if sampling.min_tokens:
        raise BadRequest(guide.param, "cannot be combined with min_tokens")


def _in_range(tokens: Sequence[int], name: str, vocab: int) -> Sequence[int]:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab):
        wrong = next(token for token in tokens if not 0 <= token < vocab)
        raise BadRequest(name, f"token ids must be from 0 to {vocab - 1}", shorten(wrong))
    return tokens


def without_second_bos(tokens: Sequence[int], before: int) -> Sequence[int]:
    """A text's tokens, without the BOS that was put before it if it begins with one. Together's page, prompt: "<s>[INST] What is ..."."""
    return tokens[before:] if before and tokens[before : 2 * before] == tokens[:before] else tokens


def _ids(spec: SequenceSpec, known: Known) -> Sequence[int]:
    if not isinstance(spec.prompt, str):
        return spec.prompt
    ids = known.encoded[spec.prompt]
    return ids[known.before : len(ids) - known.after] if spec.bare else without_second_bos(ids, known.before)


def _plain(spec: SequenceSpec, name: str, known: Known, capabilities: Capabilities) -> _Form:
    tokens = _kept(_ids(spec, known), spec, name, known, capabilities)
    if not tokens and known.separator is None:
        raise BadRequest(name, "must not be empty: this model has no token to start from")
    given = tuple(tokens) if tokens or known.separator is None else (known.separator,)
    return _Form(given, 0, len(given))


def _filled(spec: SequenceSpec, name: str, known: Known, capabilities: Capabilities) -> _Form:
    infill = known.infill
    if infill is None:
        raise Unsupported("suffix", f"needs a model with fill-in-the-middle tokens, and {capabilities.model} has none; leave it out")
    own = infill.own(known.encoded[spec.prompt]) if isinstance(spec.prompt, str) else spec.prompt
    suffix = known.inside[spec.suffix]
    around = len(infill.join(spec.prompt, (), suffix).tokens)
    joined = infill.join(spec.prompt, _kept(own, spec, name, known, capabilities, around), suffix)
    return _Form(joined.tokens, joined.start, joined.end, infill.stops)


def _kept(tokens: Sequence[int], spec: SequenceSpec, name: str, known: Known, capabilities: Capabilities, around: int = 0) -> Sequence[int]:
    """A prompt's tokens as far as they are kept, and all checked, as its text is that of all; ``around``: how many are put around them."""
    kept = _cut(_in_range(tokens, name, capabilities.vocab), spec, name, capabilities.context, around)
    if known.image is not None and not spec.seen and known.image in kept:
        raise BadRequest(name, "must not hold the model's token for images, which marks the place of one, without images")
    return kept


def _cut(tokens: Sequence[int], spec: SequenceSpec, name: str, context: int, around: int) -> Sequence[int]:
    if spec.cut is None:
        return tokens
    most = spec.cut.most
    if most is None:  # vLLM, truncate_prompt_tokens: -1 stands for the context less ``max_tokens``
        most = context - around - (1 if spec.max_tokens is None else spec.max_tokens)
    if most > context:
        raise BadRequest("truncate_prompt_tokens", f"must be at most {context}, the context", shorten(most))
    if spec.cut.most is None and most <= 0 and tokens:
        rule = f"must leave room in the context, {context}, for some of {name}, as truncate_prompt_tokens is -1"
        raise PromptTooLong(_spelled(spec, "max_tokens"), rule, shorten(spec.max_tokens))
    return tokens[max(len(tokens) - most, 0) :] if spec.cut.left else tokens[:most]


def _sequence(
    spec: SequenceSpec, form: _Form, name: str, capabilities: Capabilities, controls: _ControlsOfSamples, predictions: _Predictions
) -> PreparedSequence:
    context, length = capabilities.context, len(form.tokens)
    if spec.max_tokens is not None and spec.max_tokens < 0:
        raise BadRequest(_spelled(spec, "max_tokens"), "must be at least 0", shorten(spec.max_tokens))
    most = context - 1 if spec.room and spec.max_tokens != 0 else context
    if length > most:
        raise PromptTooLong(name, f"must have at most {counted(most, 'token')}, for the context is {context}", str(length))
    if spec.max_tokens is not None and length + spec.max_tokens > context and not spec.truncate:
        rule = f"and the {counted(length, 'token')} of {name} must together be at most {context}, the context"
        raise PromptTooLong(_spelled(spec, "max_tokens"), rule, shorten(spec.max_tokens))
    max_tokens = context - length if spec.max_tokens is None else min(spec.max_tokens, context - length)
    resolved = controls.resolve(spec, Limits(max_tokens, asked=max(max_tokens, spec.max_tokens or 0)), form.stops)
    first = form.start if spec.echo_last is None else max(form.start, form.end - spec.echo_last)
    echo = spec.echo and first < form.end
    return PreparedSequence(
        tokens=form.tokens,
        max_tokens=max_tokens,
        sampling=resolved.sampling,
        logprobs=spec.logprobs,
        echo=echo,
        prompt_end=form.end if form.end < length else None,
        echo_from=first if echo else 0,
        images=spec.seen,
        salt=spec.salt,
        bad_words=resolved.bad_words,
        logprob_ids=tuple(_in_range(spec.logprob_ids, "logprob_token_ids", capabilities.vocab)),
        prediction=predictions.of(spec),
    )
