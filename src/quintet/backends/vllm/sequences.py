"""A request's sequences on their way through vLLM, and what becomes of its outputs: rows of events. Plain code over values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from quintet.backends.native.core.types import Outcome
from quintet.backends.native.schedule.emit import REFUSED, refusal
from quintet.backends.native.schedule.plan import Top
from quintet.backends.native.wire.messages import EventRow, Row, Submit, TokenRow
from quintet.backends.vllm.wire import Choose, Refused
from quintet.events import Blame, Finish
from quintet.inputs.sequence import Adapter, PreparedSequence
from quintet.request import Sampling

MOST_ENDS = 64
"""Tokens that vLLM is told to stop after: some of its workers raise above 128. After any others it is stopped."""

BROKEN = "The engine could not choose a token."
Rows = list[Row]


@dataclass(slots=True, eq=False)
class Group:
    """Sequences of a request with the same prompt, which is echoed once for all of them.

    Args:
        submitted: when the request came, in seconds.
        echo: what of the prompt is echoed, from and to before; empty = nothing.
        leader: it has the echo's log-probabilities computed; the others begin when they are there.
        followers: they wait for that.
        adapter: see ``Submit``.
        places: where its images are.
    """

    tenant: str
    weight: int
    submitted: float
    echo: range
    leader: VllmSequence | None = None
    followers: list[VllmSequence] = field(default_factory=list)
    adapter: Adapter | None = None
    places: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class VllmSequence:
    """One sample of one prompt.

    Args:
        index: its number inside the request.
        key: see ``Choose``; 0 = it has not started.
        ended: its terminal event was made.
    """

    request_id: int
    index: int
    group: Group
    asked: PreparedSequence
    key: int = 0
    generated: int = 0
    ended: bool = False
    cached: int = 0
    waited: float = 0.0

    @property
    def scores_prompt(self) -> bool:
        """It is the one that has the echoed tokens' log-probabilities computed."""
        return self.group.leader is self and self.asked.logprobs is not None and len(self.group.echo) > 0

    @property
    def computes(self) -> bool:
        """vLLM has something to do for it."""
        return self.asked.max_tokens > 0 or self.scores_prompt

    def choose(self) -> Choose:
        """How its tokens are chosen. Nothing is penalised for what stands where an image is."""
        tokens = self.asked.tokens
        if self.asked.images:
            tokens = tuple(token for at, token in enumerate(tokens) if at not in self.group.places)
        return Choose(self.key, len(self.asked.tokens), replace(self.asked, tokens=tokens, images=(), salt=b"", prediction=()))

    def fills(self, context: int) -> bool:
        """Its prompt is scored and leaves no place for the token that vLLM computes after every prompt: ``choose_last`` then."""
        tokens = self.asked.tokens
        return self.asked.max_tokens == 0 and 1 < context <= len(tokens) and len(tokens) - 1 not in self.group.places

    def choose_last(self) -> Choose:
        """The prompt's last token is what comes after the others, so that its log-probability is that of a token chosen."""
        *before, last = self.asked.tokens
        sampling = Sampling(temperature=0.0, top_p=1.0, seed=0, allowed_token_ids=(last,))
        return Choose(self.key, len(before), PreparedSequence(tuple(before), 1, sampling, None, echo=False))

    def ends(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Tokens that are its last. What a guide governs is complete where it lets an end-of-sequence token come."""
        own = self.asked.sampling
        return frozenset(own.stop_token_ids) | (frozenset() if own.ignore_eos and not self.asked.grammar else eos_ids)

    def echo(self, scored: tuple[tuple[float, Top], ...]) -> Rows:
        """The echoed part of the prompt, once for its group.

        Args:
            scored: of each token but the first; empty = without log-probabilities.
        """
        tokens, count = self.asked.tokens, self.asked.logprobs or 0
        rows: Rows = []
        for at in self.group.echo:
            own, top = scored[at - 1] if scored and at and at not in self.group.places else (None, ())
            rows.append(EventRow(self.index, tokens[at], own, top[:count], True, waited=self._waited()))
        return rows

    def take(self, tokens: tuple[int, ...], scored: tuple[tuple[float, Top], ...], ends: frozenset[int], refused: Refused | None) -> Rows:
        """Its next tokens, up to its end, which may be before theirs.

        Args:
            scored: of each token, or empty.
            refused: at its position there is no token.
        """
        rows: Rows = []
        for at, token in enumerate(tokens):
            if self.ended:
                break
            if refused is not None and refused.position <= len(self.asked.tokens) + self.generated:
                outcome = Outcome(refused.outcome)
                why = refusal(outcome, self.asked) if outcome in REFUSED else (BROKEN, Blame.SERVER)
                rows.append(self.end(Finish.ERROR, *why))
                break
            self.generated += 1
            finish = None
            if token in ends:
                finish = Finish.EOS
            elif self.generated >= self.asked.max_tokens:
                finish = Finish.LENGTH
            own, top = scored[at] if scored else (None, ())
            waited = self._waited()
            if finish is None and own is None and not waited:
                rows.append(TokenRow(self.index, token))
                continue
            self.ended = finish is not None
            cached = self.cached if finish else 0
            rows.append(EventRow(self.index, token, own, top[: self.asked.logprobs], False, finish, cached, "", waited))
        return rows

    def end(self, finish: Finish, error: str = "", blame: Blame = Blame.SERVER) -> EventRow:
        """A terminal event without a token."""
        self.ended = True
        computed = len(self.asked.tokens) if self.generated else self.cached
        return EventRow(
            self.index, -1, finish=finish, cached_tokens=self.cached, error=error, waited=self._waited(), blame=blame, computed=computed
        )

    def _waited(self) -> float:
        """For the first of its events alone."""
        waited, self.waited = self.waited, 0.0
        return waited


def sequences_of(submit: Submit) -> list[VllmSequence]:
    """A request's, with those of the same prompt and echo in a group."""
    groups: dict[object, Group] = {}
    made = []
    for index, asked in enumerate(submit.sequences()):
        end = len(asked.tokens) if asked.prompt_end is None else asked.prompt_end
        echo = range(asked.echo_from, end) if asked.echo else range(0)
        alike = (asked.tokens, tuple(image.digest for image in asked.images), echo, asked.logprobs) if asked.echo else index
        places = frozenset(at for image in asked.images for first, count in image.places for at in range(first, first + count))
        group = groups.setdefault(alike, Group(submit.tenant, submit.weight, submit.at, echo, adapter=submit.adapter, places=places))
        sequence = VllmSequence(submit.request_id, index, group, asked)
        if group.leader is None:
            group.leader = sequence
        else:
            group.followers.append(sequence)
        made.append(sequence)
    return made
