"""A backend that plays a script: bytes are tokens 0-255, 256 ends the sequence, 257 and up are the words of the script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quintet.backends.base import Health, State, require_open
from quintet.backends.toy import ToyTokenizer
from quintet.errors import BadRequest, PromptTooLong
from quintet.events import Finish, TokenEvent
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.sequence import Prepared, PreparedSequence, SequenceSpec
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.traits import Roles, Traits

T = TypeVar("T")

EOS = 256
FIRST_WORD = 257


@dataclass
class ScriptedBackend:
    """Sequence s generates the script's words in order, starting at word s.

    Args:
        words: the bytes of the words.
        length: words before the end of the sequence; ``None`` = until ``max_tokens``.
        pause: seconds per step.
        break_after: steps after which the engine fails.
        told: as its health, instead of what goes with ``state``.
    """

    words: Sequence[bytes] = (b" the", b" cat", b" sat", b" on", b" a", b" mat", b".")
    length: int | None = 7
    context: int = 64
    pause: float = 0.0
    break_after: int | None = None
    state: State = State.READY
    aborted: list[tuple[int, int | None]] = field(default_factory=list)
    steps: int = 0
    told: Health | None = None
    submitted: int = 0
    prepared: int = 0
    closed: bool = False
    failure: Exception | None = None

    @property
    def capabilities(self) -> Capabilities:
        pieces = [bytes([byte]) for byte in range(256)] + [b""] + list(self.words)
        return Capabilities(
            model="scripted",
            context=self.context,
            vocab=len(pieces),
            pieces=pieces,
            max_logprobs=20,
            max_sequences=128,
            fingerprint="fp_scripted",
            supported=EVERYTHING,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer = ToyTokenizer()
        tokenizer.traits = Traits(roles=Roles(eos="</s>", chat_template="{{ messages }}"))
        return tokenizer

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        require_open(self.state)

    async def tokenize(self, text: str, add_special: bool, quoted: bool = False, tenant: str = "") -> list[int]:
        return [EOS] * add_special + list(text.encode())

    async def tokenize_inside(self, text: str, tenant: str = "") -> list[int]:
        return list(text.encode())

    async def tokenize_all(self, wanted: Iterable[str], add_special: bool, quoted: bool = False, tenant: str = "") -> dict[str, list[int]]:
        return {text: await self.tokenize(text, add_special, quoted, tenant) for text in wanted}

    async def run(self, _tenant: str, _size: int, work: Callable[[], T]) -> T:
        return work()

    async def prepare(self, specs: Sequence[SequenceSpec], tenant: str = "", watch: object = None) -> tuple[PreparedSequence, ...]:
        """It is the preparer too, in words of its own."""
        self.prepared += 1
        return tuple(self._prepare(spec) for spec in specs)

    async def stop_tokens(self, strings: Sequence[str], tenant: str = "") -> dict[int, str]:
        """No token of its has a text of its own."""
        return {}

    def _prepare(self, spec: SequenceSpec) -> PreparedSequence:
        tokens = tuple(spec.prompt.encode()) if isinstance(spec.prompt, str) else spec.prompt
        tokens = tokens or (EOS,)
        if bad := [token for token in tokens if token >= FIRST_WORD + len(self.words)]:
            raise BadRequest("prompt", "holds a token id outside the vocabulary", str(bad[0]))
        room = self.context - len(tokens)
        most = room if spec.max_tokens is None or (spec.truncate and spec.max_tokens > room > 0) else spec.max_tokens
        if len(tokens) + most > self.context:
            rule = f"and max_tokens must fit the context of {self.context} tokens"
            raise PromptTooLong("prompt", rule, f"{len(tokens)} and {most}")
        echo_from = 0 if spec.echo_last is None else max(0, len(tokens) - spec.echo_last)
        return PreparedSequence(tokens, most, spec.sampling, spec.logprobs, spec.echo, echo_from=echo_from)

    async def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        self.submitted += 1
        firsts = {one.tokens: seq for seq, one in reversed([*enumerate(prepared.sequences)])}
        playing = {seq: self._play(seq, one, first=firsts[one.tokens] == seq) for seq, one in enumerate(prepared.sequences)}
        step = 0
        while playing:
            await asyncio.sleep(self.pause)
            if self.closed or any(request == prepared.request_id and seq is None for request, seq in self.aborted):
                yield [TokenEvent(seq, -1, finish=Finish.ABORT) for seq in playing]
                return
            if step == self.break_after:
                yield [TokenEvent(seq, -1, finish=Finish.ERROR, error="The engine failed.") for seq in playing]
                return
            batch = [event for seq, play in playing.items() for event in next(play)]
            step += 1
            self.steps += 1
            yield batch
            playing = {seq: play for seq, play in playing.items() if not any(e.seq == seq and e.finish for e in batch)}
            for seq in [seq for seq in playing if (prepared.request_id, seq) in self.aborted]:
                del playing[seq]
                yield [TokenEvent(seq, -1, finish=Finish.ABORT)]

    def _play(self, seq: int, one: PreparedSequence, first: bool) -> Iterator[list[TokenEvent]]:
        """``first``: of those with this prompt."""
        shown = first and one.echo
        echo = [self._event(seq, at, token, one, prompt=True) for at, token in enumerate(one.tokens) if shown and at >= one.echo_from]
        if one.max_tokens == 0:
            yield [*echo, TokenEvent(seq, -1, finish=Finish.LENGTH)]
            return
        for at in range(one.max_tokens):
            ends = at == self.length
            token = EOS if ends else FIRST_WORD + (seq + at) % len(self.words)
            finish = Finish.EOS if ends else Finish.LENGTH if at + 1 == one.max_tokens else None
            yield [*(echo if at == 0 else []), self._event(seq, len(one.tokens) + at, token, one, finish=finish)]
            if finish:
                return

    def _event(
        self, seq: int, position: int, token: int, one: PreparedSequence, prompt: bool = False, finish: Finish | None = None
    ) -> TokenEvent:
        piece = self.capabilities.pieces[token]
        if one.logprobs is None or position == 0:
            return TokenEvent(seq, token, piece, None, (), prompt, finish)
        logprob = -0.25 * (position % 4)
        top = tuple((FIRST_WORD + rank, -0.125 - rank) for rank in range(one.logprobs))
        return TokenEvent(seq, token, piece, logprob, top, prompt, finish)

    def abort(self, request_id: int, seq: int | None = None) -> None:
        self.aborted.append((request_id, seq))

    def health(self) -> Health:
        return self.told or Health(self.state, 0.42 if self.state is State.LOADING else 1.0)

    @property
    def live(self) -> int:
        return 0

    def drain(self) -> None:
        self.state = State.DRAINING

    async def close(self) -> None:
        self.closed = True
