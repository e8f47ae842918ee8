"""The boundary between the service and an engine: six verbs and what the engine can do.

Tokens cross it, never provider JSON. Engine ids are ours, never the client's.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quintet.events import TokenEvent
from quintet.request import Guide, Prompt, Reasoning, Sampling
from quintet.thinking import Thinking


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """One prompt × sample, before tokenising. The position in the list is the ``seq`` of its events.

    Args:
        prompt: text or token ids.
        max_tokens: ``None`` = to the end of the context.
        sampling: with the seed of *this* choice.
        logprobs: alternatives per token; ``None`` = no log-probabilities.
        echo: the prompt's tokens come first as events with ``prompt=True`` (with log-probabilities if asked for).
        echo_last: only so many of its last tokens; ``None`` = all.
        suffix: text after the completion: the prompt becomes the model's fill-in-the-middle form.
        truncate: lower ``max_tokens`` to what fits the context instead of refusing.
        guide: what the output must conform to.
        cache_salt: sequences share cached prefixes only within equal salts.
        reasoning: how long the model may think; ``None`` = as it likes.
    """

    prompt: Prompt
    max_tokens: int | None
    sampling: Sampling
    logprobs: int | None
    echo: bool
    echo_last: int | None = None
    suffix: str = ""
    truncate: bool = False
    guide: Guide | None = None
    cache_salt: str = ""
    reasoning: Reasoning | None = None


@dataclass(frozen=True, slots=True)
class PreparedSequence:
    """A sequence that can run: ids in range, length checked, ``max_tokens`` resolved.

    Args:
        prompt_end: the client's own prompt ends before this token; ``None`` = with the last. What a backend puts before the prompt's
            first token has no text.
        echo_from: with ``echo``, the first token that comes back; the last one is the one before ``prompt_end``.
        salt: of the cached prefixes it may use, at most 64 bytes.
        grammar: what the output must conform to, checked and in the engine's own notation; empty = anything.
        bad_words: ``sampling.bad_words`` as token sequences; the last token of one is never drawn after the others.
        thinking: where and how much it may think; ``None`` = nothing in its text counts as thinking.
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can run.

    Args:
        request_id: the backend's own id, used for ``abort``.
        sequences: in the order of the specs.
        tenant: as in ``prepare``.
    """

    request_id: int
    sequences: tuple[PreparedSequence, ...]
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine behind this boundary can do; the service checks requests against it.

    Args:
        model: the public model name.
        context: most tokens of prompt plus completion.
        vocab: width of the logits; every token id is below it.
        pieces: the bytes of each token id (empty for control tokens).
        max_logprobs: most alternatives per token.
        max_sequences: most sequences of one request (prompts × n).
        fingerprint: equal fingerprint and seed mean equal bytes.
    """

    model: str
    context: int
    vocab: int
    pieces: Sequence[bytes]
    max_logprobs: int
    max_sequences: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Ids of a model's fill-in-the-middle tokens.

    Args:
        repo, separator: for prompts over several files; ``None`` = it has none.
        first: what the tokenizer puts before a text; ``None`` = nothing.
        suffix_first: the text after the gap goes before the text before it.
    """

    prefix: int
    suffix: int
    middle: int
    repo: int | None = None
    separator: int | None = None
    first: int | None = None
    suffix_first: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What a client needs to know to prepare prompts by itself.

    Args:
        eos, bos, pad: texts of the model's own tokens; empty = it has none.
        chat_template: in Jinja; empty = the model has none.
        fim: ``None`` = the model cannot fill in the middle.
    """

    eos: str = ""
    bos: str = ""
    pad: str = ""
    chat_template: str = ""
    fim: FimTokens | None = None


class State(enum.Enum):
    """The engine's condition, told by its progress, never by an open port."""

    LOADING = "loading"
    READY = "ready"
    STALLED = "stalled"  # work waits and no step finished lately
    DRAINING = "draining"  # what was taken is finished, and nothing else is taken
    DEAD = "dead"
    CLOSED = "closed"


