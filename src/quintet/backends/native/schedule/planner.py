"""The first half of a step: who takes part, and with what. Plain code over values; the rules are told in ``scheduler``."""

from __future__ import annotations

from collections import Counter

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import U8
from quintet.backends.native.schedule.chunks import cost, prefill
from quintet.backends.native.schedule.images import PendingImage, ShownPrompt
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.plan import Kind, Plan, Segment
from quintet.backends.native.schedule.queues import Queues
from quintet.backends.native.schedule.sequence import Action, Sequence, State
from quintet.backends.native.schedule.speculation import Draft, Speculation
from quintet.backends.native.schedule.step_budget import BACKGROUND_S, STEP_S, StepBudget
from quintet.config import EngineConfig

# A member of an enum takes a microsecond to look up in Python 3.11.
_DECODING, _PREFILLING, _DECODE = State.DECODE, State.PREFILL, Kind.DECODE


SLICE = 32
"""Pages that are brought back from a disk in a step, of all newcomers: what runs is kept waiting for some 10 ms, and it is told."""


class Planner:
    """Takes slots, pages and the tokens of a step from who has them, and gives them to whose turn it is."""

    def __init__(self, config: EngineConfig, kv: KvCache, queues: Queues, speculation: Speculation | None) -> None:
        self._kv = kv
        self._queues = queues
        self._running, self._waiting, self._groups = queues.running, queues.waiting, queues.groups
        self._speculation = speculation
        self._batch_tokens = config.batch_tokens
        self._max_running = config.running_limit
        self._busy = False  # there is something that is not in the background
        self._stuck: Sequence | None = None  # head of the queue that the last plan had no place for
        self._coming: Sequence | None = None  # head of the queue whose pages are being brought back
        self._slice = SLICE  # pages that may still be brought back in this step
        self._budget, self._background_budget = StepBudget(), StepBudget()
        self._background = False  # all of the last plan was
        self.queried = self.found = 0
        """See ``Counts``."""

    def plan(self, now: float) -> Plan:
        """See ``Scheduler.plan``."""
        plan = Plan()
        self._background = self._step_aside()
        self._make_way()
        self._make_places()
        self._plan_decodes(plan)
        decodes = len(plan.segments)
        self._coming, self._slice = None, SLICE
        self._admit(plan, now)
        head = self._head()
        self._stuck = None if head is self._coming else head
        plan.restoring = self._coming is not None
        plan.encoding = self._encoding()
        self._plan_prefills(plan, self._prefill_tokens(plan, waited_for=decodes > 0))
        return plan

    def learn(self, tokens: int, seconds: float) -> None:
        """See ``Scheduler.learn``. The short steps of the background compute fewer tokens a second, which must not make others' shorter."""
        (self._background_budget if self._background else self._budget).learn(tokens, seconds)

    def _prefill_tokens(self, plan: Plan, *, waited_for: bool) -> int:
        """Most tokens that prompts have of the step: what decodes leave of it, and less where a long step would keep somebody waiting.

        Args:
            waited_for: something decodes.
        """
        most = self._batch_tokens
        if self._background:
            most = self._background_budget.limit(most, seconds=BACKGROUND_S, halved=plan.encoding is not None)
        elif waited_for:
            most = self._budget.limit(most, seconds=STEP_S, halved=plan.encoding is not None)
        return min(self._batch_tokens - plan.tokens, max(most - plan.tokens, PAGE))

    # -- tenants ---------------------------------------------------------------------------------------------------------------

    def _step_aside(self) -> bool:
        """Preempt what is in the background as soon as there is anything else; True: there is nothing else."""
        head = self._waiting.head()
        self._busy = (head is not None and not head.group.background) or any(not seq.group.background for seq in self._running)
        if self._busy:
            for seq in [seq for seq in reversed(self._running) if seq.group.background]:
                self._queues.preempt(seq)
        return not self._busy

    def _head(self) -> Sequence | None:
        """The sequence whose turn it is; what is in the background has none while there is anything else."""
        head = self._waiting.head()
        return None if head is not None and head.group.background and self._busy else head

    def _make_way(self) -> None:
        """A tenant that waits with nothing in the batch has the next turn, and after a step in vain a place of another's."""
        if self._head() is None:
            return
        running = Counter(seq.group.tenant for seq in self._running)
        idle = next((tenant for tenant in self._waiting.tenants if tenant not in running), None)
        if idle is None:
            return
        self._waiting.favour(idle)
        if self._head() is self._stuck:  # a step long it had no place: only then somebody pays for it
            self._free_a_place(running)

    def _free_a_place(self, running: Counter[str]) -> None:
        """Preempt a sequence of the tenant that has most for its weight, if it has several."""
        shares = {seq.group.tenant: running[seq.group.tenant] / (seq.group.weight or 1) for seq in self._running}
        largest = max((tenant for tenant in shares if running[tenant] > 1), key=shares.__getitem__, default=None)
        if largest is not None:
            self._queues.preempt(next(seq for seq in reversed(self._running) if seq.group.tenant == largest))

    def _make_places(self) -> None:
        """Give the oldest a page, if it takes its pages as it goes on, whoever has to give one up: so something always goes on."""
        oldest = self._running[0] if self._running else None
        while oldest and oldest.state is _PREFILLING and oldest.computed < oldest.goal and not self._kv.reserve(oldest, 1):
            if self._groups.shed():
                continue
            if self._running[-1] is oldest:  # it holds rows that are scored first
                return
            self._queues.preempt(self._running[-1])

    # -- decode ----------------------------------------------------------------------------------------------------------------

    def _plan_decodes(self, plan: Plan) -> None:
        kv = self._kv
        decoding = [
            seq
            for seq in self._running[:]  # preemption shortens the list, but only behind the sequence that needs a page
            if seq.state is _DECODING and seq.held is None and (kv.writable(seq) or self._make_room(seq, plan))
        ]
        drafts = self._drafts(decoding)
        if not drafts:
            plan.segments = [Segment(seq, _DECODE, seq.slot, seq.computed, seq.generated[-1:], 1, 1) for seq in decoding]
            plan.tokens = len(decoding)
        for seq, (draft, ask) in zip(decoding, drafts, strict=False):
            tokens = [seq.generated[-1], *draft]
            plan.add(Segment(seq, _DECODE, seq.slot, seq.computed, tokens, len(tokens), len(tokens), ask=ask))
        for seq in self._running:
            if seq.held is not None and not seq.late:
                plan.add(Segment(seq, Kind.FORK, seq.slot, seq.computed, [], draws=1, origin=seq.held))

    def _drafts(self, decoding: list[Sequence]) -> list[Draft]:
        """Tokens to compute after each one's next, as far as pages are to be had without taking one from anybody."""
        if self._speculation is None:
            return []
        busy = len(decoding) < len(self._running) or self._head() is not None
        drafts = self._speculation.drafts(decoding, self._batch_tokens, busy=busy)
        return [draft.cut(self._kv.extend(seq, draft.places)) for seq, draft in zip(decoding, drafts, strict=True)] if drafts else []

    def _make_room(self, seq: Sequence, plan: Plan) -> bool:
        """A place for the next token, if need be at the newest sequence's expense; False if that was ``seq`` itself."""
        while not self._kv.grow(seq, plan.copies):
            if not self._groups.shed():
                self._queues.preempt(self._running[-1])
            if seq.state is not State.DECODE:
                return False
        return True

    # -- admission -------------------------------------------------------------------------------------------------------------

    def _admit(self, plan: Plan, now: float) -> None:
        while len(self._running) < self._max_running:
            seq = self._head()
            if seq is None:
                return
            if self._start(seq, plan, now):
                continue
            if self._coming or self._running or not self._groups.shed():  # with nothing running, only snapshots can be in the way
                return

    def _start(self, seq: Sequence, plan: Plan, now: float) -> bool:
        """Move the head of the queue into the batch; False, with nothing changed, if pages are short."""
        group = seq.group
        if group.snapshot and not seq.generated:
            if not self._roomy(1):
                return False
            self._waiting.pop()
            self._kv.fork_snapshot(seq, group.snapshot)
            self._fork(seq, group.snapshot.row, plan)
            self._groups.started(group)
            return True
        self._slice, coming = self._kv.restore(seq, self._slice)
        if coming:
            self._coming = seq
            return False
        matched = self._kv.match(seq)
        if not self._roomy(self._kv.cost(seq, matched)):
            return False
        self._waiting.pop()
        self._kv.admit(seq, matched)
        if group.cached is None:
            group.cached, group.waited = seq.computed, now - group.submitted
            self.queried += len(group.prompt)
            self.found += seq.computed
        seq.advance(Action.ADMIT)
        self._running.append(seq)
        return True

    def _roomy(self, pages: int) -> bool:
        """``pages`` can be had, and then one for each running sequence: else the newcomer would soon be preempted."""
        return self._kv.pool.available >= pages + len(self._running)

    def _fork(self, seq: Sequence, origin: Segment | U8, plan: Plan) -> None:
        seq.advance(Action.FORK)
        self._running.append(seq)
        plan.add(Segment(seq, Kind.FORK, seq.slot, seq.computed, [], draws=1, origin=origin))

    # -- images ----------------------------------------------------------------------------------------------------------------

    def _encoding(self) -> PendingImage | None:
        """The image whose turn it is, of those in prompts that are being computed."""
        prompts = [
            ShownPrompt(seq.group.tenant, seq.request_id, seq.group.images, seq.computed)
            for seq in self._running
            if seq.group.images is not None and seq.state is _PREFILLING
        ]
        return self._queues.encodings.next(prompts)

    # -- prefill ---------------------------------------------------------------------------------------------------------------

    def _plan_prefills(self, plan: Plan, budget: int) -> None:
        prefills = [seq for seq in self._running if seq.state is _PREFILLING]
        if not prefills:
            return
        for seq in prefills:
            self._adopt(seq)
        oldest, *others = self._distinct([prefills[0], *sorted(prefills[1:], key=lambda seq: seq.remaining)])
        budget -= self._plan_prefill(plan, oldest, max(-(-budget // 2), budget - sum(seq.remaining for seq in others)))
        for seq in others:
            if budget <= 0:
                return
            budget -= self._plan_prefill(plan, seq, budget)

    def _adopt(self, seq: Sequence) -> None:
        tokens = self._kv.adopt(seq)
        if tokens and not seq.generated:
            self.found += tokens
            seq.group.cached = min((seq.group.cached or 0) + tokens, seq.computed)

    def _distinct(self, prefills: list[Sequence]) -> list[Sequence]:
        """Without those whose next page one before them computes: they adopt it when it is done."""
        distinct, pages = list[Sequence](), set[tuple[bytes, bool]]()
        for seq in prefills:
            page = self._kv.next_page(seq), seq.group.scoring
            if page not in pages:
                distinct.append(seq)
            if page[0]:  # else nobody else can have it
                pages.add(page)
        return distinct

    def _plan_prefill(self, plan: Plan, seq: Sequence, share: int) -> int:
        """Give ``seq`` at most ``share`` tokens to compute and as many to score; returns how much of it was used."""
        segment = prefill(seq, share, self._kv)
        if not (segment.tokens or segment.echo or segment.completes):
            return 0  # there is no page for it now
        plan.add(segment)
        if segment.draws and seq is seq.group.leader:  # one that is computed again after preemption has more than the prompt in its pages
            self._start_forks(plan, segment)
        return cost(segment)

    def _start_forks(self, plan: Plan, leader: Segment) -> None:
        forks = leader.seq.group.forks
        while forks and len(self._running) < self._max_running and self._roomy(1):
            fork = forks.pop(0)
            self._kv.fork(fork, leader.seq)
            self._fork(fork, leader, plan)
