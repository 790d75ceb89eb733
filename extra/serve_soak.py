"""A server under load: `python -m extra.serve_soak --seconds 300 --streams 64`.

So many clients at once stream texts from a server in another process, each with a prompt and a seed of its own, for so
long; some of them vanish in the middle of a text. Then
- no stream ended before its end, and every text is the one that its request alone gives: one that goes another way
  after a while is counted apart, since steps of several rows sum in another order than steps of one, and a draw may be
  near (with --rounded it is near more often: a last bit may round an activation the other way, and that changes logits
  so much that most texts go another way some time, and what they have in common with their own says little),
- every slot is free again, whoever vanished,
- memory at the end is at most --growth above what it was after a third of the time,
- and all streams together make so many times the tokens a second that one makes; what processor time a token takes of
  the server and of the clients is told beside it.

--model is any that `tinygrad.apps.llm` takes; --fuzz N sends that many malformed requests in the meantime: each has to
be refused with 4xx. It needs the extras serve and test (httpx2). The exit status says whether all of it held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

import httpx2 as httpx

TIMEOUT = 120
ODD: list[Any] = [None, True, -1, 1 << 70, 1e308, "", "x", [], {}, [[]], [None], {"type": "x"}, ["a"] * 100]


@dataclass(frozen=True, slots=True)
class Asked:
  """A request that says the same whenever it is asked: a seed belongs to it."""

  prompt: str
  seed: int
  tokens: int

  def body(self, model: str) -> dict[str, Any]:
    return {"model": model, "prompt": self.prompt, "seed": self.seed, "max_tokens": self.tokens, "stream": True}


@dataclass(slots=True)
class Heard:
  """What clients have heard. `texts`: of each request every text that came to its end."""

  texts: dict[Asked, list[str]] = field(default_factory=dict)
  tokens: int = 0
  vanished: int = 0
  errors: list[str] = field(default_factory=list)
  refused: Counter[int] = field(default_factory=Counter)
  lock: threading.Lock = field(default_factory=threading.Lock)


class Soak:
  """Clients of a server at `url`; `pid` is its process, whose memory is looked at (None: it is not)."""

  def __init__(self, url: str, pid: int | None, tokens: int, kinds: int, vanishing: float) -> None:
    self.url, self.pid, self.tokens, self.vanishing = url, pid, tokens, vanishing
    self.host = url.removeprefix("http://")
    self.kinds = [Asked(f"request {i} of many:", i, tokens) for i in range(kinds)]
    self.heard, self.memory = Heard(), list[tuple[float, int]]()
    with self.client() as c:
      self.model = c.get("/v1/models").json()["data"][0]["id"]

  def client(self) -> httpx.Client:
    return httpx.Client(base_url=self.url, timeout=TIMEOUT)

  def metric(self, name: str) -> float:
    with self.client() as c:
      found = re.findall(rf"^{re.escape(name)} (\S+)$", c.get("/metrics").text, re.M)
    return float(found[0]) if found else 0.0

  def resident(self) -> int:
    """Bytes of the server's memory."""
    with open(f"/proc/{self.pid}/statm") as f:
      return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

  def processor(self) -> float:
    """Seconds of processor time that the server has had."""
    with open(f"/proc/{self.pid}/stat") as f:
      user, system = f.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

  def ask(self, asked: Asked, leave_after: int | None) -> str | None:
    """The text of a stream; None where the client leaves after so many events. By the standard library, whose time for
    an event is a part of httpx's, so that it is the server that is measured."""
    text = []
    with contextlib.closing(HTTPConnection(self.host, timeout=TIMEOUT)) as c:
      c.request("POST", "/v1/completions", json.dumps(asked.body(self.model)), {"Content-Type": "application/json"})
      answer = c.getresponse()
      if answer.status != 200:
        raise OSError(f"{answer.status}: {answer.read().decode()[:200]}")
      for line in answer:
        if line == b"data: [DONE]\n":
          return "".join(text)
        if line.startswith(b"data: "):
          said = json.loads(line[6:])
          if "error" in said:
            raise OSError(said["error"]["message"])
          text.append(said["choices"][0]["text"])
          with self.heard.lock:
            self.heard.tokens += 1
          if leave_after is not None and len(text) >= leave_after:
            return None
    raise OSError("the stream ended without its end")

  def streams(self, number: int, end: float, most: int | None) -> None:
    """One client after another, as one of the many: until `end`, or `most` texts."""
    draw, done = random.Random(number), 0
    while time.monotonic() < end and (most is None or done < most):
      asked = draw.choice(self.kinds)
      leaves = draw.randrange(1, self.tokens) if draw.random() < self.vanishing else None
      done += 1
      try:
        text = self.ask(asked, leaves)
      except (OSError, HTTPException, ValueError) as e:
        with self.heard.lock:
          self.heard.errors.append(f"{asked}: {type(e).__name__}: {e}")
        continue
      with self.heard.lock:
        if text is None:
          self.heard.vanished += 1
        else:
          self.heard.texts.setdefault(asked, []).append(text)

  def watch(self, end: float) -> None:
    while time.monotonic() < end:
      self.memory.append((time.monotonic(), self.resident()))
      time.sleep(0.5)

  def fuzz(self, count: int, seed: int) -> None:
    """Malformed requests; how each was refused."""
    draw = random.Random(seed)
    with self.client() as c:
      for _ in range(count):
        body, path = malformed(draw, self.model)
        answer = c.post(f"/v1/{path}", content=body, headers={"Content-Type": "application/json"})
        self.heard.refused[answer.status_code] += 1
        if not 400 <= answer.status_code < 500:
          self.heard.errors.append(f"a malformed request had {answer.status_code}: {body[:200]!r}")

  def run(self, streams: int, seconds: float, most: int | None = None, malformed_requests: int = 0) -> None:
    end = time.monotonic() + seconds
    jobs = [threading.Thread(target=self.streams, args=(i, end, most)) for i in range(streams)]
    jobs += [threading.Thread(target=self.fuzz, args=(malformed_requests, 1))] if malformed_requests else []
    if self.pid is not None and most is None:
      threading.Thread(target=self.watch, args=(end,), daemon=True).start()
    for t in jobs:
      t.start()
    for t in jobs:
      t.join()

  def idle(self, seconds: float) -> bool:
    """Whether every slot is free within so long."""
    end = time.monotonic() + seconds
    while (busy := self.metric("tinygrad_slots_busy") + self.metric("tinygrad_waiting")) and time.monotonic() < end:
      time.sleep(0.01)
    return not busy

  def compare(self) -> tuple[list[str], int]:
    """(texts that are another request's, or nobody's; how many are their request's up to a place), by what requests
    give alone, now that nobody else is there."""
    alone = {asked: self.ask(asked, None) or "" for asked in self.heard.texts}
    wrong, rounded = [], 0
    for asked, texts in self.heard.texts.items():
      for text in (text for text in texts if text != alone[asked]):
        own, *others = (len(os.path.commonprefix([text, alone[a]])) for a in sorted(alone, key=lambda a: a != asked))
        if own > max(others, default=0):
          rounded += 1
        else:
          wrong.append(f"{asked}: {text!r}, and alone {alone[asked]!r}")
    return wrong, rounded

  def grown(self) -> float:
    """The last third's median of memory, as a part of the second third's."""
    sizes = [size for _, size in self.memory]
    third = len(sizes) // 3
    if not third:
      return 1.0
    middle, last = sorted(sizes[third : 2 * third]), sorted(sizes[2 * third :])
    return last[len(last) // 2] / middle[len(middle) // 2]


def malformed(draw: random.Random, model: str) -> tuple[bytes, str]:
  """A request that no server should answer: its JSON is broken, a field is another kind of thing, or unknown."""
  chat = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
  texts = {"model": model, "prompt": "x", "max_tokens": 1}
  path, body = draw.choice([("chat/completions", chat), ("completions", texts), ("embeddings", {"model": model})])
  match draw.randrange(4):
    case 0:
      whole = json.dumps(body).encode()
      return whole[: draw.randrange(len(whole))], path
    case 1:
      return json.dumps(body | {"no_such_field": draw.choice(ODD)}).encode(), path
    case 2:
      name = draw.choice(["temperature", "max_tokens", "n", "stream", "stop"])
      return json.dumps(body | {name: {"wrong": draw.choice(ODD)}}).encode(), path
    case _:
      return json.dumps(body | {"model": f"{model}-not"}).encode(), path


@contextlib.contextmanager
def serving(model: str | None, slots: int, options: list[str]) -> Iterator[tuple[str, int]]:
  """(its URL, its process)"""
  command = [sys.executable, "-m", "tinygrad.apps.llm", "--serve", "--port", "0", "--slots", str(slots), *options]
  command += ["--queue", "1000", *(["--model", model] if model else [])]
  with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as p:
    try:
      assert p.stderr is not None
      heard = list[str]()
      for said in p.stderr:
        heard.append(said)
        if " at http" in said:
          break
      else:
        raise SystemExit("the server did not start:\n" + "".join(heard))
      threading.Thread(target=p.stderr.read, daemon=True).start()
      yield said.split("a page at ")[1].strip().rstrip("/"), p.pid
    finally:
      p.terminate()


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seconds", type=float, default=300)
  parser.add_argument("--streams", type=int, default=64)
  parser.add_argument("--slots", type=int, help="default: as many as streams")
  parser.add_argument("--tokens", type=int, default=48, help="of each text")
  parser.add_argument("--kinds", type=int, default=40, help="of requests")
  parser.add_argument("--vanishing", type=float, default=0.2, help="share of the clients that leave")
  parser.add_argument("--fuzz", type=int, default=1000, help="malformed requests")
  parser.add_argument("--growth", type=float, default=0.02, help="of memory that is still flat")
  parser.add_argument("--model", help="default: the model in the package")
  parser.add_argument("--shard", default="1")
  parser.add_argument("--rounded", action="store_true", help="activations may be, where weights are quantised")
  a = parser.parse_args(argv)
  a.slots = a.slots or a.streams
  with serving(a.model, a.slots, ["--shard", a.shard, *([] if a.rounded else ["--exact"])]) as (url, pid):
    alone = Soak(url, pid, a.tokens, a.kinds, 0.0)
    alone.run(1, 600, most=4)  # compiles
    alone.heard, start = Heard(), time.monotonic()
    alone.run(1, 600, most=8)
    one = alone.heard.tokens / (time.monotonic() - start)
    soak = Soak(url, pid, a.tokens, a.kinds, a.vanishing)
    soak.run(a.slots, 600, most=2)  # compiles, for each number of rows
    soak.heard, before, start = Heard(), soak.metric('tinygrad_texts_total{finish="cancelled"}'), time.monotonic()
    ours, theirs = soak.processor(), time.process_time()
    soak.run(a.streams, a.seconds, None, a.fuzz)
    many = soak.heard.tokens / (time.monotonic() - start)
    ours, theirs = ((t / soak.heard.tokens * 1e6) for t in (soak.processor() - ours, time.process_time() - theirs))
    free = soak.idle(5)
    cancelled = soak.metric('tinygrad_texts_total{finish="cancelled"}') - before
    (wrong, rounded), heard = soak.compare(), soak.heard
  done = sum(map(len, heard.texts.values()))
  print(f"{done} texts heard to their end, {heard.vanished} clients vanished, {len(heard.errors)} lost")
  print(f"{len(wrong)} texts are not their request's; {rounded} go another way than alone after a while")
  print(f"slots are free in the end: {free}; texts that were cancelled: {cancelled:.0f}")
  print(f"memory: {soak.memory[-1][1] >> 20} MB, {soak.grown() - 1:+.2%} over the last third")
  print(f"malformed requests by status: {dict(heard.refused)}")
  print(f"tokens a second: {one:.1f} of one stream, {many:.1f} of {a.streams} ({many / one:.2f} times)")
  print(f"processor time of each of these tokens: {ours:.0f} us of the server, {theirs:.0f} us of the clients")
  for problem in (*heard.errors[:5], *wrong[:5]):
    print(problem)
  held = not heard.errors and not wrong and free and rounded <= done // 20 and soak.grown() <= 1 + a.growth
  return 0 if held else 1


if __name__ == "__main__":
  sys.exit(main())
