"""Guides are checked in a process that may crash, run out of time or of memory, before anything of the request starts.

As a program this is that process: it reads a kind and a text, and writes the translated guide or why it is refused.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable

from quintet.backends.native.guide_translate import GuideError, translate, verify
from quintet.errors import BadRequest, EngineFailed
from quintet.request import Guide, GuideKind

MAX_BYTES = 256 * 1024
"""Longest guide; the largest schemas that people use are a tenth of it."""

CPU_S = 0.8
"""Processor time for one check, so that a busy machine refuses nothing that an idle one accepts."""

MEMORY_BYTES = 2 << 30
CACHE_BYTES = 16 << 20
_WALL_S = 20.0  # for a machine that gives it no time at all
_AT_ONCE = 2
_STACK = 1 << 20  # an eighth of what the engine's threads have: what fits here does not overflow there
_REFUSED = 3
_TOO_COMPLEX = "is too complex"


class GuideCheck:
    """Checks guides, and remembers what came of it."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[GuideKind, str], str | GuideError] = OrderedDict()
        self._bytes = 0
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def translate(self, guides: Iterable[Guide | None]) -> dict[Guide, str]:
        """Each distinct guide as ``guide.Guides`` takes it.

        Raises:
            BadRequest: one cannot be followed.
        """
        return {guide: await self._one(guide) for guide in dict.fromkeys(guides) if guide is not None}

    async def _one(self, guide: Guide) -> str:
        key = guide.kind, guide.text
        if key in self._known:
            self._known.move_to_end(key)
        else:
            self._keep(key, await self._check(guide))
        result = self._known[key]
        if isinstance(result, GuideError):
            raise BadRequest(guide.param, str(result), code="grammar_too_complex" if str(result) == _TOO_COMPLEX else "invalid_value")
        return result

    async def _check(self, guide: Guide) -> str | GuideError:
        text = guide.text.encode("utf-8", "surrogatepass")
        if len(text) > MAX_BYTES:
            return GuideError(f"must be at most {MAX_BYTES} bytes")
        async with self._slots:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__, guide.kind.name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                output, _ = await asyncio.wait_for(child.communicate(text), _WALL_S)
            except TimeoutError:
                return GuideError(_TOO_COMPLEX)
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()
        if child.returncode == 1:  # it could not even begin
            raise EngineFailed("Guides cannot be checked.")
        if child.returncode not in (0, _REFUSED):
            return GuideError(_TOO_COMPLEX)
        return output.decode() if child.returncode == 0 else GuideError(output.decode())

    def _keep(self, key: tuple[GuideKind, str], result: str | GuideError) -> None:
        self._known[key] = result
        self._bytes += _size(key, result)
        while len(self._known) > 1 and self._bytes > CACHE_BYTES:
            self._bytes -= _size(*self._known.popitem(last=False))


def _size(key: tuple[GuideKind, str], result: str | GuideError) -> int:
    return 200 + len(key[1]) + len(str(result))


def main() -> None:
    """The child. Its exit status: 0 = stdout has the guide, ``_REFUSED`` = stdout says why not, a signal = too complex."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, CPU_S)  # counts the time of all threads; SIGPROF ends the process
    kind, text = GuideKind[sys.argv[1]], sys.stdin.buffer.read()
    results: list[tuple[int, str]] = []
    threading.stack_size(_STACK)
    thread = threading.Thread(target=lambda: results.append(_checked(kind, text)))
    thread.start()
    thread.join()
    status, output = results[0]
    sys.stdout.buffer.write(output.encode())
    sys.stdout.flush()
    sys.exit(status)


def _checked(kind: GuideKind, text: bytes) -> tuple[int, str]:
    try:
        grammar = translate(kind, text.decode())
        verify(kind, grammar)
    except UnicodeDecodeError:
        return _REFUSED, "must be Unicode text, without lone surrogates"
    except GuideError as error:
        return _REFUSED, str(error)
    except MemoryError:
        return _REFUSED, _TOO_COMPLEX
    return 0, grammar


if __name__ == "__main__":
    main()
