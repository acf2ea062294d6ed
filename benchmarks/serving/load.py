"""Load a service on this machine and compare every answer with the image's own.

    python benchmarks/serving/load.py MODEL IMAGES [--clients 64] [--seconds 600] [--engine auto] [--precision float32]
                                      [--baseline HF_FOLDER] [--figure memory.svg]

MODEL is a model file, or an exported one, such as one in int8.

1. Offline: `predict_stream` over the images with the same engine, in images per second.
2. Ready: seconds from the start of `vitreous serve` to 200 at /readyz, of the second start (graphs are converted).
3. Throughput: clients that send one image, wait, and send the next; a 429 or 503 is repeated after its Retry-After.
4. A plain endpoint of FastAPI around the Hugging Face pipeline, with --baseline: the folder of the same model written
   by `vitreous convert MODEL FOLDER --to huggingface`; same clients, and one at a time.
5. Twice saturation: requests arrive at twice the throughput whatever happens to those before. Time of rejections, time
   of accepted requests against that of a single one, memory of both processes over time.
6. The engine is killed under load: seconds until the next answer, and whether any client hangs.

Every answer is compared with that image's own, computed offline: the probability of its most probable class, to 0.002
or --tolerance. Prints a Markdown table; exits 1 if an answer is wrong or missing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_IDLE = 20.0  # seconds after which a connection is not used again
PLAIN = """
import io, sys, uvicorn
from fastapi import FastAPI, Request
from PIL import Image
from transformers import pipeline
app, classify = FastAPI(), pipeline("image-classification", model=sys.argv[1], device="cpu", use_fast=True)
@app.get("/readyz")
def ready(): return {}
@app.post("/v1/predict")
async def predict(request: Request):
    found = classify(Image.open(io.BytesIO(await request.body())).convert("RGB"))
    return {"predictions": [{"label": found[0]["label"], "probability": found[0]["score"]}]}
