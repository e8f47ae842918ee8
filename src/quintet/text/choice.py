"""One choice: token events -> final text, with offsets and log-probabilities.

What a client can rely on:

- With an echo the first delta is the prompt (or the texts of its last tokens), whole and alone. A text prompt comes back exactly as it
  was sent; a prompt of token ids comes back as its pieces decoded, with control tokens, which have no bytes, written out.
- The prompt and the generated text are decoded, and stop strings looked for, each on its own: nothing spans the border.
- With ``prompt_ids`` the first delta has the ids of the whole prompt, and of its text what ``echo`` shows.
- ``offset`` counts from the start of the prompt text whether or not it is echoed, so a choice's first token tells where to rebase.
- With log-probabilities a token comes with its text: ``''.join(token.text)`` is the delta's text, so a token waits while part of it is
  held back. Every token has an entry; end-of-sequence and control tokens have the text ``''``, and a ``name``.
- When a stop string cuts the text, the entries cut with it: a token cut in two keeps the part that is returned (``raw`` stays
  whole), later ones go. A token that is a fragment of a character goes with that character.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Container, Mapping
from typing import NamedTuple

from quintet.events import ChoiceDelta, ChoiceDone, Finish, TokenEvent, TokenText
from quintet.prediction import Follower, Predicted
from quintet.text.detokenize import Detokenizer
from quintet.text.entries import Echo, Entries, Scores
from quintet.text.labels import Labels
from quintet.text.stop import Patterns, StopMatcher
from quintet.thinking import ThinkCounter, Thinking


class Choice:
    """Turns the token events of one sequence into deltas and one ``ChoiceDone``.

    Args:
        index: the choice's number in the request.
        start: characters of the prompt's text, from which ``offset`` counts on.
        echo: start with it; all its entries have been added by the time of the first event.
        logprobs: fill ``ChoiceDelta.tokens``.
        patterns, include: stop strings, see ``StopMatcher``.
        stop_tokens: control token -> the stop string that is its text.
        min_tokens: a stop string that completes before so many tokens does not end the choice.
        seed: reported in ``ChoiceDone``.
        labels: what lists call tokens.
        thinking: where it may think; ``None`` = nothing counts as thinking.
        prediction: what the client thought that its tokens would be; ``None`` = nothing.
        prompt_ids: the first delta is to tell these.
        scores: likewise; complete by the time of the first event.
        stop_ids: tokens that the request wants to end at.
    """

    def __init__(
        self,
        index: int,
        *,
        start: int,
        echo: Echo | None,
        logprobs: bool,
        patterns: Patterns,
        include: bool,
        seed: int,
        labels: Labels,
        min_tokens: int = 0,
        stop_tokens: Mapping[int, str] | None = None,
        thinking: Thinking | None = None,
        prediction: Predicted | None = None,
        prompt_ids: tuple[int, ...] | None = None,
        scores: Scores | None = None,
        stop_ids: Container[int] = (),
    ) -> None:
        self.done = False
        self.completion_tokens = self.reasoning_tokens = 0
        self._thinking = ThinkCounter(thinking) if thinking else None
        self._follower = Follower(prediction) if prediction else None
        self._predicted, self._matched = len(prediction.tokens) if prediction else 0, 0
        # Where it may think, or has a prediction: after each token, ``reasoning_tokens``, then ``_matched``.
        self._counts = array("L")
        self._index = index
        self._seed = seed
        self._echo = echo
        self._prompt_ids = prompt_ids
        self._scores = scores
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._stop_tokens, self._include = stop_tokens or {}, include
        self._detokenizer = Detokenizer()
        self._matcher = StopMatcher(patterns, include)
        self._pending = _PendingTokens(Entries(start, labels), cuts=bool(patterns)) if logprobs else None

    @property
    def predicted(self) -> tuple[int, int]:
        """Tokens of the prediction that the choice has so far, and that it has not."""
        return self._matched, self._predicted - self._matched

    def feed(self, event: TokenEvent) -> list[ChoiceDelta | ChoiceDone]:
        """What an event that is not the prompt's makes final. Nothing may be fed once ``done``."""
        out: list[ChoiceDelta | ChoiceDone] = []
        if self._echo is not None or self._prompt_ids is not None or self._scores is not None:
            out.append(self._prompt_delta())
            self._echo, self._prompt_ids, self._scores = None, None, None
        text, stop = self._advance(event)
        if delta := self._release(text, cut=stop is not None):
            out.append(delta)
        if stop is not None:
            out.append(self._end(Finish.STOP, stop))
        elif event.finish is Finish.EOS and event.token in self._stop_ids:  # the request ended the text, and not the model
            out.append(self._end(Finish.STOP, stop_id=event.token))
        elif event.finish is not None:
            out.append(self._end(event.finish))
        return out

    def end(self) -> ChoiceDone:
        """Stop here, for a reason that is not among its events."""
        return self._end(Finish.STOP)

    def cut(self, tokens: int) -> None:
        """Stop here, whatever was fed: only so many tokens count, and what was of the thinking and of the prediction by then."""
        self.done, self.completion_tokens = True, tokens
        if self._counts:
            after = 2 * (tokens - 1)  # where the last of them left its two counts
            self.reasoning_tokens, self._matched = self._counts[after : after + 2] if tokens else (0, 0)

    def _advance(self, event: TokenEvent) -> tuple[str, str | None]:
        """Text that the event makes final, and the stop string if one completed."""
        text, stop = "", None
        if event.token >= 0:
            self._count(event)
            stop_text = self._stop_tokens.get(event.token, "")
            # The model's own end is told as that, as ever, but where the text is to contain what ended it.
            if stop_text and self.completion_tokens >= self._min_tokens and (self._include or event.finish is not Finish.EOS):
                return self._stop_at(event, stop_text)
            text, stop = self._decode(event)
        if stop is None and event.finish is not None:
            tail, stop = self._flush()
            text += tail
        return text, stop

    def _count(self, event: TokenEvent) -> None:
        self.completion_tokens += 1
        if self._follower:
            self._follower.feed(event.token)
            self._matched = self._follower.matched
        if self._thinking and event.finish is not Finish.EOS:
            self._thinking.feed(event.piece)
            self.reasoning_tokens = self._thinking.tokens
        if self._follower or self._thinking:
            self._counts.extend((self.reasoning_tokens, self._matched))

    def _stop_at(self, event: TokenEvent, stop_text: str) -> tuple[str, str]:
        """End at a control token whose text is a stop string; returns as ``_advance`` does."""
        text, stop = self._flush()
        if stop is not None or not self._include:
            return text, stop or stop_text
        if self._pending is not None:
            self._pending.add(event, stop_text, incomplete=False)
        return text + stop_text, stop_text

    def _decode(self, event: TokenEvent) -> tuple[str, str | None]:
        text = self._detokenizer.feed(event.piece)
        if self._pending is not None:
            self._pending.add(event, text, incomplete=self._detokenizer.pending)
        return self._match(text)

    def _match(self, text: str) -> tuple[str, str | None]:
        return self._matcher.feed(text, armed=self.completion_tokens >= self._min_tokens)

    def _flush(self) -> tuple[str, str | None]:
        """The events have ended: the text that was held back, and the stop string if one completed in it."""
        text = self._detokenizer.flush()
        if self._pending is not None:
            self._pending.complete(text)
        final, stop = self._match(text)
        return (final, stop) if stop is not None else (final + self._matcher.flush(), None)

    def _release(self, text: str, *, cut: bool) -> ChoiceDelta | None:
        """A delta of text that is final; with log-probabilities, of the tokens that are whole now. ``cut``: it is the last."""
        if self._pending is None:
            return ChoiceDelta(self._index, text) if text else None
        tokens = self._pending.take(len(text), cut=cut)
        return ChoiceDelta(self._index, "".join(token.text for token in tokens), tokens) if tokens else None

    def _prompt_delta(self) -> ChoiceDelta:
        text, tokens = ("", ()) if self._echo is None else (self._echo.text, self._echo.tokens)
        return ChoiceDelta(self._index, text, tokens, self._prompt_ids, None if self._scores is None else self._scores.tokens)

    def _end(self, finish: Finish, stop: str = "", stop_id: int | None = None) -> ChoiceDone:
        self.done = True
        return ChoiceDone(self._index, finish, stop, self._seed, stop_id=stop_id, tokens=self.completion_tokens)


