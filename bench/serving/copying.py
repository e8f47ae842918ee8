"""Copying: a given text is to be written again with one word changed, with and without speculation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from bench.common.figures import Ratio
from bench.common.plan import Plan
from bench.common.prompt import TEXT
from bench.serving.scenarios import OURS, Prompts, Scenario, Shown, Sizes, Table, checked, figure
from bench.serving.sessions import Session
from quintet.load.client import Trace
from quintet.load.figures import steady_rate, summary
from quintet.load.play import Body, Job, Load

OFF, AUTO = "speculation off", "speculation auto"
WORD, NEW = "lighthouse", "beacon"
ASKED = (
    '<|im_start|>user\nHere is a text:\n\n{text}\n\nWrite the text again, exactly as it is, but with the word "{word}" replaced by '
    '"{new}".<|im_end|>\n<|im_start|>assistant\n{begun}'
)


def text_of(words: int) -> str:
    """The benchmark's text, its first ``words`` words."""
    whole = json.loads(TEXT.read_text())["text"]
    return " ".join(whole.split()[:words])


class Copying(Scenario):
    """One client. The answer begins as the copy should, so that a small model keeps to the task."""

    key = "copying"
    title = "Writing a text of 300 tokens again with one word changed, one client: tokens per second while it decodes"
    engines = (OURS,)
    columns = ("tokens/s", "tokens", "copied", "same text", "failed")

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self._answers: list[str] = []

    @property
    def rounds(self) -> int:
        return self.sizes.rounds

    def plan(self, base: Plan) -> Plan:
        return replace(base, clients=(1,), prefill=1024)

    def starts(self, engine: str) -> Sequence[tuple[str, Sequence[str]]]:
        del engine
        return [(OFF, ("--speculation", "off")), (AUTO, ("--speculation", "auto"))]

    def body(self) -> Body:
        """The request."""
        text = text_of(self.sizes.copied)
        begun = " ".join(text.replace(WORD, NEW).split()[:12])
        asked = ASKED.format(text=text, word=WORD, new=NEW, begun=begun)
        body: Body = {"prompt": asked, "max_tokens": self.sizes.copy_tokens, "temperature": 0, "stream": True}
        return body | {"stream_options": {"include_usage": True}}

    def measure(self, session: Session, engine: str, prompts: Prompts) -> Iterator[Shown]:
        del prompts
        (trace,) = checked(session, Load([Job(self.body())], 1, keep=True))
        answer = streamed(trace)
        expected = text_of(self.sizes.copied).replace(WORD, NEW).split()[12:]
        copied = SequenceMatcher(None, expected, answer.split(), autojunk=False).ratio()
        self._answers.append(answer)
        figures = {"tokens/s": steady_rate([trace]), "tokens": float(trace.tokens), "copied": copied, "failed": 0.0}
        yield Shown(engine, "", figures | {"same text": float(answer == self._answers[0])}, summary([trace]) | {"answer": answer})

    def ratios(self, table: Table) -> Iterator[Ratio]:
        off, auto = figure(table, OURS, "tokens/s", OFF), figure(table, OURS, "tokens/s", AUTO)
        if off and auto:
            yield Ratio("ours, speculation auto / off", "tokens/s", auto / off, 2.0, "")
            yield Ratio("ours, same text with and without", "same text", float(len(set(self._answers)) == 1), 1.0, "")


def streamed(trace: Trace) -> str:
    """The text of a kept stream."""
    events = [json.loads(line) for line in trace.body.splitlines() if line != b"[DONE]"]
    return "".join(choice["text"] for event in events for choice in event.get("choices", ()))
