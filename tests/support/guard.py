"""A moderation model whose verdict is known: it reads what it is given and says what a test wants to hear of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from math import log

from tests.support.preparing import preparer_of

from quintet.backends.base import Health, State, require_open
from quintet.backends.toy import ToyTokenizer
from quintet.events import Finish, TokenEvent
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.sequence import Prepared
from quintet.inputs.tokenizer import Tokenizer
from quintet.moderation.format import Format, Layout, Question
from quintet.moderation.judge import Moderator

EOS = 256
PIECES = [*(bytes([byte]) for byte in range(256)), b""]
FORM = Format(
    name="test",
    source="this file",
    questions=(Question(Layout("judge <{prompt}>"), Layout("judge <{prompt}|{output}>")),),
    safe="safe",
    unsafe="unsafe",
    categories=(("S1", "Violence"), ("S2", "Weapons"), ("S10", "Lies")),
    most=32,
)


def judged(text: str) -> str:
    """What of a text of ``FORM`` is judged: the output, or else the prompt."""
    return text.removeprefix("judge <").removesuffix(">").rpartition("|")[2]


@dataclass(eq=False)
class Guard:
    """An engine over bytes.

    Args:
        bad: of the text that it is to judge: it is unsafe.
        why: follows "unsafe".
        says: its whole answer instead, whatever the text.
        pause: seconds of each step.
        dies_after: judgements; the next one fails.
        sure: probability of its first token.
    """

    bad: Callable[[str], bool] = lambda text: "BAD" in text
    why: bytes = b"\nS2,S10"
    says: bytes = b""
    pause: float = 0.0
    dies_after: int | None = None
    state: State = State.READY
    context: int = 4096
    sure: float = 0.9
    asked: list[str] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    most_running: int = 0
    aborted: list[tuple[int, int | None]] = field(default_factory=list)
    ended: set[tuple[int, int | None]] = field(default_factory=set)
    live: int = 0
    failure: Exception | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            model="guard",
            context=self.context,
            vocab=257,
            pieces=PIECES,
            max_logprobs=20,
            max_sequences=128,
            fingerprint="fp_guard",
            supported=EVERYTHING,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        self.require_room(0, begun=True)
        return ToyTokenizer()

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        if not (begun and self.state is State.DRAINING):
            require_open(self.state)

    async def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        texts = [bytes(one.tokens).decode() for one in prepared.sequences]
        self.asked += texts
        self.running.add(prepared.request_id)
        self.most_running = max(self.most_running, len(self.running))
        answers = [self._answer(judged(text)) for text in texts]
        dies = self.dies_after is not None and len(self.asked) > self.dies_after
        try:
            for at in range(32):
                await asyncio.sleep(self.pause)
                batch = [self._event(prepared.request_id, seq, answer, at, dies) for seq, answer in enumerate(answers)]
                yield [event for event in batch if event]
                if all((prepared.request_id, seq) in self.ended for seq in range(len(texts))):
                    return
        finally:
            self.running.discard(prepared.request_id)

    def _answer(self, text: str) -> bytes:
        return self.says or (b" unsafe" + self.why if self.bad(text) else b"safe")

    def _event(self, request: int, seq: int, answer: bytes, at: int, dies: bool) -> TokenEvent | None:
        if (request, seq) in self.ended:
            return None
        if dies:
            self.ended.add((request, seq))
            return TokenEvent(seq, -1, finish=Finish.ERROR, error="The engine failed.")
        if (request, seq) in self.aborted or (request, None) in self.aborted:
            self.ended.add((request, seq))
            return TokenEvent(seq, -1, finish=Finish.ABORT)
        if at >= len(answer):
            self.ended.add((request, seq))
            return TokenEvent(seq, EOS, b"", 0.0, finish=Finish.EOS)
        token = answer[at]
        other = b"u"[0] if token == b"s"[0] else b"s"[0]
        return TokenEvent(seq, token, PIECES[token], log(self.sure), ((token, log(self.sure)), (other, log(1 - self.sure))))

    def abort(self, request_id: int, seq: int | None = None) -> None:
        self.aborted.append((request_id, seq))

    def health(self) -> Health:
        return Health(self.state)

    def drain(self) -> None:
        self.state = State.DRAINING

    async def close(self) -> None:
        self.state = State.CLOSED


def moderator(guard: Guard, form: Format = FORM, told: Callable[[str, str, float], None] = lambda *_: None) -> Moderator:
    return Moderator("guard", form, guard, preparer_of(guard), told)
