"""Timelines of made-up programs: by hand, against longest paths through all that must be in order, and laws."""

import random
from dataclasses import replace

import pytest

from tinygrad.debug.cost import ItemCost, Phase
from tinygrad.simulation import cluster_of
from tinygrad.simulation import timeline as module
from tinygrad.simulation.memory import held_at_most, in_use, lives
from tinygrad.simulation.program import Entry, StepProgram, UsedMemory
from tinygrad.simulation.timeline import KERNELS, MOVES, Clock, timeline

CLUSTER = cluster_of("h100x8:2")
A, B = ("NULL", "NULL:1"), ("NULL:2",)
BOTH = (*A, *B)


def entry(kernel, move, reads=(), writes=(), devices=A, waits=()):
  """An item of so many seconds of a kernel and of a communication: made-up items are their costs."""
  phases = (Phase("all_reduce", "NVLink", 10.0 * move, move),) if move else ()
  return Entry(
    ItemCost(phases, kernel, "memory"), f"{kernel}+{move}", devices, tuple(reads), tuple(writes), tuple(waits)
  )


def run(entries, cluster=CLUSTER):
  return timeline(StepProgram(list(entries), []), cluster, lambda item, _: item)


def times(t):
  return [(s.item, s.stream, s.start, s.end) for s in t.spans]


# ---------------------------------------------------------------- by hand


def test_a_communication_runs_beside_a_kernel_that_does_not_need_it():
  t = run([entry(2, 0, writes=[0]), entry(0, 3, [0], [1]), entry(4, 0, [0], [2]), entry(1, 0, [1, 2], [3])])
  assert times(t) == [(0, KERNELS, 0, 2), (1, MOVES, 2, 5), (2, KERNELS, 2, 6), (3, KERNELS, 6, 7)]
  assert (t.seconds, t.exposed(0), t.busy(0, KERNELS), t.busy(0, MOVES)) == (7, 0, 7, 3)
  assert t.received(0) == {"NVLink": 30.0}


def test_what_is_not_hidden_is_counted():
  t = run([entry(2, 0, writes=[0]), entry(0, 5, [0], [1]), entry(1, 0, [0], [2]), entry(1, 0, [1], [3])])
  assert t.seconds == 8 and t.exposed(0) == 4


def test_without_overlap_there_is_one_stream():
  t = run([entry(2, 0, writes=[0]), entry(0, 3, [0], [1]), entry(4, 0, [0], [2])], replace(CLUSTER, overlap=False))
  assert times(t) == [(0, KERNELS, 0, 2), (1, KERNELS, 2, 5), (2, KERNELS, 5, 9)] and t.exposed(0) == 3


def test_memory_is_not_overwritten_before_it_is_read():
  t = run([entry(1, 0, writes=[0]), entry(0, 5, [0], [1]), entry(1, 0, writes=[0])])
  assert times(t)[-1] == (2, KERNELS, 6, 7)


def test_what_waits_is_late():
  first = [entry(3, 0, writes=[0]), entry(0, 1, writes=[1])]
  assert times(run(first))[1] == (1, MOVES, 0, 1)
  assert times(run([first[0], entry(0, 1, writes=[1], waits=[0])]))[1] == (1, MOVES, 3, 4)


def test_a_kernel_that_reads_from_peers_follows_its_communication():
  t = run([entry(2, 3, writes=[0])])
  assert times(t) == [(0, MOVES, 0, 3), (0, KERNELS, 3, 5)]


def test_devices_that_do_the_same_are_one_class():
  t = run(
    [entry(2, 0, writes=[0]), entry(3, 0, devices=B, writes=[1]), entry(0, 1, [0], [2], BOTH), entry(1, 0, [2], [3])]
  )
  assert [c.devices for c in t.classes] == [A, B]
  assert times(t) == [(0, KERNELS, 0, 2), (1, KERNELS, 0, 3), (2, MOVES, 2, 3), (3, KERNELS, 3, 4)]
  assert [s.classes for s in t.spans] == [(0,), (1,), (0, 1), (0,)] and t.number("NULL:2") == 1
  many = tuple(f"NULL:{i}" for i in range(4096))
  t = run([entry(1, 0, devices=many), entry(1, 0, devices=many[:1024])])
  assert [len(c.devices) for c in t.classes] == [1024, 3072] and len(t.spans) == 2


# ---------------------------------------------------------------- laws


