"""Asks a moderation model about texts, over any engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from quintet.backends.base import Backend
from quintet.backends.retry import until_room
from quintet.errors import EngineFailed, Overloaded, PromptTooLong, shorten
from quintet.events import Finish, Flagged, TokenEvent
from quintet.inputs.prepare import Preparer
from quintet.inputs.sequence import Prepared, PreparedSequence, SequenceSpec
from quintet.moderation.format import Format, Layout
from quintet.moderation.growing import Growing
from quintet.moderation.reading import Reader
from quintet.request import Sampling

ALTERNATIVES = 20
"""Of a token, among which both answers are looked for."""

AT_ONCE = 16
"""Sequences of one request, or those of one text: of a request of many choices more would only wait in the moderation model's queue, where
nobody asked for room for all of them, and in the end be refused with a part of the answer out."""

Told = Callable[[str, str, float], None]
"""Told of each judgement: of a ``prompt`` or an ``output``, that it is ``safe``, ``unsafe`` or has ``failed``, and the seconds it took."""


@dataclass(frozen=True, slots=True)
class Moderator:
    """A moderation model that can be asked.

    Args:
        name: that the client used.
        preparer: for ``backend``.
        told: of each judgement that was not called off.
    """

    name: str
    form: Format
    backend: Backend
    preparer: Preparer
    told: Told


class Judge:
    """Judges the texts of one request.

    Args:
        ids: of requests, for all engines.
        clock: seconds, monotonic.
        tenant, weight: who asks, see ``Prepared``.
        salt: of the prefixes that are cached; see ``SequenceSpec``.
    """

    def __init__(
        self, moderator: Moderator, ids: Iterator[int], clock: Callable[[], float], tenant: str = "", weight: int = 1, salt: str = ""
    ) -> None:
        self._moderator, self._ids, self._clock = moderator, ids, clock
        self._tenant, self._weight, self._salt = tenant, weight, salt
        self._growing: dict[tuple[int, int, int], Growing] = {}  # by choice, question and part of its layout
        self._places = asyncio.Semaphore(max(1, AT_ONCE // len(moderator.form.questions)))

    async def judge(self, prompt: str, output: str | None = None, choice: int = 0) -> Flagged | None:
        """What is wrong with an output, or without one, with a prompt; ``None`` = it is safe. Cancelled, it leaves no work behind.

        Args:
            choice: whose output it is, of which every judgement sees more; one at a time.

        Raises:
            PromptTooLong: it does not fit the model's context.
            Loading, Overloaded, TooManyRequests: the model takes no work now. For an output that is waited for.
            EngineFailed: it died, or did not answer in its own terms.
        """
        text, start = "prompt" if output is None else "output", self._clock()
        try:
            flagged = await self._ask(prompt, output, choice)
        except Exception:  # not a cancellation: a judgement that is called off is not counted
            self._moderator.told(text, "failed", self._clock() - start)
            raise
        self._moderator.told(text, "unsafe" if flagged else "safe", self._clock() - start)
        return flagged

    async def _ask(self, prompt: str, output: str | None, choice: int) -> Flagged | None:
        form = self._moderator.form
        layouts = [question.prompt if output is None else question.output for question in form.questions]
        readers = [Reader(form, layout.after, self._moderator.backend.capabilities.pieces) for layout in layouts]
        async with self._places:
            await self._read(await self._prepared(layouts, prompt, output, choice), readers)
        if any(reader.unsafe is None for reader in readers):
            raise EngineFailed(f"The moderation model {shorten(self._moderator.name)} did not say whether the text is safe.")
        if not any(reader.unsafe for reader in readers):
            return None
        categories: list[tuple[str, str]] = []
        for question, reader in zip(form.questions, readers, strict=True):
            if reader.unsafe:
                categories += reader.categories(question)
        return Flagged(self._moderator.name, tuple(categories))

    async def _prepared(self, layouts: Sequence[Layout], prompt: str, output: str | None, choice: int) -> Prepared:
        """There is room for it until the event loop gets its turn.

        Whoever asks about a prompt can come again and loses nothing. An output would be lost, and what its client has seen of it; and a
        judgement that was under way as the engine died is waited for too.
        """
        backend, begun = self._moderator.backend, output is not None
        sequences: tuple[PreparedSequence, ...] = ()  # made once, however often there is no room for them

        async def attempt() -> Prepared:
            nonlocal sequences
            sequences = sequences or await self._sequences(layouts, prompt, output, choice)
            backend.require_room(len(sequences), self._tenant, begun=begun)
            return Prepared(next(self._ids), sequences, tenant=self._tenant, weight=self._weight, shown=False)

        return await (until_room(backend, attempt) if begun else attempt())

    async def _tokens(self, layout: Layout, prompt: str, output: str | None, choice: int, question: int) -> tuple[int, ...]:
        """A question as token ids.

        Args:
            question: its number.
        """
        begin = await self._moderator.preparer.tokenize("", add_special=True, tenant=self._tenant)
        ids = [*begin[: self._moderator.backend.tokenizer.traits.added[0]]]
        parts = self._moderator.form.parts(layout, prompt, output or "")
        if output is None:  # whatever its size; with an output, it was judged before
            return *ids, *await self._moderator.preparer.quote([(part.text, not part.control) for part in parts], self._tenant)
        for at, part in enumerate(parts):
            encode = partial(self._moderator.preparer.tokenize, add_special=False, quoted=not part.control, tenant=self._tenant)
            if part.control:
                ids += await encode(part.text)
                continue
            growing = self._growing.setdefault((choice, question, at), Growing(encode, self._moderator.backend.capabilities.pieces))
            ids += await growing.ids(part.text)
        return tuple(ids)

    async def _sequences(self, layouts: Sequence[Layout], prompt: str, output: str | None, choice: int) -> tuple[PreparedSequence, ...]:
        about = self._moderator.backend.capabilities
        sampling, top = Sampling(temperature=0.0, top_p=1.0, seed=0), min(ALTERNATIVES, about.max_logprobs)
        try:
            asked = [await self._tokens(layout, prompt, output, choice, number) for number, layout in enumerate(layouts)]
            specs = [SequenceSpec(ids, self._moderator.form.most, sampling, top, echo=False, cache_salt=self._salt) for ids in asked]
            return await self._moderator.preparer.prepare(specs, self._tenant)
        except PromptTooLong as error:
            name = shorten(self._moderator.name)
            rule = f"must be a model whose context holds what it is to judge; that of {name} has {about.context} tokens"
            raise PromptTooLong("safety_model", rule, error.got) from None

    async def _read(self, prepared: Prepared, readers: Sequence[Reader]) -> None:
        """Read all answers, and no further than they are of use."""
        backend, running = self._moderator.backend, set(range(len(readers)))
        stream = backend.submit(prepared)
        try:
            async for batch in stream:
                for event in batch:
                    _require_answer(event, readers[event.seq])
                    readers[event.seq].feed(event)
                    if event.finish is not None:
                        running.discard(event.seq)
                    elif readers[event.seq].done:
                        backend.abort(prepared.request_id, event.seq)
                if all(reader.done for reader in readers):
                    return
        finally:
            if running:
                backend.abort(prepared.request_id)
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()


def _require_answer(event: TokenEvent, reader: Reader) -> None:
    if event.finish is Finish.ERROR:
        raise EngineFailed("The moderation model failed.")
    if event.finish is Finish.ABORT and not reader.done:
        raise Overloaded("The moderation model is shutting down.")
