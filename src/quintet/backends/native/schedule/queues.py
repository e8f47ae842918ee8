"""The sequences that have not ended: who runs, who waits, and what ends with them. Plain code over values."""

from __future__ import annotations

from collections.abc import Sequence as Items

from quintet.backends.native.schedule.groups import Groups
from quintet.backends.native.schedule.images import Encodings, PromptImages
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.pages import BrokenInvariantError
from quintet.backends.native.schedule.sequence import Action, Group, Sequence, State
from quintet.backends.native.schedule.waiting import WaitingQueue
from quintet.inputs.sequence import PreparedSequence


class Queues:
    """Every sequence is in one place: ``running``, ``waiting``, or a fork of a leader that is in one of these."""

    def __init__(self, kv: KvCache, encodings: Encodings) -> None:
        self._kv = kv
        self.encodings = encodings
        self._requests: dict[int, dict[int, Sequence]] = {}
        self.running: list[Sequence] = []  # in order of admission
        self.waiting = WaitingQueue()
        self.groups = Groups(kv, self.waiting)
        self.live = 0
        self.preempted = 0

    def add(self, request_id: int, prepared: Items[PreparedSequence], now: float, tenant: str, weight: int) -> None:
        """Queue a tenant's request; see ``Scheduler.add``."""
        groups: dict[tuple[object, ...], Group] = {}
        for index, spec in enumerate(prepared):
            images = tuple((image.digest, image.places) for image in spec.images)
            key = (spec.tokens, spec.echo, spec.echo_from, spec.prompt_end, spec.logprobs, spec.max_tokens == 0, spec.salt, images)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _group(spec, now, tenant, weight)
                group.images = PromptImages(spec.images, spec.salt, self.encodings) if spec.images else None
            group.members.append(_sequence(request_id, index, spec, group))
        self._requests[request_id] = {seq.index: seq for group in groups.values() for seq in group.members}
        self.live += len(prepared)
        for group in groups.values():
            self.groups.begin(group)

    def of(self, request_id: int) -> list[Sequence]:
        """The request's sequences; none if it is unknown, or has ended."""
        return list(self._requests.get(request_id, {}).values())

    def preempt(self, seq: Sequence) -> None:
        """A running sequence gives its pages up; it is computed again before anything of its tenant that waits."""
        self.running.remove(seq)
        self._kv.release(seq)
        seq.held, seq.late = None, False  # its last row is computed again, with the others
        seq.advance(Action.PREEMPT)
        self.preempted += 1
        self.waiting.push_front(seq)

    def retire(self, seq: Sequence) -> None:
        """Free everything an ended sequence holds, and let its group go on without it."""
        group = seq.group
        if seq.state is not State.WAITING:
            self.running.remove(seq)
            self._kv.release(seq)
        elif seq in group.forks:
            group.forks.remove(seq)
        else:
            self.waiting.remove(seq)
        seq.advance(Action.END)
        seq.matcher = seq.sampler = seq.drafter = seq.held = None  # now, and not when its group is collected: guides are large
        self.live -= 1
        siblings = self._requests[seq.request_id]
        del siblings[seq.index]
        if not siblings:
            del self._requests[seq.request_id]
        self.groups.ended(seq)

    def check(self) -> None:
        """Verify all invariants.

        Raises:
            BrokenInvariantError: naming what is wrong.
        """
        self._kv.check(self.running, self.groups.snapshots)
        alive = [seq for siblings in self._requests.values() for seq in siblings.values()]
        queued = list(self.waiting)
        groups = {seq.group for seq in alive}
        forks = [seq for group in groups for seq in group.forks]
        places = [*self.running, *queued, *forks]
        _require(len(places) == len(set(places)) == self.live, "a sequence is lost or in two places")
        _require(set(places) == set(alive), "an ended sequence is kept")
        _require(all(seq.state in (State.PREFILL, State.DECODE) for seq in self.running), "a running sequence is not running")
        _require(all(seq.state is State.WAITING and seq.slot < 0 for seq in [*queued, *forks]), "a waiting sequence is not waiting")
        _require(all(seq.group.leader in places for seq in forks), "a fork has nobody to follow")
        leaders = [group.leader for group in groups if group.leader]
        _require(all(seq.state in (State.WAITING, State.PREFILL) for seq in leaders), "a leader has computed the prompt")


def _group(spec: PreparedSequence, now: float, tenant: str, weight: int) -> Group:
    return Group(
        spec.tokens,
        spec.echo,
        spec.logprobs,
        salt=spec.salt,
        submitted=now,
        tenant=tenant,
        weight=weight,
        echo_from=spec.echo_from,
        prompt_end=spec.prompt_end,
    )


def _sequence(request_id: int, index: int, spec: PreparedSequence, group: Group) -> Sequence:
    return Sequence(
        request_id,
        index,
        group,
        max_tokens=spec.max_tokens,
        sampling=spec.sampling,
        logprobs=spec.logprobs,
        bad_words=spec.bad_words,
        grammar=spec.grammar,
        thinking=spec.thinking,
        prediction=spec.prediction,
        logprob_ids=spec.logprob_ids,
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenInvariantError(otherwise)
