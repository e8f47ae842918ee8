"""What flows back: token events from a backend, choice events from the service.

JSON bodies are a fold over the choice events, stream chunks a map over them; there is no second path.
"""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from quintet.errors import DeadlineExceeded, Overloaded, QuintetError, RequestError, TooManyRequests


class Finish(enum.Enum):
    """Why a sequence or a choice ended; each dialect maps it by a total table."""

    EOS = "eos"  # the model's end-of-sequence token
    STOP = "stop"  # a stop string of the request
    LENGTH = "length"  # max_tokens, or the end of the context
    ABORT = "abort"  # cancelled: client gone, deadline, shutdown
    ERROR = "error"  # failed; the reason travels in Failed
    FILTER = "content_filter"  # what came next was judged unsafe


class Blame(enum.Enum):
    """Whose fault a failure is, and so what its client should do."""

    SERVER = "server"  # the engine broke
    NUMBERS = "numbers"  # the same: the model's values are not finite, for this request or for all
    REQUEST = "request"  # it asks for what cannot be: sent again, it fails again
    LOAD = "load"  # there is too much to do: sent again later, it may succeed
    TIME = "time"  # its time was up: sent again, it takes as long


class DraftCounts(NamedTuple):
    """What became of the drafts of speculation: how many there were, and how many of their tokens were accepted, and rejected.

    ``tried`` and ``right`` are the same by position: in how many drafts it was, and was accepted.
    """

    made: int = 0
    accepted: int = 0
    rejected: int = 0
    tried: tuple[int, ...] = ()
    right: tuple[int, ...] = ()

    @classmethod
    def of(cls, length: int, accepted: int) -> DraftCounts:
        """Of one draft."""
        return cls(1, accepted, length - accepted, (1,) * length, (1,) * accepted)

    def plus(self, other: DraftCounts) -> DraftCounts:
        """The sums."""
        tried = tuple(map(sum, zip_longest(self.tried, other.tried, fillvalue=0)))
        right = tuple(map(sum, zip_longest(self.right, other.right, fillvalue=0)))
        return DraftCounts(self.made + other.made, self.accepted + other.accepted, self.rejected + other.rejected, tried, right)


NO_DRAFTS = DraftCounts()


class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """One token of one sequence, as it crosses the backend boundary.

    Args:
        seq: index of the sequence inside its request, ``prompt_index * n + sample_index``.
        token: token id; ``-1`` on a terminal event that carries no token (``max_tokens`` 0, abort, error).
        piece: the token's bytes (may be an incomplete UTF-8 sequence; empty for end-of-sequence and control tokens).
        logprob: the model's own natural-log probability, before bias, penalties and temperature;
            ``None`` for the first prompt token (nothing precedes it) and when log-probabilities are off.
        top: the most likely ``(token id, logprob)`` at this position, best first; empty when not asked for.
        prompt: this is a token of the prompt (echo), not a generated one; ``seq`` is the first of the sequences that have this prompt.
        finish: set on the last event of the sequence, exactly once.
        cached_tokens: set on the sequence's terminal event: prompt tokens that came from the prefix cache.
        waited: set on the sequence's first event: seconds between submission and the first step that computed it.
        error: with ``finish=ERROR``: a fixed, client-safe sentence.
        drafts: set on the sequence's terminal event.
        blame: with ``finish=ERROR``.
        computed: set on a terminal event that carries no token: tokens of the prompt that were computed, or cached, by then.
    """

    seq: int
    token: int
    piece: bytes = b""
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    prompt: bool = False
    finish: Finish | None = None
    cached_tokens: int = 0
    error: str = ""
    waited: float = 0.0
    drafts: DraftCounts = NO_DRAFTS
    blame: Blame = Blame.SERVER
    computed: int = 0

    def with_top(self, most: int | None) -> TokenEvent:
        """The same with no more than so many alternatives; ``None`` = nor with its own log-probability."""
        if most is None:
            return self if self.logprob is None else msgspec.structs.replace(self, logprob=None, top=())
        return self if len(self.top) <= most else msgspec.structs.replace(self, top=self.top[:most])


