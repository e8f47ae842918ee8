"""A server under ten times the load it can bear: how much useful work it still does, and how soon it says no.

    python -m bench.endurance.overload                       # ten minutes, on the bundled model
    python -m bench.endurance.overload --seconds 60 --model toy

First as many clients as fill it, each waiting for its answers: that rate of tokens is its peak. Then requests arrive at ten times the rate
that it answered, whatever becomes of them, beside readers that hardly read, and every ten seconds a storm of connections that are cut at
once. Then all clients leave. Exit code 1: a figure falls short. Ctrl-C ends it early, with the report.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from functools import partial

from bench.common.figures import Ratio
from bench.common.proc import PeerError, say
from bench.endurance.peak import parser, peak, told, wait
from bench.endurance.server import MIB, Figures, Server, serving, stoppable
from bench.endurance.traffic import Crowd, Seen, arriving, crowd, one, storm, story, trickling
from quintet.load.figures import percentiles

GOODPUT = 0.9
REFUSAL_MS = 50.0
NORMAL_S = 5.0
GROWTH_MIB = 256.0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line -> options."""
    made = parser(__doc__, clients=64, tokens=128)
    made.add_argument("--seconds", type=float, default=600.0, help="of overload (default: %(default)g)")
    made.add_argument("--times", type=float, default=10.0, help="the load, in multiples of what it answers (default: %(default)g)")
    made.add_argument("--waiting", type=int, default=256, help="choices that may wait in the server (default: %(default)s)")
    made.add_argument("--trickles", type=int, default=4, help="readers that hardly read (default: %(default)s)")
    made.add_argument("--storm", type=int, default=100, help="connections of each storm (default: %(default)s)")
    return made.parse_args(argv)


class Overload:
    """Ten times what it can bear, and what is seen meanwhile."""

    def __init__(self, server: Server, options: argparse.Namespace, rate: float) -> None:
        self._server, self._options, self._rate, self._rng = server, options, rate, random.Random(2)
        self.seen = Seen()
        self.looks: list[Figures] = []
        self.span = (0.0, 0.0)

    async def run(self, stop: asyncio.Event) -> float:
        """All of it; seconds after its end until the server is idle and has answered a request."""
        options, target = self._options, self._server.target
        begin = time.perf_counter()
        async with crowd() as among:
            for _ in range(options.trickles):
                among.add(trickling(target, self._rng, 4 * options.tokens))
            among.add(arriving(self._rng, self._rate, lambda: one(target, story(self._rng, options.tokens), self.seen), among))
            among.add(self._storms(among))
            among.add(self._watch())
            await wait(stop, options.seconds)
            self.span = (begin + min(10.0, options.seconds / 3), time.perf_counter())
        over = time.perf_counter()
        await self._server.idle()
        await one(target, story(self._rng, 1), Seen())
        return time.perf_counter() - over

    async def _storms(self, among: Crowd) -> None:
        while True:
            await asyncio.sleep(10)
            among.add(storm(self._server.target, self._options.storm, self._rng))

    async def _watch(self) -> None:
        begin = time.perf_counter()
        while True:
            await asyncio.sleep(min(5.0, self._options.seconds / 4))
            look = await self._server.look()
            self.looks.append(look)
            told = f"{self.seen.whole} answered, {len(self.seen.refusals)} refused, {len(self.seen.broken)} broken"
            say(f"{look.at - begin:.0f} s: {told}; front {look.front / MIB:.0f} MiB, engine {look.engine / MIB:.0f} MiB")


def report(best: float, overload: Overload, before: Figures, normal: float) -> list[Ratio]:
    """The figures beside what they must be."""
    seen, most = overload.seen, max((look.front + look.engine for look in overload.looks), default=0)
    slow = percentiles(seen.refusals).get("p99", 0.0)
    worst = partial(Ratio, column="", to="", at_most=True)
    return [
        Ratio("goodput / peak", "", seen.rate(*overload.span) / best if best else 0.0, GOODPUT, ""),
        Ratio("requests refused", "", float(len(seen.refusals)), 1.0, ""),
        worst("refusals, p99, ms", value=slow, needed=REFUSAL_MS),
        worst("requests broken off", value=float(len(seen.broken)), needed=0.0),
        worst("memory beyond that at peak, MiB", value=max(most - before.front - before.engine, 0) / MIB, needed=GROWTH_MIB),
        worst("back to normal, s", value=normal, needed=NORMAL_S),
    ]


async def measure(server: Server, options: argparse.Namespace) -> int:
    """Peak, overload, rest; the exit code."""
    stop = asyncio.Event()
    with stoppable(stop):
        say(f"peak: {options.clients} clients for {options.peak:g} s")
        best, seen = await peak(server, options, stop)
        before = await server.look()
        await server.idle()
        rate = options.times * best / options.tokens
        say(f"peak: {best:.0f} tokens/s, {seen.whole} answers; now {rate:.1f} requests/s for {options.seconds:g} s")
        if not rate:
            raise PeerError("nothing was answered")
        overload = Overload(server, options, rate)
        normal = await overload.run(stop)
    code = told(report(best, overload, before, normal))
    done = overload.seen
    print(f"{done.whole} answered, {len(done.refusals)} refused (ms: {percentiles(done.refusals)}); {[why for *_, why in done.broken[:3]]}")
    return code


def main() -> int:
    options = parse(sys.argv[1:])
    try:
        with serving(options.model, "--max-waiting", str(options.waiting), kv_cache="256MiB") as server:
            return asyncio.run(measure(server, options))
    except PeerError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