class _PendingToken(NamedTuple):
    """A token and its text; ``incomplete``: the bytes so far end inside a character."""

    event: TokenEvent
    text: str
    incomplete: bool


class _PendingTokens:
    """Tokens in order that wait for their text to be released.

    Args:
        cuts: a stop string may cut the text inside a token. Then tokens that share characters come together, when all of them are whole:
            what came before could not be taken back.
    """

    def __init__(self, entries: Entries, *, cuts: bool) -> None:
        self._entries = entries
        self._cuts = cuts
        self._waiting: deque[_PendingToken] = deque()
        self._released = 0  # characters that may be returned and are not yet in a taken token
        # The group: the tokens at the head that are to come together. Kept up as tokens are added, lest a run that never completes be
        # walked for each of its tokens.
        self._group_tokens, self._group_characters = 0, 0
        self._group_open = True  # the next token joins it

    def add(self, event: TokenEvent, text: str, *, incomplete: bool) -> None:
        """See ``_PendingToken``."""
        self._waiting.append(_PendingToken(event, text, incomplete))
        self._join(text, incomplete)

    def complete(self, tail: str) -> None:
        """The bytes have ended; ``tail`` is the text of an unfinished character and belongs to the last token that has bytes."""
        if tail:
            last = max(at for at, token in enumerate(self._waiting) if token.event.piece)
            self._waiting[last] = self._waiting[last]._replace(text=self._waiting[last].text + tail)
            for at in range(last, len(self._waiting)):
                self._waiting[at] = self._waiting[at]._replace(incomplete=False)
            self._regroup()

    def take(self, released: int, *, cut: bool) -> tuple[TokenText, ...]:
        """The tokens that are whole after ``released`` more characters.

        With ``cut`` these are the last characters ever: a token that goes on past them is trimmed to them, and is not whole, nor are those
        that share characters with it.
        """
        self._released += released
        taken: list[TokenText] = []
        while not self._group_open and self._group_characters <= self._released:
            taken += [self._take() for _ in range(self._group_tokens)]
            self._regroup()
        while cut and self._released:
            taken.append(self._take(whole=False))
        return tuple(taken)

    def _regroup(self) -> None:
        self._group_tokens, self._group_characters, self._group_open = 0, 0, True
        for _, text, incomplete in self._waiting:
            self._join(text, incomplete)
            if not self._group_open:
                return

    def _join(self, text: str, incomplete: bool) -> None:
        """The next token is one of the group, if that is not whole without it."""
        if self._group_open:
            self._group_tokens += 1
            # Where nothing cuts, a token waits for the character that it opens, which is the first one of a later token's text.
            self._group_characters += len(text) + (incomplete and not self._cuts)
            self._group_open = incomplete and self._cuts

    def _take(self, *, whole: bool = True) -> TokenText:
        event, text, _ = self._waiting.popleft()
        text = text[: self._released]
        self._released -= len(text)
        return self._entries.add(event, text, whole=whole)
