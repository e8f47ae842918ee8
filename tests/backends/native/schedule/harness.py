"""The scheduler on the toy model, without threads or compiled core, and what each sequence must give: what it gives alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from tests.backends.native.schedule.draft_models import Costs, DraftRunner
from tests.backends.native.schedule.plain_samplers import PlainSamplers

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import I32, U8, U64, Batch, Meanwhile, Runner, Samplers
from quintet.backends.native.schedule.emit import Emitter
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.pages import BlockTables, PagePool
from quintet.backends.native.schedule.plan import Kind, Plan
from quintet.backends.native.schedule.saved import Saved
from quintet.backends.native.schedule.scheduler import Scheduler
from quintet.backends.native.schedule.sequence import Sequence as Sample
from quintet.backends.native.schedule.sequence import State
from quintet.backends.native.schedule.speculation import Draft, Speculation
from quintet.backends.native.wire.messages import Events
from quintet.backends.native.worker.drafting import Drafting, draft_model
from quintet.backends.native.worker.step import Stepper
from quintet.backends.toy import EOS, ToyRunner, ToyTokenizer
from quintet.config import EngineConfig
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

PIECES = ToyTokenizer().pieces


def prepared(
    prompt: Sequence[int] | bytes,
    max_tokens: int = 8,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    logprobs: int | None = None,
    echo: bool = False,
    **controls: Any,
) -> PreparedSequence:
    """A sequence that can run; ``controls`` are more of ``Sampling``'s."""
    return PreparedSequence(tuple(prompt), max_tokens, Sampling(temperature, top_p, seed, **controls), logprobs, echo)


PLAIN = PlainSamplers()


