"""The canonical request: what a completion call means once a dialect has parsed it.

Every default is resolved by the dialect; no ``None`` here means "the default".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

Prompt = str | tuple[int, ...]
"""A prompt is text (tokenised by ``inputs.prepare``) or token ids (taken exactly as they are)."""

FRESH_SEED_BITS = 52
"""Of a seed that the client did not choose. Answers tell it, and choice *i*'s ``seed + i``: what is sent back is the same only below 2**53
where numbers are doubles, as in JavaScript."""


@dataclass(frozen=True, slots=True)
class Dry:
    """ "Don't repeat yourself": penalises tokens that would extend a repetition of the context (p-e-w, text-generation-webui #5677).

    Args:
        multiplier: strength; 0 = off.
        base: growth per token of the repeated run, ≥ 1.
        allowed_length: runs up to this long are free.
        range: how many of the last tokens are searched; 0 = none, -1 = all.
        breakers: a run does not extend over these texts.
    """

    multiplier: float = 0.0
    base: float = 1.75
    allowed_length: int = 2
    range: int = -1
    breakers: tuple[str, ...] = ("\n", ":", '"', "*")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Every control has a value that turns it off, which is its default here.

    Args:
        temperature: 0 means greedy; the logits are divided by it otherwise.
        top_p: nucleus mass in (0, 1]; 1 = off.
        seed: sample *j* of each prompt draws with ``seed + j``, whatever the prompt's place in a list; where the client chose none, choice
            *i* of the request with ``seed + i``. The dialect (or the service, for unseeded requests) always fills it, in ``[0, 2**64)``.
        seeded: the client chose the seed, and expects the same text from it again.
        top_k: keep the k likeliest; 0 = off.
        min_p: keep tokens at least this likely relative to the likeliest, in [0, 1]; 0 = off.
        min_probability: keep tokens at least this likely among those that are left, in [0, 1]; 0 = off. The likeliest stays.
        typical_p: locally typical mass in (0, 1]; 1 = off.
        typical_within: that mass is not exceeded, rather than reached.
        top_n_sigma: keep logits within n standard deviations of the largest; 0 = off.
        xtc_probability, xtc_threshold: exclude top choices; probability 0 = off.
        repetition_penalty: over prompt and output, > 0; 1 = off.
        frequency_penalty, presence_penalty: over the output, OpenAI's formula; 0 = off.
        dry: see ``Dry``.
        mirostat_target: Mirostat 2's surprise target tau in bits; 0 = off.
        mirostat_lr: its learning rate eta.
        logit_bias: ``(token id, bias)``, ids unique, -100 to 100; -100 bans and 100 forces.
        allowed_token_ids: nothing else may be drawn; empty = off.
        bad_words: texts that may not come about; empty = off.
        min_tokens: neither end of sequence nor stop rules end a choice before so many tokens; -1 = to the end of the context.
        ignore_eos: a sequence goes on after an end-of-sequence token, which is a token without text. What a guide governs ends with it.
        stop_token_ids: these end a choice like the end-of-sequence token.
    """

    temperature: float
    top_p: float
    seed: int
    top_k: int = 0
    min_p: float = 0.0
    min_probability: float = 0.0
    typical_p: float = 1.0
    typical_within: bool = False
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry: Dry = Dry()
    mirostat_target: float = 0.0
    mirostat_lr: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seeded: bool = False


class GuideKind(enum.Enum):
    """What language a guide is written in."""

    JSON_OBJECT = "json_object"  # any JSON object; the text is empty
    JSON_SCHEMA = "json_schema"  # a JSON Schema, as JSON text
    REGEX = "regex"
    GRAMMAR = "grammar"  # GBNF or Lark
    CHOICE = "choice"  # a JSON array of strings, one of which comes about


@dataclass(frozen=True, slots=True)
class Guide:
    """What the output must conform to.

    Args:
        param: the request's field it came from, for errors.
    """

    kind: GuideKind
    text: str
    param: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How long a model that thinks may do so.

    Args:
        budget: most thinking tokens of a choice; 0 = none.
        param: the request's field it came from, for errors.
        given: what that field said, for errors too; empty = the budget itself.
    """

    budget: int
    param: str
    given: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StopRules:
    """When text ends a choice.

    Args:
        strings: literal stop strings, matched over token and character borders.
        include: keep the matched stop string in the returned text.
        indent: a line after the first ends the text where anything follows fewer blanks than these; 0 = off.
        seconds: the text ends with the first line break so long after the first token; 0 = off.
    """

    strings: tuple[str, ...] = ()
    include: bool = False
    indent: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """What is around a gap in a text, for ``/infill``, whose prompt is made of it.

    Args:
        line: follows the prefix, tokenised by itself.
        extra: chunks of other places: a heading, which is the file's name and a line break, and the text.
        most: tokens that will be generated.
    """

    prefix: str
    line: str
    suffix: str
    extra: tuple[tuple[str, str], ...]
    most: int


IMAGE_MARK = "<image>"
"""Where an image goes in a prompt's text."""


@dataclass(slots=True)
class Image:
    """An image as the client sent it.

    Args:
        url: a data URL in base64, or one of http or https.
        param: the request's field it came from, such as ``images[2]``, for errors.
    """

    url: str
    param: str

    def forget(self) -> None:
        """It is read. Of a request that waits or runs megabytes of base64 would else stay, whatever the pixels in it come to."""
        self.url = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """What an answer tells beyond its provider's page, as vLLM's answers do.

    Args:
        token_ids: the ids of each choice and of its prompt.
        as_ids: lists of log-probabilities call tokens by their ids.
        prompt_logprobs: alternatives of each of the prompt's tokens; ``None`` = nothing of them.
        usage: each chunk of a stream has the usage up to it.
    """

    token_ids: bool = False
    as_ids: bool = False
    prompt_logprobs: int | None = None
    usage: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """Of a prompt so many tokens are kept.

    Args:
        most: tokens; ``None`` = as many as fit the context beside ``max_tokens``.
        left: its last ones are kept, else the first.
    """

    most: int | None
    left: bool = True


@dataclass(frozen=True, slots=True)
class Beams:
    """Choices are searched for, and not drawn: of each prompt the ``n`` best.

    Args:
        length_penalty: a sum of log-probabilities is divided by the number of tokens to the power of this.
        early: the search ends with ``n`` complete ones, whatever may still come.
    """

    length_penalty: float = 1.0
    early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One parsed ``POST /v1/completions``.

    Args:
        model: the name the client asked for.
        prompts: one or more prompts; choices are numbered ``prompt_index * n + sample_index``.
        max_tokens: most tokens to generate per choice; ``None`` = up to the end of the context. 0 is allowed.
        n: choices per prompt.
        echo: the prompt precedes the generated text.
        logprobs: number of most likely alternatives per token; 0 = only the chosen token's; ``None`` = no
            log-probabilities at all.
        stream: answer with server-sent events.
        include_usage: a stream carries token usage.
        user: the client's end-user id: for metrics and logs only.
        best_of: candidates per prompt, ≥ n; the n with the highest mean token log-probability are returned.
        suffix: text that follows the completion (fill in the middle); empty = none.
        echo_last: echo only so many of the prompt's last tokens; ``None`` = all of it.
        echo_scored: where each token is needed an echoed prompt's are too; else its text will do.
        truncate: lower ``max_tokens`` to what fits the context instead of refusing.
        room: each prompt must leave the context room for a token, unless none is wanted.
        token_ids: the response needs every generated or echoed token's id, with or without log-probabilities.
        prompt_ids: the response needs the ids of each prompt, whatever is echoed of it.
        guide: what the output must conform to; ``None`` = anything.
        cache_salt: requests share cached prefixes only within equal salts.
        reasoning: how long the model may think; ``None`` = as it likes.
        prediction: what the client thinks that the text will be; empty = nothing. It changes no token, and the time that they take.
        spelled: name of a field here -> the client's field that asked for it, where that is another; for errors.
        safety_model: the model that judges prompts and outputs, as the client named it; ``None`` = none does.
        images: those of each prompt, in the order of its places for them; empty = no prompt has any.
        logprob_ids: each generated token comes with the log-probabilities of these, in place of the likeliest.
        beams: beam search; ``None`` = none.
        cut: a longer prompt is cut; ``None`` = it is refused.
        bare: nothing that the tokenizer puts around a text, such as a BOS, comes around the prompts.
        repeated: the end of a choice tells the log-probabilities of its tokens again, so that they are kept until then.
        shown: what the answer tells beyond the provider's page; ``None`` = nothing.
    """

    model: str
    prompts: tuple[Prompt, ...]
    max_tokens: int | None
    n: int
    echo: bool
    logprobs: int | None
    sampling: Sampling
    stop: StopRules
    stream: bool
    include_usage: bool
    user: str
    best_of: int = 1
    suffix: str = ""
    echo_last: int | None = None
    echo_scored: bool = True
    truncate: bool = False
    room: bool = True
    token_ids: bool = False
    prompt_ids: bool = False
    guide: Guide | None = None
    cache_salt: str = ""
    reasoning: Reasoning | None = None
    prediction: Prompt = ""
    spelled: tuple[tuple[str, str], ...] = ()
    safety_model: str | None = None
    images: tuple[tuple[Image, ...], ...] = ()
    logprob_ids: tuple[int, ...] = ()
    beams: Beams | None = None
    cut: Cut | None = None
    bare: bool = False
    repeated: bool = False
    shown: Shown | None = None

    @property
    def alternatives(self) -> int | None:
        """Tokens whose log-probabilities are told at each generated one's place; ``None`` = not even its own is."""
        return len(self.logprob_ids) or self.logprobs if self.logprobs is not None else None