uvicorn.run(app, port=int(sys.argv[2]), log_level="critical")
"""


@dataclass
class Tally:
    """What came back."""

    accepted: list[float] = field(default_factory=list)  # seconds of each answer with status 200
    refused: list[float] = field(default_factory=list)  # and of each 429 or 503
    at: list[float] = field(default_factory=list)  # when each answer with 200 came
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class Connection:
    """A connection of HTTP/1.1 that sends one image after another; nothing else, so that it takes little time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.used = 0.0

    async def post(self, body: bytes) -> tuple[int, float, Any]:
        """Return status, Retry-After and document."""
        if time.monotonic() - self.used > _IDLE:
            self.close()  # the service may be closing it at this moment
        self.used = time.monotonic()
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        reader, writer = self.streams
        head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: image/jpeg\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            given = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(re.search(r"content-length: (\d+)", given)[1])  # type: ignore[index]
            content = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            raise
        delay = re.search(r"retry-after: (\d+)", given)
        if "connection: close" in given:
            self.close()
        return int(given.split()[1]), float(delay[1]) if delay else 0.0, json.loads(content)

    def close(self) -> None:
        """Close."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


class Load:
    """Images with the answers they must get."""

    def __init__(self, contents: list[bytes], expected: list[tuple[str, float]], port: int, tolerance: float) -> None:
        self.contents, self.expected, self.port, self.tolerance = contents, expected, port, tolerance

    async def ask(self, connection: Connection, which: int, tally: Tally, check: bool = True) -> tuple[int, float]:
        """Send an image and note what came back; return status and Retry-After."""
        start = time.perf_counter()
        try:
            async with asyncio.timeout(60):
                status, delay, document = await connection.post(self.contents[which])
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            connection.close()
            tally.lost.append(f"{type(error).__name__}: {error}")
            return 0, 0.0
        took = time.perf_counter() - start
        if status == 200:
            tally.accepted.append(took)
            tally.at.append(time.perf_counter())
            found, (label, probability) = document["predictions"][0], self.expected[which]
            top = {each["label"]: each["probability"] for each in found.get("top", [])}
            if check and abs(top.get(label, 0.0) - probability) > self.tolerance:
                tally.wrong.append(f"image {which}: {top}, not {label} {probability}")
        elif status in (429, 503):
            tally.refused.append(took)
        else:
            tally.wrong.append(f"image {which}: status {status}")
        return status, delay

    async def closed(self, clients: int, seconds: float, tally: Tally, check: bool = True) -> float:
        """Let clients send one image after another; return images per second. What is refused is repeated."""
        end = time.perf_counter() + seconds

        async def client(number: int) -> None:
            connection, chance = Connection(self.port), random.Random(number)
            while time.perf_counter() < end:
                which, status = chance.randrange(len(self.contents)), 0
                while status != 200 and time.perf_counter() < end + 60:
                    status, delay = await self.ask(connection, which, tally, check)
                    if status != 200:
                        await asyncio.sleep((delay or 0.2) * chance.uniform(1, 1.3))
            connection.close()

        start, before = time.perf_counter(), len(tally.at)
        await asyncio.gather(*(client(number) for number in range(clients)))
        done = sum(at <= end for at in tally.at[before:])
        return done / (end - start)

    async def open(self, rate: float, seconds: float, tally: Tally) -> None:
        """Send requests at a rate, each on a connection of its own or one that is free, whatever the answers."""
        free: list[Connection] = []
        tasks, chance = set(), random.Random(0)

        async def one(which: int) -> None:
            connection = free.pop() if free else Connection(self.port)
            await self.ask(connection, which, tally)
            free.append(connection)

        start = time.perf_counter()
        for number in range(int(rate * seconds)):
            pause = start + number / rate - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            task = asyncio.create_task(one(chance.randrange(len(self.contents))))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        for connection in free:
            connection.close()


@contextlib.contextmanager
def served(*words: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int, float]]:
    """Start `vitreous serve` or another program; yield process, port and seconds until /readyz is 200."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE if not port else None, text=True)
    try:
        while not port:
            line = process.stderr.readline()  # type: ignore[union-attr]
            if not line:
                raise SystemExit(f"the service ended with {process.wait()}")
            found = re.search(r"listening on http://127.0.0.1:(\d+)", line)
            port = int(found[1]) if found else 0
        while _status(port) != 200:
            if process.poll() is not None:
                raise SystemExit(f"the service ended with {process.returncode}")
            time.sleep(0.02)
        yield process, port, time.perf_counter() - start
    finally:
        process.terminate()
        if process.stderr is not None:
            process.stderr.read()
        process.wait(60)