class WindowedRunner(ToyRunner):
    """The toy, of whose numbers each depends on a window of tokens only.

    Args:
        window: so many, itself the last.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self._window = window

    @property
    def window(self) -> int:
        return self._window

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        """As the toy; pages that no token of the batch sees may be gone."""
        unseen = np.maximum(0, batch.starts - self._window + 1) // PAGE
        seen = np.arange(batch.tables.shape[1]) >= unseen[:, None]
        return super().forward(replace(batch, tables=np.where(seen, batch.tables, 0)), meanwhile)

    def _prefix_hashes(self, tables: I32, length: int) -> U64:
        """Of the last tokens alone: each is computed by itself from what its pages hold, so a page that is wrong is seen."""
        places = np.arange(length)
        tokens = self._pages[tables[:, : -(-length // PAGE)] % len(self._pages)].reshape(len(tables), -1)[:, :length].astype(np.uint64)
        weighed = (tokens + np.uint64(1)) * (places.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(0x9E3779B97F4A7C15))
        sums = np.cumsum(weighed, axis=1, dtype=np.uint64)
        sums[:, self._window :] -= sums[:, : -self._window].copy()
        return sums * np.uint64(0xBF58476D1CE4E5B9)


class ForgetfulPool(PagePool):
    """Finds no page again."""

    def publish(self, page: int, digest: bytes) -> None:
        """Nothing."""


class UncachedKv(KvCache):
    """Computes everything: nobody waits for a page that another computes."""

    def next_page(self, seq: Sample) -> bytes:
        """None."""
        return b""


class Simulation:
    """An engine without its thread; ``events[request, seq]`` collects what came out.

    Args:
        caching: full pages can be found again.
        window: of a ``WindowedRunner``; 0 = the toy itself.
        saved: where its full pages are kept.
        draft: a draft model, which drafts unless there is other ``speculation``.
        costs: what steps take; of the draft model too.
    """

    def __init__(
        self,
        *,
        pages: int = 4096,
        batch_tokens: int = 64,
        max_running: int = 16,
        max_waiting: int = 1024,
        caching: bool = True,
        speculation: Speculation | None = None,
        samplers: Samplers = PLAIN,
        window: int = 0,
        saved: Callable[[Runner], Saved] | None = None,
        draft: DraftRunner | None = None,
        costs: Costs | None = None,
    ) -> None:
        self.config = EngineConfig(batch_tokens=batch_tokens, max_running=max_running, max_waiting=max_waiting)
        self.runner = WindowedRunner(window) if window else ToyRunner()
        self.runner.allocate(pages)
        self.pool = (PagePool if caching else ForgetfulPool)(pages)
        tables = BlockTables(
            min(max_running, batch_tokens), self.runner.context // PAGE if window else min(pages, self.runner.context // PAGE)
        )
        emitter = Emitter(ToyTokenizer().eos_ids)
        self.kv = (KvCache if caching else UncachedKv)(
            self.pool, tables, self.runner.row_bytes, window, batch_tokens, saved(self.runner) if saved else None
        )
        self.stepper, self.costs = Stepper(self.runner, tables, samplers), costs or Costs()
        self.drafting = None
        if draft is not None:
            draft.allocate(pages)
            model = draft_model(draft, self.runner, pages, lambda: self.costs.now)
            self.policy, self.draft_pages = model.policy, model.pages
            speculation = speculation or Speculation(frozenset({EOS}), model=model)
            settings = samplers, self.stepper.sampler, frozenset({EOS}), lambda: self.costs.now
            self.drafting = Drafting(draft, model, self.runner.vocab, *settings)
            for rows in (1, PAGE):
                self.policy.target.learn(rows, self.costs.target * (1 + self.costs.row * (rows - 1)))
        self.scheduler = Scheduler(self.config, self.kv, emitter, speculation)
        self.events: dict[tuple[int, int], list[TokenEvent]] = {}
        self.alike: dict[tuple[int, int], list[int]] = {}  # the samples of a prompt, which have its echo in common
        self.last_plan = Plan()
        self.now = 0.0  # one second per step

    def add(self, request: int, *sequences: PreparedSequence, salt: bytes = b"", tenant: str = "", weight: int = 1) -> None:
        """Queue a request."""
        self.scheduler.add(request, [replace(sequence, salt=salt) for sequence in sequences], self.now, tenant, weight)
        self.events |= {(request, index): [] for index in range(len(sequences))}
        keys = [(one.tokens, one.echo, one.echo_from, one.prompt_end, one.logprobs, one.max_tokens == 0) for one in sequences]
        for index, key in enumerate(keys):
            self.alike[request, index] = [other for other, its in enumerate(keys) if its == key]

    def abort(self, request: int, index: int | None = None) -> None:
        """End one sequence or a whole request."""
        self._take(self.scheduler.abort(request, index))

    def step(self, *aborts_between: tuple[int, int | None]) -> None:
        """One step, with the aborts coming in while it runs; checks the plan and all invariants."""
        self.now += 1.0
        plan = self.last_plan = self.scheduler.plan(self.now)
        self.check_plan(plan)
        if self.drafting:
            self.drafting.fill(plan)
            self.check_plan(plan)
        self.stepper.copy(plan.copies)
        results = self.stepper.run(plan)
        begin = self.costs.now
        self.costs.spend(plan.tokens)
        for request, index in aborts_between:
            self.abort(request, index)
        self._take(self.scheduler.apply(plan, results))
        self.scheduler.check()
        if self.drafting:
            self.drafting.learn(plan, self.costs.now - begin)
            self.drafting.check()

    def check_plan(self, plan: Plan) -> None:
        """The budget holds, for tokens computed and for rows scored, and the oldest sequence takes part, and each that can decode."""
        assert sum(len(segment.tokens) for segment in plan.segments) == plan.tokens <= self.config.batch_tokens
        assert sum(len(segment.score.targets) for segment in plan.segments if segment.score) <= self.config.batch_tokens
        assert len(plan.segments) == len(set(plan.sequences)) <= self.config.max_running
        for segment in plan.segments:
            assert segment.draws <= max(segment.wanted, segment.kind is Kind.FORK), "it draws from a row that nobody computes"
            if segment.kind is Kind.DECODE:
                assert len(segment.tokens) == segment.wanted == segment.draws >= 1
                assert len(segment.seq.generated) + len(segment.draft) < segment.seq.max_tokens, "more is drafted than could be drawn"
        assert plan.segments or plan.restoring, "a step must do something"
        running = self.scheduler._queues.running
        left_out = [seq for seq in running if not seq.late and seq not in plan.sequences]
        assert not any(seq is running[0] or seq.state is State.DECODE for seq in left_out), "the oldest must go on, and whoever can decode"

    def finish(self, limit: int = 20_000) -> None:
        """Run until nothing is left."""
        for _ in range(limit):
            if not self.scheduler.live:
                break
            self.step()
        assert not self.scheduler.live, "starved"

    def _take(self, events: Events) -> None:
        for request, batch in events.items():
            for event in (row.event(PIECES) for row in batch):
                for seq in self.alike[request, event.seq] if event.prompt else [event.seq]:
                    queue = self.events[request, seq]
                    if event.prompt and queue and queue[-1].finish is not None:
                        continue  # it is still for the other samples
                    assert not queue or queue[-1].finish is None, "an event after the terminal one"
                    queue.append(event)


def run_all(simulation: Simulation) -> int:
    """Run to the end; tokens that went through the model."""
    tokens = 0
    while simulation.scheduler.live:
        simulation.step()
        tokens += simulation.last_plan.tokens
    return tokens


def told(events: Sequence[TokenEvent]) -> list[tuple[Any, ...]]:
    """What a client can see of events, without how they were cached."""
    return [(event.token, event.piece, event.logprob, event.top, event.prompt, event.finish, event.error) for event in events]


class Oracle(Speculation):
    """Drafts that are right as far as is asked, which no real source is so often, and in busy steps too.

    Args:
        lengths: of the drafts, in turn; 0 = none.
        right: tokens of each that are as the sequence alone draws them, in turn; the next one is not.
    """

    def __init__(
        self,
        sequences: dict[tuple[int, int], PreparedSequence],
        lengths: Sequence[int],
        right: Sequence[int],
        samplers: Samplers = PLAIN,
        window: int = 0,
    ) -> None:
        super().__init__(frozenset({EOS}))
        self._window = window
        self._sequences = sequences
        self._samplers = samplers
        self._lengths, self._right = itertools.cycle(lengths), itertools.cycle(right)

    def drafts(self, decoding: Sequence[Sample], most_rows: int, *, busy: bool) -> list[Draft]:
        share = (most_rows - busy) // max(len(decoding), 1) - 1
        made = [Draft(self._made(seq, min(share, seq.max_tokens - len(seq.generated) - 1))) for seq in decoding]
        return made if any(draft.tokens for draft in made) else []

    def _made(self, seq: Sample, most: int) -> list[int]:
        text = [
            event[0]
            for event in alone(self._sequences[seq.request_id, seq.index], self._samplers, self._window)
            if not event[4] and (event[0] != EOS or seq.sampling.ignore_eos)
        ]
        future = [*text[len(seq.generated) :], *[32] * PAGE * 3][: max(0, min(next(self._lengths), most))]
        for wrong in range(next(self._right), len(future)):
            future[wrong] = (future[wrong] + 1) % EOS
        return future


def alone(sequence: PreparedSequence, samplers: Samplers = PLAIN, window: int = 0) -> tuple[tuple[Any, ...], ...]:
    """What the sequence gives with the engine to itself, the whole prompt in one step and no cache."""
    return alone_cached(sequence, cast(Hashable, samplers), window)


@functools.lru_cache(maxsize=4096)
def alone_cached(sequence: PreparedSequence, samplers: Any, window: int) -> tuple[tuple[Any, ...], ...]:
    simulation = Simulation(batch_tokens=8192, max_running=1, caching=False, samplers=samplers, window=window)
    simulation.add(0, sequence)
    simulation.finish()
    return tuple(told(simulation.events[0, 0]))


def assert_as_alone(events: Sequence[TokenEvent], sequence: PreparedSequence, samplers: Samplers = PLAIN, window: int = 0) -> None:
    """The events are those of the sequence alone, or, aborted, the first of them."""
    expected = alone(sequence, samplers, window)
    got = told(events)
    if events[-1].finish is Finish.ABORT:
        got.pop()
        expected = expected[: len(got)]
    assert tuple(got) == expected
