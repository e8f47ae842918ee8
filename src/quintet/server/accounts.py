"""What the ledger is told of a completion: a row before its work begins, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from quintet.dialects.base import Identity
from quintet.ledger.ledger import About, Entry, Ledger
from quintet.ledger.rows import State
from quintet.request import CompletionRequest
from quintet.server.call import Call
from quintet.server.guard import Guard
from quintet.server.http import CLIENT_LEFT, ClientGoneError
from quintet.server.telemetry import Observer
from quintet.service.job import Job

_BROKEN = 500


class Accounts:
    """The completions' side of a ledger; ``None`` = none is kept."""

    def __init__(self, ledger: Ledger | None) -> None:
        self._ledger = ledger

    @contextlib.asynccontextmanager
    async def row(self, call: Call, model: str, request: CompletionRequest, identity: Identity, job: Job) -> AsyncIterator[Account]:
        """A row of the ledger, open from entry to exit. If the job is not begun by then, there was none.

        Args:
            model: its first name.

        Raises:
            Overloaded: see ``Ledger.open``.
        """
        account = Account(call)
        if self._ledger is None:
            yield account
            return
        about = About(id=identity.id, key=call.caller.id, model=model, dialect=call.provider.name, n=request.n, arrived=call.arrived)
        entry = await self._ledger.open(about, lambda: job.usage)
        failure: BaseException | None = None
        try:
            yield account
        except BaseException as error:
            failure = error
            raise
        finally:
            if account.begun:
                account.close(entry, failure)
            else:
                await entry.withdraw()


class Account:
    """How one completion goes, as far as its row tells."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._observer: Observer | None = None
        self._guard: Guard | None = None

    @property
    def begun(self) -> bool:
        """It was given to the engine."""
        return self._observer is not None

    def begin(self, observer: Observer, guard: Guard) -> None:
        """It is given to the engine now."""
        self._observer, self._guard = observer, guard

    def close(self, entry: Entry, failure: BaseException | None) -> None:
        """It has ended, and its answer with it.

        A client that leaves after the last byte was sent has its answer, whatever is noticed of it.
        """
        assert self._observer is not None and self._guard is not None
        http = self._call.http
        if failure is None and http.ended:
            state = State.COMPLETED
        elif self._called_off(failure) or (failure is None and self._guard.gone):
            state = State.CANCELLED
        else:
            state = State.FAILED
        entry.close(state, self._observer.reason or "abort", http.status or self._status(failure), self._observer.first_s)

    def _called_off(self, failure: BaseException | None) -> bool:
        """Whoever asked wants no answer any more. Nobody waits for a batch's line: if it is ended, nothing failed for anybody."""
        return isinstance(failure, ClientGoneError) or (isinstance(failure, asyncio.CancelledError) and self._call.caller.background)

    def _status(self, failure: BaseException | None) -> int:
        """The status of an answer that is sent only after this."""
        if failure is None or self._called_off(failure):
            return CLIENT_LEFT
        return self._call.provider.dialect.error(failure).status if isinstance(failure, Exception) else _BROKEN
