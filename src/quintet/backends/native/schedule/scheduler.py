"""Who runs in each step, and what came of it. Plain code over values: no clock (time is an argument), threads or I/O.

Order of a step: sequences that decode get one token each, and where few do, those that are drafted after it; then waiting ones are
admitted while slots and pages last; then prefill shares what is left of ``batch_tokens``, at least half of it to the oldest
prefill and the rest to the shortest first; less of it while something decodes (``step_budget``). Of prompts that go on alike only one is
computed, the others take its pages over. When pages run out the newest running sequence gives its own up and is computed again
later, before anything that waits: it draws at the same positions with the same seed, so clients cannot see it. The oldest running
sequence is never preempted and nobody overtakes the head of the queue for lack of pages, so everything ends. A tenant that waits
with nothing in the batch comes before those that have something there, and gets the place of a sequence of the one with most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Items
from operator import itemgetter

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.runner import NOT_DRAWN
from quintet.backends.native.schedule.chunks import echo_count, plan_scores, plan_segment
from quintet.backends.native.schedule.emit import NUMERICAL, REFUSED, Emitter
from quintet.backends.native.schedule.groups import Groups
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.pages import BrokenInvariantError
from quintet.backends.native.schedule.plan import Chunk, Plan, Results
from quintet.backends.native.schedule.sequence import Action, Group, Sequence, State
from quintet.backends.native.schedule.speculation import Speculation
from quintet.backends.native.schedule.step_budget import StepBudget
from quintet.backends.native.schedule.waiting import WaitingQueue
from quintet.backends.native.wire.messages import Events
from quintet.config import EngineConfig
from quintet.errors import Overloaded
from quintet.events import NO_DRAFTS, Blame, DraftCounts, Finish
from quintet.inputs.sequence import PreparedSequence


class Scheduler:
    """The engine's sequences.

    Args:
        kv: with at least ``config.running_limit`` block tables, as wide as the longest sequence.
        emitter: makes the events.
        speculation: makes the drafts; ``None`` = there are none.
    """

    def __init__(self, config: EngineConfig, kv: KvCache, emitter: Emitter, speculation: Speculation | None = None) -> None:
        self._kv = kv
        self._emit = emitter
        self._speculation = speculation
        self._batch_tokens = config.batch_tokens
        self._max_running = config.running_limit
        self._max_live = config.live_limit
        self._requests: dict[int, dict[int, Sequence]] = {}  # sequences that have not ended
        self._live = 0
        self._running: list[Sequence] = []  # in order of admission
        self._waiting = WaitingQueue()
        self._groups = Groups(kv, self._waiting)
        self.step_budget = StepBudget()  # told by who runs the steps
        self._stuck: Sequence | None = None  # head of the queue that the last plan had no place for
        self.drafts = NO_DRAFTS
        self.preempted = self.queried = self.found = 0
        """See ``Counts``."""

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return self._live

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    def add(self, request_id: int, prepared: Items[PreparedSequence], now: float, tenant: str = "") -> None:
        """Queue a tenant's request, which came at ``now`` (seconds).

        Raises:
            Overloaded: too many are live already; nothing was added.
        """
        if self._live + len(prepared) > self._max_live:
            raise Overloaded("The queue is full; try again later.")
        groups: dict[tuple[object, ...], Group] = {}
        for index, spec in enumerate(prepared):
            key = (spec.tokens, spec.echo, spec.echo_from, spec.prompt_end, spec.logprobs, spec.max_tokens == 0, spec.salt)
            group = groups.setdefault(key, _group(spec, now, tenant))
            group.members.append(_sequence(request_id, index, spec, group))
        self._requests[request_id] = {seq.index: seq for group in groups.values() for seq in group.members}
        self._live += len(prepared)
        for group in groups.values():
            self._groups.begin(group)

    def abort(self, request_id: int, index: int | None = None) -> Events:
        """End one sequence of a request, or all; unknown and ended ones are ignored. Allowed between ``plan`` and ``apply`` too."""
        events: Events = {}
        sequences = self._requests.get(request_id, {})
        for seq in [seq for seq in sequences.values() if index in (None, seq.index)]:
            self._end(seq, Finish.ABORT, events)
        return events

    def fail(self, plan: Plan, message: str) -> Events:
        """End the sequences of a plan that could not be run."""
        events: Events = {}
        for seq in plan.sequences:
            self._end(seq, Finish.ERROR, events, message)
        return events

    def plan(self, now: float) -> Plan:
        """What to do next, at ``now`` (seconds). Must be followed by ``apply`` or ``fail`` before the next ``plan``."""
        plan = Plan()
        self._make_way()
        self._plan_decodes(plan)
        self._admit(plan, now)
        self._stuck = self._waiting.head()
        left = self._batch_tokens - len(plan.tokens)
        hurry = self.step_budget.limit(self._batch_tokens) - len(plan.tokens) if plan.decodes else left
        self._plan_prefills(plan, min(left, max(hurry, PAGE)))
        return plan

    def apply(self, plan: Plan, results: Results) -> Events:
        """Take in what a step computed; sequences that were aborted meanwhile are left out."""
        events: Events = {}
        for chunk in plan.chunks:
            self._apply_chunk(chunk, results, events)
        self._apply_draws(plan, results, events)
        return events

    def check(self) -> None:
        """Verify all invariants.

        Raises:
            BrokenInvariantError: naming what is wrong.
        """
        self._kv.check(self._running, self._groups.snapshots)
        alive = [seq for siblings in self._requests.values() for seq in siblings.values()]
        queued = list(self._waiting)
        forks = [seq for group in {seq.group for seq in alive} for seq in group.forks]
        places = [*self._running, *queued, *forks]
        _require(len(places) == len(set(places)) == self._live, "a sequence is lost or in two places")
        _require(set(places) == set(alive), "an ended sequence is kept")
        _require(all(seq.state in (State.PREFILL, State.DECODE) for seq in self._running), "a running sequence is not running")
        _require(all(seq.state is State.WAITING and seq.slot < 0 for seq in [*queued, *forks]), "a waiting sequence is not waiting")
        _require(all(seq.group.leader in places for seq in forks), "a fork has nobody to follow")

    # -- planning --------------------------------------------------------------------------------------------------------------

    def _make_way(self) -> None:
        """For a tenant with nothing in the batch."""
        if self._waiting.head() is None:
            return
        running = Counter(seq.group.tenant for seq in self._running)
        idle = next((tenant for tenant in self._waiting.tenants if tenant not in running), None)
        if idle is None:
            return
        self._waiting.favour(idle)
        largest, count = max(running.items(), key=itemgetter(1), default=("", 0))
        if count > 1 and self._waiting.head() is self._stuck:
            self._preempt(next(seq for seq in reversed(self._running) if seq.group.tenant == largest))

    def _plan_decodes(self, plan: Plan) -> None:
        kv = self._kv
        for seq in self._running[:]:  # preemption shortens the list
            if seq.state is State.DECODE and (kv.writable(seq) or self._make_room(seq, plan)):
                plan.tokens.append(seq.generated[-1])
                plan.slots.append(seq.slot)
                plan.starts.append(seq.computed)
                plan.draws.append(seq)
        plan.decodes = len(plan.draws)
        plan.lengths = [1] * plan.decodes
        if self._speculation:
            busy = plan.decodes < len(self._running) or self._waiting.head() is not None
            self._plan_drafts(plan, self._speculation.drafts(plan.draws, self._batch_tokens, busy=busy))
        plan.rows = list(range(len(plan.tokens)))
        plan.draw_rows = list(range(len(plan.tokens)))

    def _plan_drafts(self, plan: Plan, drafts: list[list[int]]) -> None:
        """Compute what is drafted too, as far as pages are to be had without taking one from anybody."""
        if drafts:
            plan.drafts = [draft[: self._kv.extend(seq, len(draft))] for seq, draft in zip(plan.draws, drafts, strict=True)]
            plan.tokens = [token for seq, draft in zip(plan.draws, plan.drafts, strict=True) for token in (seq.generated[-1], *draft)]
            plan.lengths = [len(draft) + 1 for draft in plan.drafts]

    def _make_room(self, seq: Sequence, plan: Plan) -> bool:
        """A place for the next token, if need be at the newest sequence's expense; False if that was ``seq`` itself."""
        while not self._kv.grow(seq, plan.copies):
            if not self._groups.shed():
                self._preempt(self._running[-1])
            if seq.state is not State.DECODE:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._running.remove(seq)
        self._kv.release(seq)
        seq.advance(Action.PREEMPT)
        self.preempted += 1
        self._waiting.push_front(seq)

    def _admit(self, plan: Plan, now: float) -> None:
        while len(self._running) < self._max_running:
            seq = self._waiting.head()
            if seq is None:
                return
            if self._start(seq, plan, now):
                continue
            if self._running or not self._groups.shed():  # with nothing running, only snapshots can be in the way
                return

    def _start(self, seq: Sequence, plan: Plan, now: float) -> bool:
        """Move the head of the queue into the batch; False, with nothing changed, if pages are short."""
        group = seq.group
        if group.snapshot and not seq.generated:
            if not self._roomy(1):
                return False
            self._waiting.pop()
            self._kv.fork_snapshot(seq, group.snapshot)
            plan.saved.append(group.snapshot.row)
            self._fork(seq, ~(len(plan.saved) - 1), plan)
            self._groups.started(group)
            return True
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

    def _fork(self, seq: Sequence, row: int, plan: Plan) -> None:
        seq.advance(Action.FORK)
        self._running.append(seq)
        plan.draw(seq, row)

    def _plan_prefills(self, plan: Plan, budget: int) -> None:
        prefills = [seq for seq in self._running if seq.state is State.PREFILL]
        if not prefills:
            return
        for seq in prefills:
            self._adopt(seq)
        oldest, *others = self._distinct([prefills[0], *sorted(prefills[1:], key=lambda seq: seq.remaining)])
        budget -= self._plan_chunk(plan, oldest, max(-(-budget // 2), budget - sum(seq.remaining for seq in others)))
        for seq in others:
            if budget <= 0:
                return
            budget -= self._plan_chunk(plan, seq, budget)

    def _adopt(self, seq: Sequence) -> None:
        tokens = self._kv.adopt(seq)
        if tokens and not seq.generated:
            self.found += tokens
            seq.group.cached = min((seq.group.cached or 0) + tokens, seq.computed)

    def _distinct(self, prefills: list[Sequence]) -> list[Sequence]:
        """Without those whose next page one before them computes: they adopt it when it is done."""
        first = set({(self._kv.next_page(seq) or seq, seq.group.scoring): seq for seq in reversed(prefills)}.values())
        return [seq for seq in prefills if seq in first]

    def _plan_chunk(self, plan: Plan, seq: Sequence, share: int) -> int:
        """Give ``seq`` at most ``share`` tokens to compute and as many to score; returns how much of it was used."""
        group, goal = seq.group, seq.goal
        count = min(share, goal - seq.computed)
        echo = echo_count(group, seq.computed + count, share)
        if seq.max_tokens and echo < group.echo_left:
            count = min(count, goal - 1 - seq.computed)  # the row to draw from must come in the step that ends the echo
        completes = seq.computed + count == goal and echo == group.echo_left
        chunk = Chunk(seq, count, echo, completes=completes)
        plan.chunks.append(chunk)
        first = len(plan.rows)
        plan_segment(plan, chunk)
        if group.scoring:
            plan_scores(plan, chunk, first, self._kv)
        if completes and seq.max_tokens:
            chunk.row = len(plan.rows) - 1
            plan.draw(seq, chunk.row)
            if seq is group.leader:  # one that is computed again after preemption has more than the prompt in its pages
                self._start_forks(plan, chunk)
        return max(count, echo if group.scoring else 0)

    def _start_forks(self, plan: Plan, chunk: Chunk) -> None:
        forks = chunk.seq.group.forks
        while forks and len(self._running) < self._max_running and self._roomy(1):
            fork = forks.pop(0)
            self._kv.fork(fork, chunk.seq)
            self._fork(fork, chunk.row, plan)

    # -- applying --------------------------------------------------------------------------------------------------------------

    def _apply_chunk(self, chunk: Chunk, results: Results, events: Events) -> None:
        seq, group = chunk.seq, chunk.seq.group
        if seq.state is State.PREFILL:
            seq.computed += chunk.count
            self._kv.publish(seq)
        scores = results.scores[chunk.score] if chunk.score >= 0 else None
        if chunk.score >= 0 and scores is None:
            for member in group.live:
                self._end(member, Finish.ERROR, events, NUMERICAL)
            return
        self._emit.echo(group, chunk.echo, scores, events)
        if chunk.completes and not seq.max_tokens:
            for member in group.live:
                self._end(member, Finish.LENGTH, events)
        elif chunk.completes and seq.state is State.PREFILL:
            seq.advance(Action.READY)
            if seq is group.leader:
                self._groups.computed(group, seq, results.hidden[chunk.row])

    def _apply_draws(self, plan: Plan, results: Results, events: Events) -> None:
        row = 0
        for order, seq in enumerate(plan.draws):
            drafted = len(plan.drafts[order]) if plan.drafts else 0
            if seq.state is State.DECODE:
                if drafted:
                    self._count_draft(seq, results.tokens[row : row + drafted + 1])
                self._apply_draw(seq, row, results, events, computed=order < plan.decodes)
                for more in range(row + 1, row + drafted + 1):
                    if seq.state is State.DECODE and results.tokens[more] != NOT_DRAWN:
                        self._apply_draw(seq, more, results, events, computed=True)
                if drafted and seq.state is State.DECODE:
                    self._kv.trim(seq)
            row += drafted + 1

    def _count_draft(self, seq: Sequence, tokens: list[int]) -> None:
        """``tokens`` were drawn from a sequence's rows: one more than was accepted."""
        drawn = len(tokens) - tokens.count(NOT_DRAWN)
        counts = DraftCounts(1, drawn - 1, len(tokens) - drawn)
        seq.drafts, self.drafts = seq.drafts.plus(counts), self.drafts.plus(counts)

    def _apply_draw(self, seq: Sequence, row: int, results: Results, events: Events, *, computed: bool) -> None:
        if computed:
            seq.computed += 1
            if seq.computed % PAGE == 0:
                self._kv.publish(seq)
        token = results.tokens[row]
        if token < 0:
            self._end(seq, Finish.ERROR, events, *REFUSED[token])
            return
        seq.generated.append(token)
        if self._emit.token(seq, token, results.logprobs[row], results.tops[row], events):
            self._retire(seq)

    # -- ending ----------------------------------------------------------------------------------------------------------------

    def _end(self, seq: Sequence, finish: Finish, events: Events, error: str = "", blame: Blame = Blame.SERVER) -> None:
        if seq.state is not State.DONE:
            self._emit.end(seq, finish, events, error, blame)
            self._retire(seq)

    def _retire(self, seq: Sequence) -> None:
        """Free everything an ended sequence holds, and let its group go on without it."""
        group = seq.group
        if seq.state is not State.WAITING:
            self._running.remove(seq)
            self._kv.release(seq)
        elif seq in group.forks:
            group.forks.remove(seq)
        else:
            self._waiting.remove(seq)
        seq.advance(Action.END)
        self._live -= 1
        siblings = self._requests[seq.request_id]
        del siblings[seq.index]
        if not siblings:
            del self._requests[seq.request_id]
        self._groups.ended(seq)


def _group(spec: PreparedSequence, now: float, tenant: str) -> Group:
    return Group(spec.tokens, spec.echo, spec.logprobs, spec.salt, now, start=spec.echo_from, end=spec.prompt_end, tenant=tenant)


def _sequence(request_id: int, index: int, spec: PreparedSequence, group: Group) -> Sequence:
    rest = spec.logprobs, spec.bad_words, spec.grammar, spec.thinking
    return Sequence(request_id, index, group, spec.max_tokens, spec.sampling, *rest)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenInvariantError(otherwise)
