"""The engine's own thread: load the model, then step while there is work. Talks only in ``messages``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import NamedTuple

from quintet.backends.base import Counts
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.loader import PAGE, Loaded, Loader, longest
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.schedule.delivery import Delivery, drawn_tokens, merge, urgent
from quintet.backends.native.schedule.emit import FAILED, Emitter
from quintet.backends.native.schedule.images import Encodings
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.pages import BlockTables, PagePool
from quintet.backends.native.schedule.plan import Plan
from quintet.backends.native.schedule.scheduler import Scheduler
from quintet.backends.native.schedule.speculation import Speculation
from quintet.backends.native.wire.messages import (
    Abort,
    Died,
    Events,
    FromWorker,
    Ping,
    Pixels,
    Progress,
    Ready,
    Shed,
    Started,
    Stepped,
    Stop,
    Submit,
    ToWorker,
)
from quintet.backends.native.worker.aside import Jumping
from quintet.backends.native.worker.compiling import Compiled, Compiling
from quintet.backends.native.worker.drafting import Drafting, draft_model, measure
from quintet.backends.native.worker.early import EarlyPass
from quintet.backends.native.worker.encoding import Encoding
from quintet.backends.native.worker.headroom import Headroom
from quintet.backends.native.worker.masks import Filled, Masks
from quintet.backends.native.worker.parts import run
from quintet.backends.native.worker.saved_pages import SavedPages, saved_pages
from quintet.backends.native.worker.step import Stepper, Work
from quintet.backends.native.worker.trial import full_step_s
from quintet.config import EngineConfig
from quintet.errors import ModelError
from quintet.guides import heap
from quintet.guides.compiled import Guides
from quintet.guides.matcher import Compiler
from quintet.inputs.tokenizer import Vocabulary
from quintet.models.pieces import Pieces

_log = logging.getLogger(__name__)

MAX_LOGPROBS = 20
"""vLLM's default ``max_logprobs``; the widest of the five providers' ranges is below it."""


BEAT_S = 1.0
"""While there is nothing to step but guides are compiled, or masks made, that is said so often: the engine waits, and does not hang."""


Heard = ToWorker | Compiled | Filled
"""What comes to the worker: from the front, and from its own threads."""


class _StoppedError(Exception):
    """``Stop`` arrived."""


class _Untold(NamedTuple):
    """The events of the last step, which the front is still to be told.

    Args:
        even_empty: of the step, whether it has events or not.
    """

    events: Events
    even_empty: bool


class Worker:
    """Runs until ``Stop``, or until something breaks that is nobody's request.

    A step that fails ends the request that it fails for, and the loop goes on.

    Args:
        clock: seconds, monotonic; used only to tell how long a request waited, or its guides take.
        send: called in the worker's thread; must not block for long.
        supervised: whoever reads the messages restarts a worker that dies or hangs. So each step's requests are told before it, and
            a step is tried, and timed, while loading: a machine or model on which it crashes never becomes ready.
    """

    def __init__(
        self,
        loader: Loader[Vocabulary],
        config: EngineConfig,
        clock: Callable[[], float],
        inbox: SimpleQueue[Heard],
        send: Callable[[FromWorker], None],
        *,
        supervised: bool = False,
    ) -> None:
        self._loader = loader
        self._config = config
        self._clock = clock
        self._inbox = inbox
        self._send = send
        self._supervised = supervised
        self._computed: set[int] = set()  # requests of the last step
        self._idle = False  # everybody in the batch waits for a mask, or for pixels
        self._restoring = False  # nothing was done but that pages were brought back, and there are more
        self._steps = self._tokens = self._prefilled = 0
        self._encoding: Encoding | None = None
        self._early: EarlyPass | None = None
        self._saved: SavedPages | None = None
        self._drafting: Drafting | None = None
        self._delivery = Delivery(clock())
        self._untold: _Untold | None = None

    def run(self) -> None:
        """The thread's body; never raises."""
        for _ in self.turns():
            pass

    def turns(self) -> Iterator[None]:
        """The same in pieces, for one who has no thread to give: the first loads, each other hears what has come and steps once."""
        end = Died()
        try:
            scheduler, stepper = self._load()
            while True:
                yield
                self._turn(scheduler, stepper)
        except _StoppedError:
            pass
        except ModelError as refused:  # told to whoever loads; not a fault of ours
            end = Died.of(refused)
        except Exception as fault:
            _log.exception("the engine died")
            end = Died.of(fault)
        if self._saved is not None:
            self._saved.close()
        self._send(end)

    def _load(self) -> tuple[Scheduler, Stepper]:
        loaded = self._loader(self._progress)
        runner, tokenizer, config = loaded.runner, loaded.tokenizer, self._config
        page_bytes = runner.page_bytes + (loaded.draft.page_bytes if loaded.draft else 0)
        pages = config.kv_bytes // page_bytes
        if not pages:
            raise ModelError(f"the KV cache needs at least {page_bytes} bytes, got {config.kv_bytes}.")
        try:
            runner.allocate(pages)
            if loaded.draft is not None:
                loaded.draft.allocate(pages)
        except MemoryError:
            raise ModelError(f"there is not enough memory for a KV cache of {config.kv_bytes} bytes; lower --kv-cache.") from None
        context = longest(runner.context, pages * PAGE, runner.window)
        vocab, eos_ids = runner.vocab, tokenizer.eos_ids
        pieces = Pieces.of(tokenizer.pieces, vocab)  # logits may be wider than the tokenizer; such ids are valid and have no text
        tables = BlockTables(config.running_limit, -(-context // PAGE))
        guides = Guides(Compiler(pieces, eos_ids, vocab))
        self._compiling = Compiling(guides, self._clock, lambda request_id: self._inbox.put(Compiled(request_id)))
        self._masks = Masks(guides, vocab, lambda seq: self._inbox.put(Filled(seq)))
        self._pool, self._runner, self._guides = PagePool(pages), runner, guides
        self._headroom = Headroom(runner, self._pool)
        model = draft_model(loaded.draft, runner, pages, self._clock) if loaded.draft else None
        if model is not None:
            measure(runner, model.policy.target, self._clock)
        speculation = Speculation(eos_ids, Jumping(guides.compiler).guess, model) if config.speculation else None
        self._saved = saved_pages(config.prefixes, runner, loaded.fingerprint)
        kv = KvCache(self._pool, tables, runner.row_bytes, runner.window, config.batch_tokens, self._saved)
        scheduler = Scheduler(config, kv, Emitter(eos_ids), speculation, self._see(loaded))
        self._send_step(scheduler, {})
        step_s = full_step_s(runner, config.batch_tokens, self._clock) if self._supervised else 0.0
        scheduler.learn(config.batch_tokens, step_s)
        ready = Ready(
            model=loaded.name,
            context=context,
            vocab=vocab,
            max_logprobs=min(MAX_LOGPROBS, vocab),
            max_sequences=min(config.max_sequences, config.live_limit),
            fingerprint=loaded.fingerprint,
            step_s=step_s,
            images=loaded.images,
        )
        self._send(ready)
        samplers = NativeSamplers(loaded.cpu or Cpu(), pieces, eos_ids)
        stepper = Stepper(runner, tables, samplers, self._masks)
        if loaded.draft is not None and model is not None:
            self._drafting = Drafting(loaded.draft, model, vocab, samplers, stepper.sampler, eos_ids, self._clock)
        else:  # a draft model computes between a plan and its pass
            self._early = EarlyPass(scheduler, stepper)
        return scheduler, stepper

    def _see(self, loaded: Loaded[Vocabulary]) -> Encodings:
        if loaded.encoder is not None:
            self._encoding = Encoding(loaded.encoder, self._clock, self._send)
        self._encodings = Encodings(both_ways=loaded.images is not None and loaded.images.family == "gemma3")
        return self._encodings

    def _progress(self, share: float) -> None:
        if not self._inbox.empty():  # while loading nothing but Stop can come
            raise _StoppedError
        self._send(Progress(share))

    def _turn(self, scheduler: Scheduler, stepper: Stepper) -> None:
        early, prefilled = self._early, self._prefilled
        events: Events = {}
        asked = False
        if early is not None and early.ready:
            if self._inbox.empty() and not self._compiling:
                self._go_on(early, scheduler, stepper)
                return
            self._tell_soon(early.settle(), scheduler)
        while not self._inbox.empty() or not (scheduler.live or events) or self._idle:
            self._idle = False
            message = self._next(scheduler)
            if isinstance(message, Shed):
                self._shed()
            if message is None or isinstance(message, Ping | Shed):  # answered by what is told below
                asked = True
                break
            merge(events, self._receive(message, scheduler))
        merge(events, self._compiling.overdue())
        self._masks.give_up()
        if scheduler.live:
            if events:  # what has ended is not suspected of a step that it takes no part in
                self._tell_soon(events, scheduler)
            events = self._run(scheduler.plan(self._clock()), scheduler, stepper)
        waits = asked or self._idle or self._restoring or not scheduler.live  # no step follows at once, or somebody asked
        self._tell_soon(events, scheduler, now=waits, even_empty=waits or self._prefilled > prefilled)

    def _tell_soon(self, events: Events, scheduler: Scheduler, *, now: bool = False, even_empty: bool = False) -> None:
        """Tell of a step beside the next one, or ``now``, or where that is urgent."""
        self._flush(scheduler)  # of the one before, where that was not told yet
        self._tokens += drawn_tokens(events)
        if events or even_empty or not (self._early and self._early.ready):  # else the next pass tells of it
            self._untold = _Untold(events, even_empty)
        if now or urgent(events):
            self._flush(scheduler)

    def _go_on(self, early: EarlyPass, scheduler: Scheduler, stepper: Stepper) -> None:
        """The step that was expected: beside it the one before is taken in and told, and it is planned."""
        begin = self._clock()
        plan, results = early.go_on(lambda: scheduler.plan(begin), lambda events: self._tell_soon(events, scheduler, now=True))
        if results is None:
            self._tell_soon(self._run(plan, scheduler, stepper), scheduler)
            return
        self._steps += 1
        scheduler.learn(plan.tokens, self._clock() - begin)
        if events := early.take(plan, results):
            self._tell_soon(events, scheduler)

    def _next(self, scheduler: Scheduler) -> Heard | None:
        """The next message; ``None``: nothing came, and guides are being compiled, or masks made, or pixels are on their way."""
        at_work = self._compiling or scheduler.live
        while not at_work and self._inbox.empty() and self._headroom.more():
            pass
        try:
            return self._inbox.get(timeout=BEAT_S if at_work else None)
        except Empty:
            return None

    def _flush(self, scheduler: Scheduler, *, prompt: bool = False) -> None:
        """Tell of the last step, once, as far as that is due; before a ``prompt``, which takes long, all that streams wait for."""
        now = self._clock()
        if self._untold is not None:
            running = 0 if self._idle else scheduler.running
            told = self._delivery.step(self._untold.events, running, now, even_empty=self._untold.even_empty)
            if told is not None:
                self._send_step(scheduler, told)
            self._untold = None
        if prompt and (kept := self._delivery.streams(now)):
            self._send_step(scheduler, kept)

    def _send_step(self, scheduler: Scheduler, events: Events) -> None:
        drafts, drafting, compiling = scheduler.drafts, self._drafting, self._compiling
        counts = Counts(
            steps=self._steps,
            tokens=self._tokens,
            prefilled=self._prefilled,
            preempted=scheduler.preempted,
            queried=scheduler.queried,
            found=scheduler.found,
            drafts=drafts.made,
            drafted=drafts.accepted + drafts.rejected,
            accepted=drafts.accepted,
            compiled=compiling.compiled,
            compile_s=compiling.seconds,
            mask_s=self._masks.seconds,
            drafted_by_model=drafting.drafted if drafting else 0,
            accepted_by_model=drafting.accepted if drafting else 0,
        )
        deferred = compiling.sequences
        waiting = scheduler.live - scheduler.running + deferred
        self._send(Stepped(scheduler.running, waiting, counts, self._pool.state, events, deferred))

    def _receive(self, message: Heard, scheduler: Scheduler) -> Events:
        match message:
            case Submit():
                if not self._compiling.begin(message):
                    self._add(message, scheduler)
                elif self._supervised:  # should it take the whole process along, it is a suspect
                    self._send(Started((message.request_id,)))
            case Compiled(request_id):
                submit, aborts, events = self._compiling.end(request_id)
                if submit is not None:
                    self._add(submit, scheduler)
                for seq in aborts:
                    merge(events, scheduler.abort(request_id, seq))
                return events
            case Abort(request_id, seq):
                ended = self._compiling.abort(request_id, seq)
                return scheduler.abort(request_id, seq) if ended is None else ended
            case Filled(seq):
                seq.late = False
            case Pixels():
                if self._encoding is not None:
                    self._encoding.take(message)
            case Stop():
                raise _StoppedError
        return {}

    def _add(self, submit: Submit, scheduler: Scheduler) -> None:
        """There is room: that was asked for before it was sent."""
        scheduler.add(submit.request_id, submit.sequences(), submit.at, submit.tenant, submit.weight)
        self._delivery.begin(submit.request_id, submit.urgency, len(submit.samples))

    def _run(self, plan: Plan, scheduler: Scheduler, stepper: Stepper) -> Events:
        early, prefilled = self._early, plan.prefilled
        if plan.encoding is not None or self._drafting is not None:  # before the pass something else is computed
            self._flush(scheduler)
        if self._supervised:
            self._announce(plan)
        if refused := self._encode(plan, scheduler):
            self._tell_soon(refused, scheduler)
        if self._drafting is not None:
            self._drafting.fill(plan)
        steps = bool(plan.segments) or (plan.encoding is not None and not self._awaits_pixels)
        self._restoring = plan.restoring and not steps
        self._idle = not (steps or plan.restoring)
        begin = self._clock()

        def meanwhile(work: Work) -> None:
            self._flush(scheduler, prompt=prefilled > 0)
            if early is not None:
                early.expect(work)

        try:
            stepper.copy(plan.copies)
            events = run(plan, scheduler, stepper, meanwhile, early.take if early else None)
        finally:
            self._steps += steps
            self._tokens += prefilled
            self._prefilled += prefilled
        seconds = self._clock() - begin
        scheduler.learn(plan.tokens, seconds)
        if self._drafting is not None:
            self._drafting.learn(plan, seconds)
        return events

    @property
    def _awaits_pixels(self) -> bool:
        return self._encoding is not None and self._encoding.waits

    def _encode(self, plan: Plan, scheduler: Scheduler) -> Events:
        """A piece of the image whose turn it is; one that cannot be encoded ends its request."""
        job = plan.encoding
        if self._encoding is None:
            return {}
        try:
            rows = self._encoding.step(job, alone=not plan.segments)
        except Exception:
            _log.exception("an image could not be encoded")
            return scheduler.refuse(job.request_id, FAILED) if job else {}
        if job and rows is not None:
            self._encodings.keep(job.key, rows)
        return {}

    def _shed(self) -> None:
        """Give back the memory of what is kept for requests to come."""
        self._encodings.shed()
        self._runner.drop_pages([*self._pool.shed(), *self._headroom.shed()])
        if self._drafting is not None:
            self._drafting.shed()
        if not self._compiling:  # else some of them are about to be used
            self._guides.shed()
        heap.give_back()

    def _announce(self, plan: Plan) -> None:
        computed = {seq.request_id for seq in plan.sequences} | ({plan.encoding.request_id} if plan.encoding else set())
        if new := computed - self._computed:
            self._send(Started(tuple(new)))
        self._computed = computed
