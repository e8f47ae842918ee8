"""The load generator: what it makes of a server's bytes, when it sends, and what it reckons from the times."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.load.client import Chunked, Exchange, Target, Trace
from quintet.load.figures import from_json, nearest_rank, percentiles, steady_rate, summary, to_json
from quintet.load.play import Body, Job, Load, arrivals, over_http, perform, sustained


def event(text: str, usage: int | None = None) -> bytes:
    counted = None if usage is None else {"completion_tokens": usage}
    return b"data: " + json.dumps({"choices": [{"text": text, "index": 0}], "usage": counted}).encode() + b"\n\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
UNFRAMED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
DONE = b"data: [DONE]\n\n"
ANSWER = b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": 2}}'


def counted(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body) if length is None else length, body)


class Transport(asyncio.Transport):
    """Forgets what is written to it."""

    closed = False

    def write(self, data: object) -> None: ...

    def close(self) -> None:
        self.closed = True


def received(*pieces: bytes, keep: bool = False, lost: Exception | None = None, open_: bool = False) -> Trace:
    """The trace of an answer that came in these pieces; ``lost``: how the connection ended; ``open_``: not by the server."""
    trace, ended = Trace(time.perf_counter(), keep), []
    exchange, transport = Exchange(b"", trace, lambda: ended.append(1)), Transport()
    exchange.connection_made(transport)
    for piece in pieces:
        exchange.data_received(piece)
    assert transport.closed or not open_
    exchange.connection_lost(lost)
    assert ended == [1]
    return trace


# ---- the reader


@given(st.data())
def test_a_stream_reads_the_same_however_the_network_cuts_it(data: st.DataObject) -> None:
    answer = STREAM + chunked(event("one") + event(""), b": keep-alive\n\n", event(" two", 2), b"data: [DONE]\n\n")
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=8)))
    pieces = [answer[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    trace = received(*pieces, keep=True)
    assert (trace.status, trace.error, trace.tokens, len(trace.times)) == (200, "", 2, 2)
    assert [json.loads(line)["choices"][0]["text"] for line in trace.body.splitlines()[:-1]] == ["one", "", " two"]


def test_tokens_are_those_of_all_choices_whether_told_at_once_or_one_by_one() -> None:
    assert received(STREAM + chunked(event("a"), event("b", 9))).tokens == 9
    assert received(STREAM + chunked(event("a", 3), event("b", 2), event("c", 4))).tokens == 9


def test_an_answer_that_is_no_stream_counts_when_it_is_complete_whether_or_not_the_server_closes() -> None:
    whole = counted(ANSWER)
    trace = received(whole[:20], whole[20:60], whole[60:], open_=True)
    assert (trace.body, trace.error, len(trace.times)) == (ANSWER, "", 1)
    assert received(b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER).good, "its end is that of the connection"
    assert received(whole, lost=ConnectionResetError()).good, "it was all there"
    assert received(STREAM + chunked(event("a"), DONE), open_=True).good and received(UNFRAMED + event("a") + DONE).good


def test_heads_before_the_final_one_are_not_the_answer() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 3\r\n\r\n"
    answer = early + STREAM + chunked(event("a", 1), DONE)
    for cut in range(1, len(early) + 20):
        trace = received(answer[:cut], answer[cut:])
        assert (trace.status, trace.good, trace.tokens) == (200, True, 1)
    assert not received(early).good


def test_usage_that_cannot_be_read_is_none() -> None:
    for usage in (b'"usage":{', b'"usage": {"completion_tokens": "many"}}', b'"x": {"usage": {"completion_tokens": 3}}}'):
        trace = received(STREAM + chunked(event("a"), b'data: {"choices": [], ' + usage + b"\n\n", DONE))
        assert (trace.good, trace.tokens) == (True, 0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\nwait", "status 429: wait"),
        (STREAM + chunked(event("a"))[:-5], "the answer broke off: connection closed"),
        (STREAM + chunked(event("a"), b'data: {"error": {"message": "gone"}}\n\n'), '{"error": {"message": "gone"}}'),
        (STREAM + chunked(event("a")), "the answer broke off: there is no data: [DONE]"),
        (UNFRAMED + event("a"), "the answer broke off: there is no data: [DONE]"),
        (counted(ANSWER[:-1], len(ANSWER)), "the answer broke off: connection closed"),
        (counted(b"<html>busy</html>"), "no completion: <html>busy</html>"),
        (counted(b'{"error": "no \\"choices\\""}'), 'no completion: {"error": "no \\"choices\\""}'),
        (counted(b""), "no completion: "),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP: b'SSH-2.0-OpenSSH'"),
        (STREAM + b"-9\r\n", "no HTTP: a chunk of a negative size"),
        (b"", "status 0: "),
    ],
)
def test_a_failure_is_told(answer: bytes, error: str) -> None:
    trace = received(answer)
    assert (trace.error, trace.good) == (error, False)
    assert len(trace.times) == (b"event-stream" in answer and event("a") in answer), "only what a stream had sent has a time"
    assert trace.failure in ("status 429", "broke off", "error in the stream", "no completion", "no HTTP", "no answer")


@pytest.mark.parametrize("answer", [counted(ANSWER[:-1], len(ANSWER)), b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER, UNFRAMED + event("a") + DONE])
def test_an_answer_whose_connection_was_reset_before_its_end_was_known_broke_off(answer: bytes) -> None:
    trace = received(answer, lost=ConnectionResetError("reset"))
    assert (trace.error, trace.good) == ("the answer broke off: reset", False)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"id":"x","choices":[{"text":"","index":0}],"error":{"object":"error","message":"gone"}}',
        b'{"message":"gone","status_code":500,"error":{"message":"gone"}}',
        b'{"object": "error", "message": "gone", "type": "t"}',
        b'{"error":"gone"}',
    ],
)
def test_an_error_in_a_stream_is_seen_in_each_providers_frame(frame: bytes) -> None:
    trace = received(STREAM + chunked(event("a"), b"data: " + frame + b"\n\n", DONE))
    assert (trace.error, trace.failure) == (frame.decode(), "error in the stream")


def test_a_text_or_a_token_about_errors_is_none() -> None:
    top = {"choices": [{"text": '{"error": {"object": "error"}}', "finish_reason": "error", "logprobs": {"top_logprobs": [{"error": -1}]}}]}
    for other in ({"error": None}, {"error": ""}, {"object": "text_completion"}):
        assert received(STREAM + chunked(b"data: " + json.dumps({**top, **other}).encode() + b"\n\n", DONE)).good


@given(st.binary(min_size=1, max_size=40), st.integers(1, 5))
def test_chunks_are_put_together_from_pieces_of_any_size(body: bytes, size: int) -> None:
    data, reader = chunked(body[:7] or b"x", body), Chunked()
    whole = b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert (whole, reader.done) == ((body[:7] or b"x") + body, True)


# ---- when requests are sent


def test_arrivals_are_poissons_and_the_same_for_the_same_seed() -> None:
    times = arrivals(5.0, 4000, 1)
    assert times == arrivals(5.0, 4000, 1) != arrivals(5.0, 4000, 2)
    waits = [late - early for early, late in zip([0.0, *times], times, strict=False)]
    assert min(waits) > 0
    mean = sum(waits) / len(waits)
    assert mean == pytest.approx(1 / 5.0, rel=0.05)
    assert sum((wait - mean) ** 2 for wait in waits) / len(waits) == pytest.approx(mean**2, rel=0.15), "as an exponential's"


def played(load: Load) -> tuple[list[Trace], list[tuple[str, object]]]:
    """A load against a server that answers after a few turns of the loop; what began and ended, in order."""
    told: list[tuple[str, object]] = []

    async def send(body: Body, trace: Trace) -> None:
        told.append(("begin", body["name"]))
        for _ in range(3):
            await asyncio.sleep(0)
        trace.times.append(time.perf_counter())
        trace.end = time.perf_counter()
        told.append(("end", body["name"]))

    return asyncio.run(perform(load, send)), told


def test_a_client_sends_its_next_request_when_the_last_one_was_answered() -> None:
    traces, told = played(Load([Job({"name": name}) for name in range(6)], clients=2))
    under_way = most = 0
    for what, _ in told:
        under_way += 1 if what == "begin" else -1
        most = max(most, under_way)
    assert (most, [name for what, name in told if what == "begin"]) == (2, list(range(6)))
    assert all(trace.good for trace in traces)


def test_arrivals_wait_for_nobody_and_their_latency_counts_from_when_they_were_due() -> None:
    load = Load([Job({"name": "late"}, 0.02), Job({"name": "soon"}, 0.0)])
    traces, told = played(load)
    assert [name for what, name in told if what == "begin"] == ["soon", "late"]
    assert traces[0].due - traces[1].due == pytest.approx(0.02)
    assert all(trace.times[0] >= trace.due for trace in traces)


def test_arrivals_after_the_clients_come_when_all_of_those_have_text() -> None:
    jobs = [Job({"name": "newcomer"}, 0.0), *(Job({"name": name}) for name in range(3))]
    traces, _ = played(Load(jobs, clients=3, after_clients=True))
    assert traces[0].due >= max(trace.times[0] for trace in traces[1:])


def test_arrivals_after_the_clients_do_not_wait_for_the_ends_of_their_answers() -> None:
    came = asyncio.Event()

    async def send(body: Body, trace: Trace) -> None:
        trace.times.append(time.perf_counter())
        if body["name"] == "newcomer":
            came.set()
        async with asyncio.timeout(30):
            await came.wait()

    load = Load([Job({"name": "newcomer"}, 0.0), Job({"name": "client"})], clients=1, after_clients=True)
    assert Load.from_json({**asdict(load), "jobs": [asdict(job) for job in load.jobs]}) == load, "as it crosses to another process"
    newcomer, client = asyncio.run(perform(load, send))
    assert newcomer.due >= client.times[0]


def test_a_server_that_is_not_there_fails_the_request_only() -> None:
    (trace,) = asyncio.run(over_http(Target("http://127.0.0.1:9/v1/completions", timeout=5.0), Load([Job({})], 1)))
    assert trace.error.startswith("no connection")


# ---- figures


def test_percentiles_are_by_nearest_rank_in_milliseconds() -> None:
    assert percentiles([]) == {}
    assert percentiles([0.25]) == {"p50": 250, "p90": 250, "p99": 250, "max": 250}
    assert percentiles([at / 1000 for at in range(1, 101)][::-1]) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert percentiles([0.001, 0.002, 0.003, 0.004]) == {"p50": 2, "p90": 4, "p99": 4, "max": 4}


@given(st.lists(st.integers(0, 20), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    enough = [one for one in values if 100 * sum(other <= one for other in values) >= percent * len(values)]
    assert nearest_rank(sorted(values), percent) == min(enough)


@given(st.lists(st.floats(0, 10), min_size=1))
def test_percentiles_are_values_that_were_there_and_do_not_fall(values: list[float]) -> None:
    found = list(percentiles(values).values())
    assert found == sorted(found)
    assert set(found) <= {round(1e3 * value, 2) for value in values}


def made(*times: float, due: float = 0.0, tokens: int = 0, error: str = "") -> Trace:
    return Trace(due, times=list(times), tokens=tokens, status=200, error=error, end=max(times, default=due))


def test_a_summary_counts_failures_apart_and_takes_tokens_from_the_server() -> None:
    told = summary([made(1.0, 2.0, 4.0, tokens=9), made(1.5, 3.0, due=0.5), made(9.0, due=0.5, error="lost")])
    assert (told["requests"], told["failed"], told["errors"], told["failures"]) == (3, 1, ["lost"], {"no answer": 1})
    assert (told["tokens"], told["wall_s"], told["tokens_per_s"]) == (11, 9.0, round(11 / 9, 2))
    assert told["ttft_ms"] == {"p50": 1000, "p90": 1000, "p99": 1000, "max": 1000}
    assert told["gap_ms"] == {"p50": 1500, "p90": 2000, "p99": 2000, "max": 2000}


def test_of_many_errors_a_summary_tells_three_and_of_each_kind_how_many() -> None:
    told = summary([made(error=f"the answer broke off: {number}") for number in range(5)] + [made(error="no HTTP: b'x'"), made()])
    assert told["errors"] == ["no HTTP: b'x'", "no text", "the answer broke off: 0"]
    assert told["failures"] == {"broke off": 5, "no HTTP": 1, "no text": 1}


def test_the_steady_rate_is_that_of_the_time_in_which_all_decode() -> None:
    assert steady_rate([made(1, 2, 3, 4, 5), made(2, 3, 4)]) == pytest.approx(4 / 2)
    assert steady_rate([made(1, 2), made(3, 4)]) == 0, "they never ran together"
    assert steady_rate([made(1, 2, 3), made(2.5, 2.75, 3.5)]) == pytest.approx(1 / 0.5 + 1 / 0.25), "one has a single arrival then"
    assert steady_rate([]) == 0


@given(st.integers(1, 20), st.integers(0, 19))
def test_how_many_steps_a_server_sends_together_does_not_change_the_steady_rate(together: int, late: int) -> None:
    """A token each 10 ms; sent after every so many of them, but for the first and the last one, which are sent at once."""

    def sent(begin: int, end: int) -> Trace:
        steps = (step if step in (begin, end) else min(end, step + (late - step) % together) for step in range(begin, end + 1))
        return made(*(1 + 0.01 * step for step in steps))

    assert steady_rate([sent(0, 200), sent(20, 180), sent(10, 190)]) == pytest.approx(300, rel=0.02)


def test_traces_cross_between_processes_but_for_the_zero_of_their_clock() -> None:
    sent = [made(11.0, 12.0, due=10.0, tokens=2), made(due=10.5, error="lost")]
    back = from_json(json.loads(json.dumps(to_json(sent))))
    assert [(trace.due, trace.times, trace.error, trace.tokens) for trace in back] == [(0.0, [1.0, 2.0], "", 2), (0.5, [], "lost", 0)]
    assert summary(back) == summary(sent)


def test_where_nobody_is_a_client_tries_a_few_times_a_second_and_not_as_often_as_it_is_refused() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and listens not
        target = Target(f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/completions")
        traces = asyncio.run(sustained(target, itertools.repeat({"prompt": "x"}), 2, 0.3))
    assert 2 <= len(traces) <= 2 * 4
    assert all(trace.failure == "no connection" for trace in traces)