class TokenText(msgspec.Struct, frozen=True, gc=False):
    """A token as a client sees it.

    Args:
        token: token id.
        text: the token's own text; bytes that are not whole characters are decoded as the dialects document.
        raw: the token's bytes.
        logprob: as in ``TokenEvent``.
        top: ``(token id, label, logprob)`` best first, the sampled token always among them.
        offset: characters (code points) from the start of the prompt text to this token's text.
        name: what lists call it, where that is not its text: a control token has none.
        whole: all of it is in the returned text; else a stop string cut it, and its id stands for more than is shown.
        top_raw: the bytes of each of ``top``; of a control token those that stand for it in a prompt, but ``raw`` of the token itself.
    """

    token: int
    text: str
    raw: bytes
    logprob: float | None
    top: tuple[tuple[int, str, float], ...]
    offset: int
    name: str = ""
    whole: bool = True
    top_raw: tuple[bytes, ...] = ()

    @property
    def label(self) -> str:
        """What lists of log-probabilities call it."""
        return self.name or self.text

    def with_text(self, text: str) -> TokenText:
        """The same with another text."""
        return msgspec.structs.replace(self, text=text)


class ChoiceDelta(msgspec.Struct, frozen=True, gc=False):
    """Text that is final and may be sent, with the tokens that it completes.

    Args:
        index: the choice, ``prompt_index * n + sample_index``.
        text: never holds a fragment of a stop string or half a character.
        tokens: filled only when the request asked for log-probabilities, or for ids.
        prompt: the ids of the choice's prompt, on its first delta, if the request asked for them; that delta has no text but the echo.
        scores: the log-probabilities of that prompt's tokens, likewise.
    """

    index: int
    text: str
    tokens: tuple[TokenText, ...] = ()
    prompt: tuple[int, ...] | None = None
    scores: tuple[TokenText, ...] | None = None

    def numbered(self, index: int) -> ChoiceDelta:
        """The same of another choice."""
        return msgspec.structs.replace(self, index=index)


@dataclass(frozen=True, slots=True)
class Flagged:
    """A text was judged unsafe.

    Args:
        model: that judged it, by the name that the client used.
        categories: of what is unsafe, as (code, name), in the model's own terms; the name may be empty, and there may be none.
    """

    model: str
    categories: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> str:
        """For people: who judged it, and why."""
        why = ", ".join(f"{code} ({name})" if name else code for code, name in self.categories)
        return f"judged unsafe by {self.model}{f': {why}' if why else ''}"


class ChoiceDone(msgspec.Struct, frozen=True, gc=False):
    """A choice ended; nothing follows for this index.

    Args:
        stop: the stop string that matched, when ``finish`` is ``STOP`` and one did.
        seed: the seed this choice drew with.
        flagged: what was found in the text that is not shown, when ``finish`` is ``FILTER``.
        stop_id: the token that ended it, if it is one that the request named.
        tokens: that the choice has, also those of which nothing is shown.
    """

    index: int
    finish: Finish
    stop: str = ""
    seed: int = 0
    flagged: Flagged | None = None
    stop_id: int | None = None
    tokens: int = 0

    def numbered(self, index: int) -> ChoiceDone:
        """The same of another choice."""
        return msgspec.structs.replace(self, index=index)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of the whole request; a prompt counts once, however many samples it has.

    Args:
        cached_tokens: of the prompt, from the prefix cache.
        reasoning_tokens: of the completion, thinking.
        accepted_tokens, rejected_tokens: of the client's prediction, those that the completion has, and has not.
    """

    prompt_tokens: int
    completion_tokens: int
    _: KW_ONLY
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_tokens: int = 0
    rejected_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where a request's time went, in seconds.

    Args:
        queue: from submission until its first sequence was computed.
        prompt: from then to the first generated token.
        completion: from the first generated token to the last.
        total: from arrival to the last token.
        tokenizer_queue, tokenizer: before submission: waiting to have the prompts tokenised, and having it done.
        place: of a sample of a computed prompt until it had a place in the batch; the longest.
    """

    queue: float = 0.0
    prompt: float = 0.0
    completion: float = 0.0
    total: float = 0.0
    tokenizer_queue: float = 0.0
    tokenizer: float = 0.0
    place: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that went well: every choice is done.

    Args:
        drafts: of all choices.
    """

    usage: Usage
    timing: Timing = Timing()
    drafts: DraftCounts = NO_DRAFTS


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that broke after its status line was sent.

    Args:
        message: fixed, client-safe text; never a traceback, a path or user data.
    """

    message: str
    blame: Blame = Blame.SERVER

    @classmethod
    def by(cls, error: QuintetError) -> Failed:
        """As what would have been raised before the status line was sent."""
        match error:
            case Overloaded() | TooManyRequests():
                return cls(str(error), Blame.LOAD)
            case RequestError():
                return cls(str(error), Blame.REQUEST)
            case DeadlineExceeded():
                return cls(str(error), Blame.TIME)
        return cls(str(error))


Event = ChoiceDelta | ChoiceDone | Finished | Failed
