"""Continuous batching: who runs in each step, and what came of it. Plain code over values: no clock (time is an argument), threads or I/O.

A step is one pass of the model over a ragged batch. Sequences join and leave between steps, none waits for another to end (Orca), and a
prompt is computed in chunks beside those that decode (chunked prefill, as in Sarathi)::

    waiting --admit--> PREFILL --its prompt is computed--> DECODE --a token a step--> done
       ^                  |                                   |
       +---- preempt: pages run out; it is computed again ----+

    plan   (``planner``)    1. decode: one token each; where few do, those that are drafted after it (``speculation``)
                            2. admit waiting ones while slots and pages last, through the prefix cache (``kv``)
                            3. prefill shares what is left of ``batch_tokens``: at least half of it to the oldest, the rest to the shortest
                               first; less of it while something decodes, so that no reader sees a gap (``step_budget``)
    run    (``worker.step``), mostly begun before that: while it computes, the step before is applied, and it is planned (``overlap``)
    apply  (``applier``)    tokens to sequences, full pages to the prefix cache, events to clients (``emit``)

What it holds to, and where a reader of vLLM would stumble:

- Of prompts that go on alike only one is computed, the others take its pages over. Samples of one prompt fork from it (``groups``).
- Preemption is by recomputation, never by swapping: the newest running sequence gives its pages up and is computed again before anything
  of its tenant that waits. It draws at the same positions with the same seed, and no number depends on the batch, so clients cannot see it.
- The oldest running sequence is never preempted and nobody overtakes the head of the queue for lack of pages, so everything ends.
- Tenants take turns, in proportion to their weights (``waiting``). One that waits with nothing in the batch comes before those that have
  something there, and gets the place of a sequence of the one with most for its weight.
- Tenants in the background, such as batches, have steps only while nobody else has anything to compute: they are preempted as soon as
  somebody comes. Their own steps are short, since whoever comes waits for one of them.

Why, and what was measured: docs/decisions/0003-scheduling.md.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from quintet.backends.native.schedule.applier import Applier
from quintet.backends.native.schedule.emit import Emitter
from quintet.backends.native.schedule.images import Encodings
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.overlap import Expected, Overlap
from quintet.backends.native.schedule.plan import Plan, Results
from quintet.backends.native.schedule.planner import Planner
from quintet.backends.native.schedule.queues import Queues
from quintet.backends.native.schedule.speculation import Speculation
from quintet.backends.native.wire.messages import Events
from quintet.config import EngineConfig
from quintet.events import DraftCounts, Finish
from quintet.inputs.sequence import PreparedSequence


class Scheduler:
    """The engine's sequences.

    Args:
        kv: with at least ``config.running_limit`` block tables, as wide as the longest sequence.
        emitter: makes the events.
        speculation: makes the drafts; ``None`` = there are none.
        encodings: where the rows of images are; ``None`` = nowhere, for a model that sees none.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv: KvCache,
        emitter: Emitter,
        speculation: Speculation | None = None,
        encodings: Encodings | None = None,
    ) -> None:
        self._queues = Queues(kv, encodings or Encodings())
        self._planner = Planner(config, kv, self._queues, speculation)
        self._applier = Applier(kv, self._queues, emitter)
        self._overlap = Overlap(kv, self._queues, speculation, emitter.eos_ids)

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return self._queues.live

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._queues.running)

    @property
    def preempted(self) -> int:
        """See ``Counts``."""
        return self._queues.preempted

    @property
    def queried(self) -> int:
        """See ``Counts``."""
        return self._planner.queried

    @property
    def found(self) -> int:
        """See ``Counts``."""
        return self._planner.found

    @property
    def drafts(self) -> DraftCounts:
        """What became of all drafts."""
        return self._applier.drafts

    def add(self, request_id: int, prepared: Items[PreparedSequence], now: float, tenant: str = "", weight: int = 1) -> None:
        """Queue a tenant's request, which came at ``now`` (seconds).

        Args:
            weight: the tenant's turns for every one of a tenant with weight 1; 0 = it is in the background.
        """
        self._queues.add(request_id, prepared, now, tenant, weight)

    def abort(self, request_id: int, index: int | None = None) -> Events:
        """End one sequence of a request, or all; unknown and ended ones are ignored. Allowed between ``plan`` and ``apply`` too."""
        events: Events = {}
        for seq in self._queues.of(request_id):
            if index in (None, seq.index):
                self._applier.end(seq, Finish.ABORT, events)
        return events

    def learn(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long: the next ones are cut by it, see ``StepBudget``."""
        self._planner.learn(tokens, seconds)

    def plan(self, now: float) -> Plan:
        """What to do next, at ``now`` (seconds). Must be followed by ``apply`` or ``fail`` before the next ``plan``."""
        return self._planner.plan(now)

    def expect(self, plan: Plan) -> Expected | None:
        """What follows the last plan, which was not applied yet; ``None``: that is not known. See ``overlap``."""
        return self._overlap.expect(plan)

    def expect_after(self, expected: Expected) -> Expected | None:
        """Likewise of a plan that came as ``expected``."""
        return self._overlap.expect_after(expected)

    def follows(self, expected: Expected, tokens: Items[int]) -> bool:
        """Whether the next plan will say what was expected if these were drawn, and nobody comes or goes."""
        return self._overlap.follows(expected, tokens)

    def apply(self, plan: Plan, results: Results) -> Events:
        """Take in what a step computed; sequences that were aborted meanwhile are left out."""
        return self._applier.apply(plan, results)

    def refuse(self, request_id: int, message: str) -> Events:
        """End what cannot be computed, all of a request."""
        events: Events = {}
        for seq in self._queues.of(request_id):
            self._applier.end(seq, Finish.ERROR, events, message)
        return events

    def fail(self, plan: Plan, message: str) -> Events:
        """End the sequences of a plan that could not be run."""
        events: Events = {}
        for seq in plan.sequences:
            self._applier.end(seq, Finish.ERROR, events, message)
        return events

    def check(self) -> None:
        """Verify all invariants.

        Raises:
            BrokenInvariantError: naming what is wrong.
        """
        self._queues.check()
