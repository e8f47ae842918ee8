"""The boundary between the service and an engine: what an engine is given, and what it tells of itself.

::

    CompletionRequest --service--> SequenceSpec --inputs.prepare--> Prepared ==submit==> TokenEvent --service--> Event
                                                  checked above                         boundary

Tokens cross it, never text or provider JSON: whatever can be refused is refused above it, by what ``Capabilities`` says, so that a second
engine needs no checks of its own. Request ids are ours, never the client's.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import NamedTuple, Protocol

from quintet.errors import EngineFailed, Loading, Overloaded
from quintet.events import TokenEvent
from quintet.inputs.capabilities import Capabilities
from quintet.inputs.sequence import Prepared
from quintet.inputs.tokenizer import Tokenizer


class State(enum.Enum):
    """The engine's condition, told by its progress, never by an open port."""

    LOADING = "loading"
    READY = "ready"
    STALLED = "stalled"  # work waits and no step finished lately
    UNSOUND = "unsound"  # work is taken, and nothing that is computed is a number
    DRAINING = "draining"  # what was taken is finished, and nothing else is taken
    DEAD = "dead"
    CLOSED = "closed"


class Counts(NamedTuple):
    """What an engine has done; none of it ever goes down, whatever becomes of the engine.

    Args:
        steps: engine steps finished.
        tokens: computed in them of prompts, and generated: as vLLM counts.
        prefilled: of these, in prefill; what the prefix cache or a fork spared is not among them.
        preempted: times that a sequence lost its pages to others; it is computed again later.
        queried, found: prompt tokens looked for in the prefix cache, and found there.
        drafts, drafted, accepted: times that tokens were drafted for a sequence, how many, and how many it drew too.
        compiled, compile_s: requests whose guides were compiled, and the seconds that took.
        mask_s: processor seconds of the masks of guides.
        drafted_by_model, accepted_by_model: of the drafted tokens, the draft model's.
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
    compiled: int = 0
    compile_s: float = 0.0
    mask_s: float = 0.0
    drafted_by_model: int = 0
    accepted_by_model: int = 0


class Incidents(NamedTuple):
    """What went wrong with an engine; none of it ever goes down.

    Args:
        crashed: times that its process ended by itself, or was killed by others.
        hung: times that it was killed because it got no further.
        unstarted: times that no process could be had.
        changed: times that a start found another model's file than the first.
        unsound: times that it was ended because nothing that it computed was a number.
        quarantined: requests that were refused because they were taken for the cause.
        shed: times that it gave back what it keeps, for want of memory.
        short: requests that were refused for want of memory.
    """

    crashed: int = 0
    hung: int = 0
    unstarted: int = 0
    changed: int = 0
    unsound: int = 0
    quarantined: int = 0
    shed: int = 0
    short: int = 0


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
        waiting: sequences that wait for their turn.
        deferred: of these, those whose guides are still being compiled; no place in the batch would help them.
        batches: steps by the number of tokens that they computed of prompts and generated, see ``BATCH_TOKENS``.
        retry_after: seconds after which it is worth asking again, where the state is not ``READY``.
        memory: share in use of the memory that the machine, or the container, has; 0 = not looked at.
        pid: of the process that computes; ``None`` = it is this one, or there is none now, or it is on another machine.
        replicas: that can take work, where the state is ``READY``.
    """

    state: State
    progress: float = 1.0
    running: int = 0
    waiting: int = 0
    counts: Counts = field(default_factory=Counts)
    pages: Pages = field(default_factory=Pages)
    batches: Sequence[int] = (0,) * (len(BATCH_TOKENS) + 1)
    incidents: Incidents = field(default_factory=Incidents)
    retry_after: float = 1.0
    memory: float = 0.0
    deferred: int = 0
    pid: int | None = None
    replicas: int = 1

    def adding(self, other: Health) -> Health:
        """With all that another engine of the model has counted, be it one of before or one beside."""
        counts, incidents = Counts(*map(add, self.counts, other.counts)), Incidents(*map(add, self.incidents, other.incidents))
        return replace(self, counts=counts, incidents=incidents, batches=tuple(map(add, self.batches, other.batches)))


def require_open(state: State, retry_after: float = 1.0) -> None:
    """Refuse work in every state that takes none.

    Args:
        retry_after: seconds, for the client.

    Raises:
        Loading: the model is not ready.
        EngineFailed: the engine is dead.
        Overloaded: it takes nothing new any more.
    """
    if state is State.LOADING:
        raise Loading("The model is still loading.", retry_after)
    if state is State.DEAD:
        raise EngineFailed("The engine has failed.")
    if state in (State.DRAINING, State.CLOSED):
        raise Overloaded("The engine is shutting down.", retry_after)  # with the server, or its model is unloaded


class Backend(Protocol):
    """An engine. Everything is called on one event loop, and only ``close`` waits.

    What it is given was checked against its ``capabilities``; it checks nothing again. It shares cached prefixes only within equal salts:
    that keeps tenants apart and is no feature to lack; an engine that shares none does so too.

    One whose ``capabilities.images`` are ``ProcessorTraits`` is an ``Expander`` too (``inputs.images.expansion``), asked before ``submit``.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Valid once the state was ``READY``, and the same ever after.

        Raises:
            Loading: it was not yet.
        """
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's.

        Raises:
            Loading, EngineFailed, Overloaded: as ``require_room`` of what is ``begun``: nothing is worth preparing in such a state.
        """
        ...

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        ...

    @property
    def failure(self) -> Exception | None:
        """Why there is no engine and never was: a ``ModelError`` can be told as it is. ``None`` = it works, or worked."""
        ...

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        """Nothing if ``submit`` would take ``count`` sequences of ``tenant`` now. That holds until the event loop gets its turn.

        Args:
            begun: a request that was taken needs them to go on: a drain does not end it. They count as any do.

        Raises:
            Overloaded: the waiting queue is full, or the engine takes nothing new any more.
            TooManyRequests: the tenant's share of the queue is.
            Loading: the model is not ready.
            EngineFailed: the engine is dead.
        """
        ...

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        """Start the work now; iterate over its events: those of a step together, or of several where ``Prepared.urgency`` allows it.

        Where a prompt is echoed its tokens come once for all samples of it: the sequences with the same ``tokens``, the same images and the
        same part of them echoed, under the number of the first, before anything else of any; those at the places of images without
        log-probabilities. Each sequence gets exactly one event with ``finish`` set, and nothing after it. The iterator ends after the last
        sequence's terminal event. An engine failure is a terminal event with ``finish=ERROR``, never an exception. Closing the iterator
        early does not abort: call ``abort``.
        """
        ...

    def abort(self, request_id: int, seq: int | None = None) -> None:
        """Stop one sequence, or all of a request. Idempotent, never raises, safe for ended or unknown ids.

        The terminal event (``finish=ABORT``) still arrives if the sequence had not ended.
        """
        ...

    def health(self) -> Health:
        """The engine's condition and what it has done; never blocks."""
        ...

    def drain(self) -> None:
        """Take no new work, and finish what there is; ``live`` tells when that is done. Idempotent."""
        ...

    async def close(self) -> None:
        """End all work (terminal events with ``finish=ABORT``) and free everything. Idempotent."""
        ...