def _status(port: int) -> int:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def memory(pid: int) -> float:
    """Resident MiB of a process and its children."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    total = 0.0
    for each in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
            total += next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)
    return total


def percentile(values: list[float], share: float) -> float:
    """Return a percentile; NaN of nothing."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def figure(path: Path, curve: list[tuple[float, float]]) -> None:
    """Draw memory over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(figsize=(6, 3))
    axes.plot([at / 60 for at, _ in curve], [value for _, value in curve])
    axes.set(xlabel="minutes at twice saturation", ylabel="MiB, both processes", ylim=(0, None))
    drawing.savefig(path, bbox_inches="tight")


async def overload(load: Load, process: Any, rate: float, seconds: float, tally: Tally) -> list[tuple[float, float]]:
    """Run at a rate, and note the memory each second."""
    curve: list[tuple[float, float]] = []
    start = time.perf_counter()

    async def watch() -> None:
        while True:
            curve.append((time.perf_counter() - start, memory(process.pid)))
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    await load.open(rate, seconds, tally)
    watching.cancel()
    return curve


async def killed(load: Load, process: Any, clients: int, tally: Tally) -> float:
    """Kill the engine under load; return the seconds until the first answer to a request that began afterwards."""
    running = asyncio.create_task(load.closed(clients, 20, tally))
    await asyncio.sleep(3)
    engines = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    at = time.perf_counter()
    for pid in engines:
        os.kill(int(pid), signal.SIGKILL)
    await running
    after = [time_ for time_ in tally.at if time_ > at + 0.2]
    return min(after) - at if after else float("nan")


def offline(
    model: str, engine: dict[str, str], contents: list[bytes], batch: int = 32
) -> tuple[list[tuple[str, float]], float]:
    """Return each image's label and probability, and images per second of a second pass."""
    import vitreous

    classifier = vitreous.load(model, **engine, device="cpu", tell=lambda line: print(line, file=sys.stderr))
    classifier.prepare(1_000_000, batch)
    answers = [(each.label, each.probability) for each in classifier.predict(contents, batch_size=batch)]
    start = time.perf_counter()
    classifier.predict(contents, batch_size=batch)
    return answers, len(contents) / (time.perf_counter() - start)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("images", type=Path, help="folder of JPEG files")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--overload-seconds", type=float, default=600)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--tolerance", type=float, default=0.002, help="of probabilities")
    parser.add_argument("--count", type=int, default=400, help="different images")
    parser.add_argument("--baseline", help="folder of the same model for transformers")
    parser.add_argument("--figure", type=Path, help="where to draw memory over time")
    options = parser.parse_args()
    paths = sorted(options.images.rglob("*.jpg"))
    contents = [path.read_bytes() for path in random.Random(0).sample(paths, min(options.count, len(paths)))]
    engine = {"engine": options.engine, "precision": options.precision}
    if Path(options.model).suffix not in ("", ".safetensors"):
        engine = {}  # an exported file has its own
    expected, rate_offline = offline(options.model, engine, contents)
    print(f"| offline, batch 32, {len(contents)} images | {rate_offline:.1f} img/s |", flush=True)
    failures: list[str] = []
    words = ["-m", "vitreous", "serve", options.model, "--port", "0", "--access-log=false"]
    for name, value in engine.items():
        words += [f"--{name}", value]
    with served(*words) as (process, port, ready):
        print(f"| ready after | {ready:.2f} s |", flush=True)
        load, single = Load(contents, expected, port, options.tolerance), Tally()
        asyncio.run(load.closed(1, min(10, options.seconds), single))
        one = statistics.median(single.accepted)
        print(f"| single request, median of {len(single.accepted)} | {1000 * one:.1f} ms |", flush=True)
        tally = Tally()
        rate = asyncio.run(load.closed(options.clients, options.seconds, tally))
        print(
            f"| {options.clients} clients, {options.seconds:g} s: {len(tally.accepted):,} answers, "
            f"{len(tally.refused):,} refused and repeated | {rate:.1f} img/s, {rate / rate_offline:.0%} of offline |",
            flush=True,
        )
        failures += tally.wrong + tally.lost
        tally = Tally()
        curve = asyncio.run(overload(load, process, 2 * rate, options.overload_seconds, tally))
        rejection, slow = percentile(tally.refused, 0.99), percentile(tally.accepted, 0.99)
        print(
            f"| twice saturation, {len(tally.accepted):,} accepted, {len(tally.refused):,} refused | "
            f"rejections: median {1000 * percentile(tally.refused, 0.5):.0f}, 99 % {1000 * rejection:.0f} ms; answers: "
            f"99 % {1000 * slow:.0f} ms, {slow / one:.1f} x single |",
            flush=True,
        )
        late = [value for at, value in curve if at > curve[-1][0] / 5]
        print(
            f"| memory, both processes, without the first fifth | {min(late):.0f} to {max(late):.0f} MiB |", flush=True
        )
        if options.figure:
            figure(options.figure, curve)
        failures += tally.wrong + tally.lost
        tally = Tally()
        restored = asyncio.run(killed(load, process, min(options.clients, 16), tally))
        print(f"| engine killed: next answer after | {restored:.1f} s, {len(tally.lost)} lost |", flush=True)
        failures += tally.wrong + tally.lost
    if options.baseline:
        with served("-c", PLAIN, options.baseline, "8765", port=8765) as (_, port, _):
            plain, tally = Load(contents, expected, port, options.tolerance), Tally()
            slow_rate = asyncio.run(plain.closed(options.clients, min(60, options.seconds), tally, check=False))
            print(f"| FastAPI around a transformers pipeline | {slow_rate:.1f} img/s, ours {rate / slow_rate:.1f} x |")
    for line in failures[:20]:
        print(f"WRONG {line}", file=sys.stderr)
    print(f"| wrong or lost answers | {len(failures)} |")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