def drawn(seed, n=40):
  """A program over a few memories, so that all kinds of hazards are there."""
  rng = random.Random(seed)
  out = []
  for _ in range(n):
    reads, writes = rng.sample(range(8), rng.randint(0, 3)), rng.sample(range(8), rng.randint(1, 2))
    kernel, move = rng.choice([(rng.randint(1, 9), 0), (0, rng.randint(1, 9)), (rng.randint(1, 9), rng.randint(1, 9))])
    waits = rng.sample(range(8), rng.randint(0, 1))
    out.append(entry(kernel, move, reads, writes, rng.choice([A, B, BOTH]), waits))
  return out


def earlier(entries, spans):
  """The pairs (i, j) of spans of which j must not begin before i ends, by looking at each two: the parts of an item in
  order, items that use a stream of a device, and the last writer and the readers of memory."""
  for j, y in enumerate(spans):
    for i, x in enumerate(spans[:j]):
      a, b = entries[x.item], entries[y.item]
      data = {*b.reads, *b.writes, *b.waits} & {*a.writes} or {*b.writes} & {*a.reads}
      if x.item == y.item or data or (x.stream == y.stream and set(a.devices) & set(b.devices)):
        yield i, j


def longest(entries, spans):
  """When each span ends, as the longest path of what must be in order."""
  ends = []
  before = {}
  for i, j in earlier(entries, spans):
    before.setdefault(j, []).append(i)
  for j, s in enumerate(spans):
    ends.append(max((ends[i] for i in before.get(j, ())), default=0) + s.seconds)
  return ends


def broken(entries, t):
  """Which laws a timeline breaks."""
  out = []
  for i, j in earlier(entries, t.spans):
    x, y = t.spans[i], t.spans[j]
    if y.start < x.end:
      out.append("twice" if x.stream == y.stream and set(x.classes) & set(y.classes) else "too early")
  return out


@pytest.mark.parametrize("seed", range(60))
def test_each_item_is_as_early_as_can_be_and_no_earlier(seed):
  entries = drawn(seed)
  t = run(entries)
  assert broken(entries, t) == []
  assert [s.end for s in t.spans] == longest(entries, t.spans)


@pytest.mark.parametrize("seed", range(60))
def test_what_gets_faster_makes_nothing_slower(seed):
  rng, entries = random.Random(seed), drawn(seed)
  quicker = [
    replace(
      e,
      item=ItemCost(
        tuple(replace(p, seconds=p.seconds * rng.random()) for p in e.item.phases), e.item.seconds * rng.random(), ""
      ),
    )
    for e in entries
  ]
  before, after = run(entries), run(quicker)
  assert all(y.end <= x.end for x, y in zip(before.spans, after.spans, strict=True)) and after.seconds < before.seconds


class ForgetsStreams(Clock):
  def take(self, stream, classes, ready, seconds):
    return ready, ready + seconds


class TakesOneClass(Clock):
  def take(self, stream, classes, ready, seconds):
    return super().take(stream, classes[:1], ready, seconds)


class OneForAll(Clock):
  def take(self, stream, classes, ready, seconds):
    return super().take(KERNELS, (0,), ready, seconds)


class ForgetsReaders(Clock):
  def spans(self, entries):
    return super().spans([replace(e, reads=()) if e.item.seconds else e for e in entries])


class ForgetsWaits(Clock):
  def spans(self, entries):
    return super().spans([replace(e, waits=()) for e in entries])


class ForgetsWriters(Clock):
  def spans(self, entries):
    for s in super().spans(entries):
      self.written.clear()
      yield s


@pytest.mark.parametrize(
  "mutant", [ForgetsStreams, TakesOneClass, OneForAll, ForgetsReaders, ForgetsWaits, ForgetsWriters]
)
def test_a_wrong_clock_is_noticed(monkeypatch, mutant):
  monkeypatch.setattr(module, "Clock", mutant)
  wrong = 0
  for seed in range(20):
    entries = drawn(seed)
    t = run(entries)
    wrong += bool(broken(entries, t)) or [s.end for s in t.spans] != longest(entries, t.spans)
  assert wrong > 10


# ---------------------------------------------------------------- memory


def test_memory_in_use():
  """0 is read first, so it is there from the beginning; 1 is written at 0 and read last by 3, which ends at 6; nothing
  reads 2 and 3: they are results."""
  entries = [entry(2, 0, [0], [1]), entry(2, 0, [0], [2]), entry(2, 0, [1], [3])]
  program = StepProgram(entries, [UsedMemory(A, n) for n in (100, 10, 1, 1000)], {A: 1111, B: 5})
  t = timeline(program, CLUSTER, lambda item, _: item)
  assert lives(t, program) == {0: (0, 4), 1: (0, 6), 2: (2, 6), 3: (4, 6)}
  assert in_use(t, program, 0) == [(0, 110), (2, 111), (4, 1011), (6, 0)]
  assert held_at_most(t, program) == [1111]
