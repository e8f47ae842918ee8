"""A sequence's life, and the prompt that several sequences of one request may share. Plain data and one table of states."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from quintet.backends.native.core.types import U8, Sampler
from quintet.backends.native.draft.drafter import Drafter
from quintet.backends.native.draft.thinking_budget import ThinkingBudget
from quintet.backends.native.schedule.images import PromptImages
from quintet.events import NO_DRAFTS, DraftCounts
from quintet.guides.matcher import Matcher
from quintet.request import Sampling
from quintet.thinking import Thinking


class State(enum.Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # holds no slot and no pages
    PREFILL = "prefill"  # its tokens so far are being computed (and its prompt echoed)
    DECODE = "decode"  # one token per step
    DONE = "done"  # its terminal event was emitted


class Action(enum.Enum):
    """What can happen to a sequence."""

    ADMIT = "admit"
    FORK = "fork"  # starts from pages that another sequence computed
    READY = "ready"  # everything before the next draw is computed
    PREEMPT = "preempt"
    END = "end"


TRANSITIONS: dict[State, dict[Action, State]] = {
    State.WAITING: {Action.ADMIT: State.PREFILL, Action.FORK: State.DECODE, Action.END: State.DONE},
    State.PREFILL: {Action.READY: State.DECODE, Action.PREEMPT: State.WAITING, Action.END: State.DONE},
    State.DECODE: {Action.PREEMPT: State.WAITING, Action.END: State.DONE},
    State.DONE: {},
}


class IllegalTransitionError(RuntimeError):
    """An action that the table does not allow in this state: a bug in the scheduler."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A computed prompt, kept for the sequences of its group that could not start yet.

    Args:
        pages: held once by the snapshot.
        row: final hidden row of the prompt's last token, uint8 [row_bytes].
        digests: of the prompt's full pages.
    """

    pages: tuple[int, ...]
    row: U8
    digests: tuple[bytes, ...]


@dataclass(slots=True, eq=False)
class Group:
    """Sequences of one request with the same prompt: it is computed, scored and echoed once for all of them.

    Args:
        leader: the member that computes the prompt (queued or in PREFILL); ``None`` once it is computed.
        forks: members that wait for the leader, outside the queue.
        echo_from, prompt_end: see ``PreparedSequence``.
        echoed: prompt tokens emitted so far, for every member alike, or not to be emitted.
        salt: of the cached prefixes it may use, at most 64 bytes.
        tenant: who asks; tenants take turns, in proportion to their ``weight``. All that a tenant asks is in the background, or none is.
        submitted: when the request came.
        waited: from then to the first step that computed the prompt; 0 until that step.
        cached: prompt tokens that came from the prefix cache; ``None`` until that step.
        reached: prompt tokens that have been computed at least once, or cached.
        images: in the prompt; ``None`` = all of it is text.
        sampled: the member whose sampler was made last.
    """

    prompt: tuple[int, ...]
    echo: bool
    logprobs: int | None
    salt: bytes = b""
    submitted: float = 0.0
    members: list[Sequence] = field(default_factory=list, repr=False)
    leader: Sequence | None = field(default=None, repr=False)
    forks: list[Sequence] = field(default_factory=list, repr=False)
    snapshot: Snapshot | None = None
    echoed: int = 0
    waited: float = 0.0
    cached: int | None = None
    echo_from: int = 0
    prompt_end: int | None = None
    tenant: str = ""
    reached: int = 0
    weight: int = 1
    images: PromptImages | None = None
    sampled: Sequence | None = field(default=None, repr=False)
    _text: tuple[int, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.echoed = self.echo_from

    @property
    def background(self) -> bool:
        """It is computed only while nothing else is to be done."""
        return self.weight == 0

    @property
    def echo_left(self) -> int:
        """Prompt tokens still to be emitted."""
        end = len(self.prompt) if self.prompt_end is None else self.prompt_end
        return end - self.echoed if self.echo else 0

    @property
    def scoring(self) -> bool:
        """Prompt log-probabilities are still to be computed, so hidden rows of prompt tokens are wanted."""
        return self.logprobs is not None and self.echo_left > 0

    @property
    def text(self) -> tuple[int, ...]:
        """The prompt without its images: what penalties count and drafts look things up in."""
        if self.images is None:
            return self.prompt
        if self._text is None:  # each of its samples asks for it, many of them in one step
            self._text = self.images.without(self.prompt)
        return self._text

    @property
    def live(self) -> list[Sequence]:
        """Members that have not ended."""
        return [member for member in self.members if member.state is not State.DONE]

    @property
    def unstarted(self) -> list[Sequence]:
        """Members that wait and have not drawn a token."""
        return [member for member in self.members if member.state is State.WAITING and not member.generated]


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of one prompt.

    Args:
        index: its number inside the request.
        bad_words, logprob_ids: see ``PreparedSequence``.
        slot: its block table while PREFILL or DECODE, else -1.
        page: the last page of its table.
        gone: pages at the beginning of its table that were let go.
        computed: positions whose keys and values lie in its pages.
        published: full pages that were offered to the prefix cache.
        digests: of its full pages, as far as they were needed.
        restored: what was kept of its first pages is back in the cache.
        grammar, thinking, matcher: what it must conform to and how it may think, if anything, and where it stands in that; made like
            the sampler.
        sampler: made for its first draw, and kept whatever happens to its pages.
        held: the hidden row that it draws from as soon as its mask is there, uint8 [row_bytes]; its positions are computed.
        late: it waits for that mask, and sits out.
        slow: its masks take long: nobody waits for them, and nothing is drafted for it.
        mask_s: processor time of its slow masks.
        foreseen: its guide may be asked, for drafts, what it allows at places to which the text has not come; not once that took long.
        prediction: see ``PreparedSequence``.
        drafter: made for its first draft.
        drafts: what became of its drafts.
        acceptance_rate: of the draft model's tokens, lately; ``None`` = it was not asked yet; 0 = it must not be.
    """

    request_id: int
    index: int
    group: Group
    max_tokens: int
    sampling: Sampling
    logprobs: int | None
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str = ""
    thinking: Thinking | None = None
    prediction: tuple[int, ...] = ()
    state: State = State.WAITING
    slot: int = -1
    page: int = -1
    gone: int = 0
    computed: int = 0
    published: int = 0
    generated: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    restored: bool = False
    sampler: Sampler | None = field(default=None, repr=False)
    matcher: Matcher | ThinkingBudget | None = field(default=None, repr=False)
    held: U8 | None = field(default=None, repr=False)
    late: bool = False
    slow: bool = False
    mask_s: float = 0.0
    foreseen: bool = True
    drafter: Drafter | None = field(default=None, repr=False)
    drafts: DraftCounts = NO_DRAFTS
    logprob_ids: tuple[int, ...] = ()
    acceptance_rate: float | None = None

    def advance(self, action: Action) -> None:
        """Change the state.

        Raises:
            IllegalTransitionError: the table has no such entry.
        """
        try:
            self.state = TRANSITIONS[self.state][action]
        except KeyError:
            raise IllegalTransitionError(f"{action.value} in state {self.state.value}") from None

    @property
    def guided(self) -> bool:
        """Not every token may come next."""
        return bool(self.grammar) or (self.thinking is not None and self.thinking.budget is not None)

    @property
    def length(self) -> int:
        """Tokens so far: prompt and generated. It is also the position, and the sampling counter, of the next draw."""
        return len(self.group.prompt) + len(self.generated)

    @property
    def goal(self) -> int:
        """Positions to compute before the sequence can draw, or, with ``max_tokens`` 0, before it is done."""
        if self.max_tokens:
            return self.length
        return self.group.echoed + self.group.echo_left - 1 if self.group.scoring else 0

    @property
    def remaining(self) -> int:
        """Steps' worth of tokens before the next draw: to compute or to echo, whichever is more."""
        return max(self.goal - self.computed, self.group.echo_left)

    def ends_with(self, token: int, eos_ids: frozenset[int]) -> bool:
        """The token is its last, whatever ``max_tokens``. What a guide governs is complete where it lets an end-of-sequence token come."""
        own = self.sampling
        return token in own.stop_token_ids or (token in eos_ids and not (own.ignore_eos and not self.grammar))

    def slice(self, start: int, stop: int) -> list[int]:
        """Token ids of the positions ``start`` to ``stop - 1``."""
        size = len(self.group.prompt)
        if stop <= size:
            return list(self.group.prompt[start:stop])
        return [*self.group.prompt[start:size], *self.generated[max(start - size, 0) : stop - size]]