class Counts(NamedTuple):
    """What an engine has done; none of it ever goes down, whatever becomes of the engine.

    Args:
        steps: engine steps finished.
        tokens: computed in them.
        prefilled: of these, in prefill; what the prefix cache or a fork spared is not among them.
        preempted: times that a sequence lost its pages to others; it is computed again later.
        queried, found: prompt tokens looked for in the prefix cache, and found there.
        drafts, drafted, accepted: times that tokens were drafted for a sequence, how many, and how many it drew too.
    """

    steps: int = 0
    tokens: int = 0
    prefilled: int = 0
    preempted: int = 0
    queried: int = 0
    found: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


class Pages(NamedTuple):
    """The KV cache now.

    Args:
        total: pages that exist.
        size: tokens of a page.
        used: pages that sequences hold.
        cached: pages that nobody holds, but whose contents can be found again; free as soon as a page is wanted.
    """

    total: int = 0
    size: int = 0
    used: int = 0
    cached: int = 0


BATCH_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the classes in which ``Health.batches`` counts steps; beyond the last there is one more."""


@dataclass(frozen=True, slots=True)
class Health:
    """A truthful snapshot.

    Args:
        progress: share of loading done, 0 to 1.
        running: sequences in the batch.
        waiting: sequences in the queue.
        batches: steps by the number of tokens that they computed, see ``BATCH_TOKENS``.
    """

    state: State
    progress: float = 1.0
    running: int = 0
    waiting: int = 0
    counts: Counts = field(default_factory=Counts)
    pages: Pages = field(default_factory=Pages)
    batches: Sequence[int] = (0,) * (len(BATCH_TOKENS) + 1)


class Backend(Protocol):
    """Six verbs. All are called on one event loop."""

    @property
    def capabilities(self) -> Capabilities:
        """Valid once the state is ``READY``."""
        ...

    @property
    def tokenizer(self) -> TokenizerInfo:
        """Raises ``Loading`` before the state is ``READY``."""
        ...

    async def tokenize(self, text: str, add_special: bool, quoted: bool = False) -> Sequence[int]:
        """The token ids of a text; special-token texts are recognised.

        Args:
            add_special: with the beginning- and end-of-sequence tokens that the model's metadata asks for, as ``prepare`` does it.
            quoted: they are not recognised, if they are control tokens', and none are added.

        Raises:
            Loading, Overloaded, EngineFailed: the model is not there.
        """
        ...

    async def prepare(self, specs: Sequence[SequenceSpec], tenant: str = "") -> Prepared:
        """Tokenise and check everything that can be refused, before the status line is sent.

        Does not start work and holds nothing: a ``Prepared`` may simply be dropped.

        Args:
            tenant: who asks. Tenants take turns, and none can fill the queue; empty = anybody, with all of the queue to fill.

        Raises:
            BadRequest: a token id out of range (``param`` = ``prompt``), an empty prompt, too many sequences, a guide
                that cannot be compiled.
            Unsupported: a suffix on a model without fill-in-the-middle tokens, reasoning on a model that does not reason.
            PromptTooLong: the prompt, or the prompt plus ``max_tokens``, exceed the context.
            Overloaded: the waiting queue is full.
            TooManyRequests: the tenant's share of it is.
            Loading: the model is not ready.
            EngineFailed: the engine is dead.
        """
        ...

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        """Start the work now; iterate over its events, one batch per engine step.

        Each sequence gets exactly one event with ``finish`` set, and nothing after it. The iterator ends after the last
        sequence's terminal event. An engine failure is a terminal event with ``finish=ERROR``, never an exception.
        Closing the iterator early does not abort: call ``abort``.
        """
        ...

    def abort(self, request_id: int, seq: int | None = None) -> None:
        """Stop one sequence, or all of a request. Idempotent, never raises, safe for ended or unknown ids.

        The terminal event (``finish=ABORT``) still arrives if the sequence had not ended.
        """
        ...

    def health(self) -> Health:
        """The engine's condition; never blocks."""
        ...

    async def close(self) -> None:
        """End all work (terminal events with ``finish=ABORT``) and free everything. Idempotent."""
        ...
