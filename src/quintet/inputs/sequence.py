"""A sequence on its way to an engine, before and after it is prepared. Plain code over values.

``CompletionRequest`` -> ``SequenceSpec``, one per prompt × sample (``service``) -> ``PreparedSequence`` (``prepare``) -> an engine.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from hashlib import blake2b

from quintet.inputs.images.value import PreparedImage
from quintet.request import Cut, Guide, Image, Prompt, Reasoning, Sampling
from quintet.thinking import Thinking


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """One prompt × sample, before tokenising. The position in the list is the ``seq`` of its events.

    Args:
        prompt: text or token ids.
        max_tokens: ``None`` = to the end of the context.
        sampling: with the seed of *this* choice.
        logprobs: alternatives per token; ``None`` = no log-probabilities.
        echo: the prompt's tokens come first as events with ``prompt=True`` (with log-probabilities if asked for), once for all samples.
        echo_last: only so many of its last tokens; ``None`` = all.
        suffix: text after the completion: the prompt becomes the model's fill-in-the-middle form.
        truncate: lower ``max_tokens`` to what fits the context instead of refusing.
        guide: what the output must conform to.
        cache_salt: sequences share cached prefixes only within equal salts.
        reasoning: how long the model may think; ``None`` = as it likes.
        spelled: name of a field here -> the request's field that asked for it, where that is another; for errors.
        images: as the client sent them, for a prompt with places for them.
        seen: as the model sees them, and where among the prompt's tokens; the prompt is token ids then.
        room, logprob_ids, cut, bare: see ``CompletionRequest``.
        number: of the prompt, among those of its request.
    """

    prompt: Prompt
    max_tokens: int | None
    sampling: Sampling
    logprobs: int | None
    echo: bool
    echo_last: int | None = None
    suffix: str = ""
    truncate: bool = False
    room: bool = True
    guide: Guide | None = None
    cache_salt: str = ""
    reasoning: Reasoning | None = None
    spelled: tuple[tuple[str, str], ...] = ()
    prediction: Prompt = ""
    images: tuple[Image, ...] = ()
    seen: tuple[PreparedImage, ...] = ()
    logprob_ids: tuple[int, ...] = ()
    cut: Cut | None = None
    bare: bool = False
    number: int = 0

    @property
    def salt(self) -> bytes:
        """Of ``PreparedSequence``."""
        return blake2b(self.cache_salt.encode("utf-8", "surrogatepass"), digest_size=16).digest() if self.cache_salt else b""


@dataclass(frozen=True, slots=True)
class PreparedSequence:
    """A sequence that can run: ids in range, length checked, ``max_tokens`` resolved.

    Args:
        prompt_end: the client's own prompt ends before this token; ``None`` = with the last. What is put before the prompt's
            first token has no text.
        echo_from: with ``echo``, the first token that comes back; the last one is the one before ``prompt_end``.
        salt: of the cached prefixes it may use, at most 64 bytes.
        grammar: what the output must conform to, checked and in the notation of ``guides``; empty = anything.
        bad_words: ``sampling.bad_words`` as token sequences; the last token of one is never drawn after the others.
        thinking: where and how much it may think; ``None`` = nothing in its text counts as thinking.
        images: what is at the places for images among its tokens, in their order.
        logprob_ids: tokens whose log-probabilities come with each generated one's, in place of the likeliest.
    """

    tokens: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    logprobs: int | None
    echo: bool
    prompt_end: int | None = None
    echo_from: int = 0
    salt: bytes = b""
    grammar: str = ""
    bad_words: tuple[tuple[int, ...], ...] = ()
    thinking: Thinking | None = None
    prediction: tuple[int, ...] = ()
    images: tuple[PreparedImage, ...] = ()
    logprob_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA weights that a model computes with, for the requests that ask for them.

    Args:
        id: from 1; never another's in the life of the server, whatever its name: what is cached goes by it.
        path: of its folder.
        digest: what tells its files from others', as they were when it was given.
    """

    id: int
    path: str
    digest: str


class Urgency(enum.Enum):
    """How soon whoever reads a request's events needs those that only bring a token. An engine may tell them sooner."""

    NOW = "now"  # with the step that computed them: what they are decides how it goes on
    SOON = "soon"  # a client looks on
    END = "end"  # with the last: nothing is shown before


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can run.

    Args:
        request_id: ours, never the client's; unique for its engine, and used for ``abort``.
        sequences: in the order of the specs.
        tenant: who asks. Tenants take turns, and none can fill the queue; empty = anybody, with all of the queue to fill.
        weight: the tenant's turns for every one of a tenant with weight 1; 0 = it is computed only while nothing else is to be done.
        stop_tokens: control token -> the stop string that is its text; for the text side, which ends the choice there.
        adapter: for an engine that has room for such; ``None`` = the model by itself.
        urgency: see ``Urgency``.
        shown: its events are shown as they come. Else none is before the last: where equal requests give equal bytes, an engine that failed
            may compute it once more, and whoever reads its events does not notice.
    """

    request_id: int
    sequences: tuple[PreparedSequence, ...]
    _: KW_ONLY
    tenant: str = ""
    weight: int = 1
    stop_tokens: Mapping[int, str] = field(default_factory=dict)
    adapter: Adapter | None = None
    urgency: Urgency = Urgency.NOW
    shown: bool = True
