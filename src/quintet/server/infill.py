"""``POST /infill``: a gap's surroundings become a prompt of tokens, as llama-server makes it, and the rest is a completion.

"Source": llama.cpp, tools/server/server-common.cpp, format_prompt_infill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from quintet.backends.base import Backend, FimTokens
from quintet.dialects.base import Parsed
from quintet.dialects.infill.dialect import Infill as Format
from quintet.dialects.infill.kinds import Gap
from quintet.dialects.infill.wire import Options, error
from quintet.errors import QuintetError, Unsupported
from quintet.request import CompletionRequest
from quintet.server.call import Call
from quintet.server.completions import CompletionApi, Completions

BATCH = 2048
"""Source: "pick FIM context to fit in a batch (ratio prefix:suffix = 3:1)"; a batch is 2048 tokens by default."""

# Source: the project's and the file's own name are these, whatever they are, and the last goes before a chunk of text where the model
# has no token for it.
PROJECT, FILE, SNIPPET = "myproject\n", "filename\n", "\n\n--- snippet ---\n\n"


_ROOM = 4
"""For the markers that a batch has no place for, a BOS, and one token to generate. The source keeps none, and can overflow."""


class Infill:
    """Endpoint."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._api = CompletionApi("llama.cpp", Format(), self._filled, done=b"")  # source: "[DONE]" ends streams in OpenAI's shape only

    async def __call__(self, call: Call) -> None:
        try:
            await self._completions.answer(call, self._api)
        except QuintetError as failure:
            if call.http.started:
                raise
            reply = error(failure)
            await call.http.reply(reply.status, reply.body, reply.headers)

    async def _filled(self, parsed: Parsed, backend: Backend) -> CompletionRequest:
        """The request with the gap's prompt."""
        assert isinstance(parsed.options, Options)
        gap, marks = parsed.options.gap, backend.tokenizer.fim
        if marks is None:
            # Source: "Infill is not supported by this model: [...] token is missing."
            raise Unsupported("", f"Infill is not supported by {backend.capabilities.model}: it has no fill-in-the-middle tokens")
        ids: dict[str, Sequence[int]] = {}
        for text in _texts(gap):
            # Source: only in what was typed last are special tokens' texts recognised; files are quoted.
            ids[text] = await backend.tokenize(text, add_special=False, quoted=True)
            await asyncio.sleep(0)  # thousands of files must not hold up the streams of others
        line = await backend.tokenize(gap.line, add_special=False)
        prompt = joined(gap, ids, line, marks, backend.capabilities.context)
        # A middle that goes on with one of these has ended, as with `suffix`.
        controls = replace(parsed.request.sampling, stop_token_ids=(marks.prefix, marks.suffix, marks.middle))
        return replace(parsed.request, prompts=(prompt,), sampling=controls)


def _texts(gap: Gap) -> dict[str, None]:
    """What must be tokenised as it stands, each by itself."""
    chunks = [part for chunk in gap.extra for part in (chunk.heading, chunk.text)]
    return dict.fromkeys([gap.prefix, gap.suffix, PROJECT, FILE, SNIPPET, *chunks])


def joined(gap: Gap, ids: Mapping[str, Sequence[int]], line: Sequence[int], marks: FimTokens, context: int) -> tuple[int, ...]:
    """The prompt: ``[extra] [BOS] <prefix> prefix line <suffix> suffix <middle>``, or with the suffix's part first.

    The end of the prefix, the beginning of the suffix and the end of the extra text are taken, as much as fits: three quarters of a batch,
    a quarter, and what remains of the context.

    Args:
        ids: of the gap's other texts and of the names above.
        line: its line's ids.
        context: most tokens of prompt and completion; below 4096 a batch is half of it, lest the prompt fill it.
    """
    batch = min(BATCH, context // 2)
    prefix, suffix = ids[gap.prefix], ids[gap.suffix]
    before = (marks.prefix, *_last(prefix, 3 * (batch // 4)), *line)
    after = (marks.suffix, *suffix[: max(0, batch // 4 - (2 + len(line)))])
    extra = _last(_extra(gap, ids, marks), max(0, context - batch - 2 * gap.most - _ROOM))
    first = () if marks.first is None else (marks.first,)
    return (*extra, *first, *(after + before if marks.suffix_first else before + after), marks.middle)


def _extra(gap: Gap, ids: Mapping[str, Sequence[int]], marks: FimTokens) -> list[int]:
    """Page: "If the model has `FIM_REPO` and `FIM_FILE_SEP` tokens, the repo-level pattern is used"; source: also without extra text."""
    made = [] if marks.repo is None else [marks.repo, *ids[PROJECT]]
    for chunk in gap.extra:
        made += ids[SNIPPET] if marks.separator is None else [marks.separator, *ids[chunk.heading]]
        made += ids[chunk.text]
    return made if marks.separator is None else [*made, marks.separator, *ids[FILE]]


def _last(ids: Sequence[int], most: int) -> Sequence[int]:
    return ids[max(0, len(ids) - most) :]
