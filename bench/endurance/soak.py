"""A server at 70 % of what it can bear for hours, with a fault every minute: does anything grow, get lost or change?

    python -m bench.endurance.soak --hours 8
    python -m bench.endurance.soak --hours 0.05 --fault-every 15 --model toy

Requests arrive at a rate: streams, clients that leave, hostile bodies. In turn the engine is killed, crashed and stopped, and
connections come in storms. Memory, descriptors, threads and pages are looked at all the time, and at rest before and after. Exit code 1:
a figure falls short. Ctrl-C ends it early, with the report.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from statistics import median

from bench.common.figures import Ratio
from bench.common.proc import PeerError, say
from bench.endurance.peak import parser, peak, told, wait
from bench.endurance.server import MIB, Figures, Server, serving, stoppable
from bench.endurance.traffic import Seen, arriving, canary, crowd, leaving, lying, one, storm, story

SHARE = 0.7
GRACE_S = 1.0
"""After a fault is over, for what was on its way."""
GROWTH = 1.05
SLACK_MIB = 8.0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line -> options."""
    made = parser(__doc__, clients=32, tokens=64)
    made.add_argument("--hours", type=float, default=1.0, help="(default: %(default)g)")
    made.add_argument("--fault-every", type=float, default=60.0, help="seconds (default: %(default)g)")
    return made.parse_args(argv)


class Soak:
    """The load, the faults, and what is seen of both."""

    def __init__(self, server: Server, options: argparse.Namespace) -> None:
        self._server, self._options, self._rng = server, options, random.Random(3)
        self.seen = Seen()
        self.statuses: list[tuple[float, int]] = []
        self.faults: list[tuple[float, float]] = []
        self.looks: list[Figures] = []
        self.answers: Counter[bytes] = Counter()
        self.recoveries: list[float] = []

    async def run(self, rate: float, stop: asyncio.Event) -> None:
        """All of it."""
        async with crowd() as among:
            among.add(arriving(self._rng, rate, self._client, among))
            among.add(self._watch())
            among.add(self._hurting())
            await wait(stop, self._options.hours * 3600)

    async def _client(self) -> None:
        """One in ten leaves, one in ten lies, the others want an answer."""
        target, draw, rng = self._server.target, self._rng.random(), self._rng
        if draw < 0.1:
            await leaving(target, story(rng, 500), rng.choice((0.0, 0.01, 0.1, 1.0)))
        elif draw < 0.2:
            await lying(target, rng, self.statuses)
        else:
            await one(target, story(rng, self._options.tokens, n=rng.choice((1, 1, 1, 2)), logprobs=rng.choice((None, 2))), self.seen)

    async def _hurting(self) -> None:
        """A fault each time, in turn, and how long it lasts."""
        turn = 0
        while True:
            await asyncio.sleep(self._options.fault_every)
            begin, what = time.perf_counter(), (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP, None)[turn % 4]
            self.faults.append((begin, math.inf))  # it may outlast the soak
            if what is None:
                await storm(self._server.target, 200, self._rng)
            else:
                try:
                    self.recoveries.append(await self._server.hurt(what))
                except PeerError:
                    self.recoveries.append(math.inf)  # and what fails from here on is not this fault's any more
                say(f"{what.name}: ready after {self.recoveries[-1]:.1f} s")
            self.faults[-1] = (begin, time.perf_counter() + GRACE_S)
            self.answers[await canary(self._server.target)] += 1
            turn += 1

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self._options.hours * 360))
            look = await self._server.look()
            self.looks.append(look)
            told = f"{self.seen.whole} answered, {len(self.seen.refusals)} refused, {len(self.seen.broken)} broken off"
            say(f"{told}; front {look.front / MIB:.0f} MiB, {look.descriptors} descriptors; engine {look.engine / MIB:.0f} MiB")

    def lost(self) -> list[str]:
        """Why requests failed that no fault touched."""
        return [why for begin, end, why in self.seen.broken if not any(begin < over and end > hurt for hurt, over in self.faults)]

    def server_errors(self) -> int:
        """Hostile bodies that were answered as if the server were to blame, while no fault was under way."""
        found = (at for at, status in self.statuses if status >= 500)
        return sum(not any(hurt < at < over for hurt, over in self.faults) for at in found)


def growth(values: Sequence[int]) -> float:
    """The last quarter's median over that of the second: the first one is still warming up."""
    quarter = len(values) // 4
    return median(values[-quarter:]) / max(median(values[quarter : 2 * quarter]), 1) if quarter else 1.0


def report(soak: Soak, before: Figures, after: Figures) -> list[Ratio]:
    """The figures beside what they must be."""
    worst = partial(Ratio, column="", to="", at_most=True)
    allowed = GROWTH + SLACK_MIB * MIB / max(before.front, 1)
    return [
        worst("requests lost outside faults", value=float(len(soak.lost())), needed=0.0),
        worst("hostile bodies answered with 5xx outside faults", value=float(soak.server_errors()), needed=0.0),
        worst("answers to the same request", value=float(len(soak.answers.keys() - {b""})), needed=1.0),
        worst("longest recovery, s", value=max(soak.recoveries, default=0.0), needed=20.0),
        worst("front's memory, last quarter / second", value=growth([look.front for look in soak.looks]), needed=allowed),
        worst("engine's memory, last quarter / second", value=growth([look.engine for look in soak.looks if look.engine]), needed=1.25),
        worst("descriptors at rest, after - before", value=float(after.descriptors - before.descriptors), needed=2.0),
        worst("threads at rest, after - before", value=float(after.threads - before.threads), needed=2.0),
        worst("requests and pages held at rest", value=after.busy, needed=0.0),
    ]


async def measure(server: Server, options: argparse.Namespace) -> int:
    """Peak, soak, rest; the exit code."""
    stop = asyncio.Event()
    with stoppable(stop):
        best, _ = await peak(server, options, stop)
        await server.idle()
        before, rate = await server.look(), SHARE * best / options.tokens
        say(f"peak: {best:.0f} tokens/s; now {rate:.1f} requests/s for {options.hours:g} hours")
        if not rate:
            raise PeerError("nothing was answered")
        soak = Soak(server, options)
        soak.answers[await canary(server.target)] += 1
        await soak.run(rate, stop)
    await server.idle()
    await asyncio.sleep(1)  # the last connections are closed
    code = told(report(soak, before, await server.look()))
    asked = Counter(status for _, status in soak.statuses)
    print(f"{soak.seen.whole} answered, {len(soak.faults)} faults, hostile bodies {dict(asked)}; {soak.lost()[:3]}")
    return code


def main() -> int:
    options = parse(sys.argv[1:])
    try:
        with serving(options.model, kv_cache="128MiB") as server:
            return asyncio.run(measure(server, options))
    except PeerError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
