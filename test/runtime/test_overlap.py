"""The order of what runs beside communication: by hand; laws of made-up programs, against what looks at each two jobs;
steps on simulated devices; the same bits on real ones."""

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from extra.bench import hidden
from tinygrad import Context, Device, Mesh, P, Sharding, Tensor
from tinygrad.debug.cost import ItemCost, Phase
from tinygrad.engine import compile as compiling
from tinygrad.engine.run import recorders
from tinygrad.helpers import list_scheduling
from tinygrad.helpers.list_scheduling import ListScheduler, MemoryInUse, QueueJob, seconds_taken
from tinygrad.nn.optim import Adam
from tinygrad.runtime import overlap
from tinygrad.schedule.items import ScheduleItem, Temp
from tinygrad.schedule.schedule import as_is
from tinygrad.simulation import cluster_of, simulate
from tinygrad.simulation.program import Entry, StepProgram
from tinygrad.simulation.session import standing_for
from tinygrad.simulation.timeline import KERNELS, MOVES, timeline
from tinygrad.uop import UOp

HERE = ("NULL", "NULL:1")
SIX = dict.fromkeys(range(6), ("here", 100))


def kernel(seconds, reads=(), writes=(), waits=()):
  return QueueJob(((("kernels",), seconds),), tuple(reads), tuple(writes), tuple(waits))


def move(seconds, reads=(), writes=()):
  return QueueJob(((("moves",), seconds),), tuple(reads), tuple(writes), urgent=True)


def order(jobs, sizes=SIX, spare=10_000):
  return ListScheduler(jobs, sizes, {"here": spare}).run()


# ---------------------------------------------------------------- by hand


def test_what_waits_for_a_communication_comes_when_that_has_ended():
  """A gradient, its sum, its update; and two more kernels, of which one still fits before the sum has ended."""
  jobs = [kernel(1, [], [0]), move(3, [0], [1]), kernel(1, [1], [9]), kernel(2, [0], [2]), kernel(4, [2], [8])]
  assert seconds_taken(jobs) == 11
  assert order(jobs) == ([0, 1, 3, 4, 2], [(0, 1), (1, 4), (1, 3), (3, 7), (7, 8)])


def test_a_communication_that_nothing_holds_up_is_early():
  jobs = [kernel(4, [], [0]), kernel(1, [0], [8]), move(3, [7], [1]), kernel(1, [1, 8], [9])]
  assert seconds_taken(jobs) == 6 and order(jobs)[0] == [2, 0, 1, 3]


def test_the_communication_goes_first_on_which_most_depends():
  jobs = [move(2, [7], [0]), kernel(1, [0], [9]), move(2, [6], [1]), kernel(5, [1], [8])]
  assert seconds_taken(jobs) == 9 and order(jobs) == ([2, 0, 3, 1], [(0, 2), (2, 4), (2, 7), (7, 8)])


def test_there_is_no_room_for_it_now():
  """Each gradient that is not added up yet takes 100 bytes, and its sum too."""
  jobs = [j for i in (0, 2, 4) for j in (kernel(1, [], [i]), move(5, [i], [i + 1]), kernel(1, [i + 1], [9 + i]))]
  assert order(jobs)[0] == [0, 1, 3, 6, 4, 2, 7, 5, 8]
  assert order(jobs, spare=0)[0] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
  assert order(jobs, spare=100)[0] == [0, 1, 3, 4, 2, 6, 7, 5, 8]


# ---------------------------------------------------------------- laws


def drawn(seed, n=40):
  """Items that communicate, compute, or do one after the other, over values of which each is written once and read a
  few times, and over buffers, which are written again; on two sets of devices."""
  rng = random.Random(seed)
  places = [HERE, ("NULL:2",)]
  items, costs, temps, values = [], [], {}, {place: [] for place in places}
  for _ in range(n):
    place = places[rng.random() < 0.2]
    buffers = [0, 1, 2] if place is HERE else [3, 4]
    known = values[place][-rng.randint(1, 12) :]
    reads = rng.sample(known, min(len(known), rng.randint(0, 2))) + rng.sample(buffers, rng.randint(0, 1))
    if rng.random() < 0.2:
      write = rng.choice(buffers)
    else:
      write = 5 + len(temps)
      temps[write] = Temp(place, 64 * rng.randint(1, 20))
      values[place].append(write)
    moves = rng.random() < 0.4
    phases = [Phase("all_reduce", "NVLink", 1.0, rng.randint(1, 9))] if moves else []
    seconds = 0 if moves and rng.random() < 0.8 else rng.randint(1, 5)
    after = tuple(rng.sample(known, 1)) if known and rng.random() < 0.1 else ()
    items.append(ScheduleItem(UOp.sink(), (write, *(r for r in reads if r != write)), place, (), False, after=after))
    costs.append(ItemCost(tuple(phases), seconds, "memory"))
  return items, costs, temps


def jobs_of(items, costs):
  return [overlap.job_of(i, c.in_turn, [i.devices]) for i, c in zip(items, costs, strict=True)]


def arranged(seed, ahead=False):
  """Items, temps and costs as drawn; the new order, as numbers of items, with their memory."""
  items, costs, temps = drawn(seed)
  price = {id(i): c.in_turn for i, c in zip(items, costs, strict=True)}
  got = overlap.hiding(lambda item: price[id(item)], ahead)(items, temps, [])
  number = {id(item): i for i, item in enumerate(items)}
  return items, costs, temps, [number[id(i)] for i in got[0]], got


def simulated(items, costs, at):
  """Spans by the simulator's clock, of memory as `at` has it."""
  place = lambda slots: tuple(1000 + at[s] if s in at else s for s in slots)  # noqa: E731
  entries = [
    Entry(c, "", i.devices, place(i.slots[1:]), place(i.slots[:1]), place(i.after))
    for i, c in zip(items, costs, strict=True)
  ]
  return timeline(StepProgram(entries), cluster_of("h100x8:1"), lambda cost, _: cost)


def values_by(items, numbers, at):
  """What is in the buffers at the end, if each item writes what it has read and who it is."""
  memory = {}
  place = lambda s: ("pool", at[s]) if s in at else s  # noqa: E731
  for n in numbers:
    write, *reads = items[n].slots
    memory[place(write)] = hash((n, *(memory.get(place(r), r if r < 5 else None) for r in reads)))
  return {s: memory.get(s) for s in range(5)}


def peak(spans, numbers, items, temps, place):
  """The most bytes of values that are there at once: each from the first job that touches it, till all have ended."""
  lives = {}
  for (start, end), n in zip(spans, numbers, strict=True):
    for s in items[n].slots:
      if s in temps and temps[s].device == place:
        first, last = lives.get(s, (start, end))
        lives[s] = min(first, start), max(last, end)
  return max((sum(temps[s].nbytes for s, (a, b) in lives.items() if a <= t < b) for t, _ in lives.values()), default=0)


def broken(seed, ahead=False):
  """Which laws do not hold. (The simulator's communication does not begin ahead of its item.)"""
  items, costs, temps, numbers, (_, at, pool) = arranged(seed, ahead)
  plain, out = as_is(items, temps, []), []
  before = simulated(items, costs, plain[1])
  after = simulated([items[n] for n in numbers], [costs[n] for n in numbers], at)
  if after.seconds > before.seconds and not ahead:
    out.append("slower")
  held, now = (Counter() for _ in range(2))
  for counter, memories in ((held, plain[2]), (now, pool)):
    for t in memories:
      counter[t.device] += t.nbytes
  if any(now[d] > held[d] + held[d] // overlap.SHARE for d in now):
    out.append("memory")
  every = range(len(items))
  if sorted(numbers) != [*every] or values_by(items, every, {}) != values_by(items, numbers, at):
    out.append("values")
  return out


def broken_by_scheduling(seed, spare=200):
  """Which laws the schedule itself, of unshared memory, does not hold."""
  items, costs, temps = drawn(seed)
  jobs, places, out = jobs_of(items, costs), {t.device for t in temps.values()}, []
  sizes = {s: (t.device, t.nbytes) for s, t in temps.items()}
  numbers, spans = ListScheduler(jobs, sizes, dict.fromkeys(places, spare)).run()
  when = dict(zip(numbers, spans, strict=True))
  for i, a in enumerate(jobs):
    for j, b in enumerate(jobs[i + 1 :], i + 1):
      touch = {*a.writes} & {*b.reads, *b.writes, *b.waits} or {*a.reads} & {*b.writes}
      if touch and when[j][0] < when[i][1]:
        out.append("too early")
  for place in places:
    given = [(float(i), float(i + 1)) for i in range(len(items))]
    allowed = peak(given, range(len(items)), items, temps, place) + spare
    if peak(spans, numbers, items, temps, place) > allowed:
      out.append("memory")
  if [start for start, _ in spans] != sorted(start for start, _ in spans):
    out.append("order")
  uses = overlap.until_free([items[n].slots for n in numbers], spans)
  at, _ = overlap.plan_memory(uses, temps)
  used = {}  # memory -> by value: when it is touched
  for n, (start, end) in zip(numbers, spans, strict=True):
    for s in items[n].slots:
      if s in temps:
        first, last = used.setdefault(at[s], {}).get(s, (start, end))
        used[at[s]][s] = min(first, start), max(last, end)
  for lives in used.values():
    times = sorted(lives.values())
    if any(b > c for (_, b), (c, _) in zip(times, times[1:])):
      out.append("overwritten while it is read")
  return out


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_an_order_is_never_slower_nor_much_larger_and_computes_the_same(part, ahead):
  for seed in range(30 * part, 30 * part + 30):
    assert broken(seed, ahead) == [], seed


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("spare", [0, 200, 100_000])
def test_a_schedule_of_queues(part, spare):
  """Nothing begins before what it follows; memory is bounded at each moment, and is not written while it is read."""
  for seed in range(30 * part, 30 * part + 30):
    assert broken_by_scheduling(seed, spare) == [], seed


def test_most_of_them_are_faster():
  faster = 0
  for seed in range(40):
    items, costs, temps, numbers, (_, at, _) = arranged(seed)
    again, prices = [items[n] for n in numbers], [costs[n] for n in numbers]
    faster += simulated(again, prices, at).seconds < simulated(items, costs, as_is(items, temps, [])[1]).seconds
  assert faster > 20


hazards = list_scheduling.hazards
MUTANTS = {
  "readers": (list_scheduling, "hazards", lambda jobs: hazards([replace(j, reads=()) for j in jobs]), "too early"),
  "waits": (list_scheduling, "hazards", lambda jobs: hazards([replace(j, waits=()) for j in jobs]), "too early"),
  "room": (MemoryInUse, "fits", lambda *_: True, "memory"),
  "pending": (overlap, "until_free", lambda uses, spans: uses, "overwritten while it is read"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_schedule_is_noticed(monkeypatch, name):
  where, what, mutant, law = MUTANTS[name]
  monkeypatch.setattr(where, what, mutant)
  assert sum(law in broken_by_scheduling(seed) for seed in range(40)) > 3


def test_a_wrong_choice_is_noticed(monkeypatch):
  """Where an order was taken that is slower, or larger; and where its memory is given away at once."""
  calls = itertools.count()
  monkeypatch.setattr(overlap, "seconds_taken", lambda jobs: -next(calls))
  assert any("slower" in broken(seed) for seed in range(60))
  monkeypatch.undo()
  monkeypatch.setattr(overlap, "bytes_on", lambda pool: Counter({t.device: 1000 for t in pool}))
  assert any("memory" in broken(seed) for seed in range(60))
  monkeypatch.undo()
  monkeypatch.setattr(list_scheduling, "hazards", lambda jobs: [set() for _ in jobs])
  for ahead in (False, True):
    assert any("values" in broken(seed, ahead) for seed in range(60))


def test_a_communication_goes_ahead_of_the_kernel_that_adds_up():
  """Where the two are one item, another kernel that takes as long as the communication comes between."""

  def item(*slots):
    return ScheduleItem(UOp.sink(), slots, HERE, (), False)

  items = [item(5), item(6, 5, 0), item(7, 5), item(1, 6, 7)]
  parts = [[(False, 1.0)], [(True, 4.0), (False, 1.0)], [(False, 4.0)], [(False, 1.0)]]
  price = dict(zip(map(id, items), parts, strict=True))
  temps = {s: Temp(HERE, 64) for s in (5, 6, 7)}
  for ahead, order in ((False, [0, 1, 2, 3]), (True, [0, 2, 1, 3])):
    found, *_ = overlap.hiding(lambda item: price[id(item)], ahead)(items, temps, [])
    assert [items.index(i) for i in found] == order


def test_no_order_undercuts_the_least():
  assert hidden.least([kernel(2, [], [0]), move(5, [0], [1]), kernel(1, [1], [2])]) == 8
  two = [j for i in (0, 2) for j in (kernel(2, [], [i]), move(5, [i], [i + 1]))]
  assert hidden.least([*two, kernel(1, [1], [4]), kernel(1, [3], [5])]) == 2 + 5 + 5 + 1
  for seed in range(40):
    items, costs, _ = drawn(seed)
    jobs = jobs_of(items, costs)
    _, spans = order(jobs, {})
    assert 0 < hidden.least(jobs) <= max(end for _, end in spans)


def test_the_tool_says_what_is_hidden():
  size = ["--width", "256", "--heads", "4", "--vocabulary", "512", "--context", "256"]
  found = [
    float(x.rstrip("%")) for x in hidden.row(["--cluster", "h100x2:2", "--layers", "2", "--mesh", "dp=4", *size])
  ]
  kernels, moves, plain, now, least, *_ = found
  assert 0 < max(kernels, moves) <= least <= now < plain and found[5] < found[6]


# ---------------------------------------------------------------- steps


MESH = Mesh([f"NULL:{i}" for i in range(16)], (2, 8), ("dp", "tp"))


def layers(mesh, spec, n=6, width=2048):
  """A step of a network of some layers, whose rows are cut; so wide that a device sums each product in one kernel."""
  x = Tensor.empty(1024 * len(mesh), width, device=Sharding(mesh, P(mesh.names)))
  ws = [Tensor.empty(width, width, device=Sharding(mesh, spec)) for _ in range(n)]
  for w in ws:
    w.requires_grad = True
  optimizer = Adam(ws)
  optimizer.lr.realize(optimizer.b1_t, optimizer.b2_t, *optimizer.m, *optimizer.v)

  def step():
    with Tensor.train():
      h = x
      for w in ws:
        h = (h @ w.shard(Sharding(mesh, P()))).relu()
      loss = h.square().mean()
      loss.backward()
      return [loss, *optimizer.schedule_step()]

  return step


@pytest.fixture
def both(monkeypatch):
  """(of the order for communication, of the plain one): what a call gives, with plans of its own."""

  def run(f):
    out = []
    for plain in (False, True):
      with monkeypatch.context() as m:
        m.setattr(compiling, "_plans", {})
        if plain:
          m.setattr(overlap, "hiding", lambda price, ahead: as_is)
        out.append(f())
    return out

  return run


def simulated_step(*args, cluster="h100x8:2"):
  with standing_for(cluster_of(cluster)), Context(DEV="NULL"):
    return simulate(layers(*args), cluster=cluster)


def names_of(found):
  return Counter(e.name for e in found.program.entries)


@pytest.mark.parametrize("spec", [P(), P(("dp", "tp"))], ids=["dp", "fsdp"])
def test_a_steps_communication_is_hidden(spec, both):
  new, old = both(lambda: simulated_step(MESH, spec))
  assert names_of(new) == names_of(old) and new.wire == old.wire
  busiest = max(new.timeline.busy(0, queue) for queue in (KERNELS, MOVES))
  assert new.seconds < 1.1 * busiest and new.seconds < 0.95 * old.seconds
  assert new.timeline.exposed(0) < 0.8 * old.timeline.exposed(0)
  assert new.memory <= old.memory * (1 + 1 / overlap.SHARE)


@pytest.mark.parametrize("devices", [1, 16])
def test_where_nothing_runs_beside_anything_the_order_is_the_plain_one(devices, both):
  cluster = cluster_of("h100x8:2")
  if devices > 1:
    mesh, cluster = MESH, replace(cluster, overlap=False)
  else:
    mesh = Mesh(["NULL"], (1, 1), ("dp", "tp"))
  new, old = both(lambda: simulated_step(mesh, P(), cluster=cluster))
  entries = [[(e.name, e.reads, e.writes) for e in found.program.entries] for found in (new, old)]
  assert entries[0] == entries[1] and new.seconds == old.seconds


SAME = """
import sys
sys.path.insert(0, {folder!r})
from tinygrad import P
from test_overlap import MESH, simulated_step
print([(e.name, e.reads, e.writes, s.start) for found in [simulated_step(MESH, P())]
       for e, s in zip(found.program.entries, found.timeline.spans)])
"""


def test_every_process_has_the_same_order():
  said = set()
  for seed in ("1", "2"):
    env = os.environ | {"PYTHONHASHSEED": seed}
    code = SAME.format(folder=os.path.dirname(__file__))
    said.add(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout)
  assert len(said) == 1 and len(said.pop()) > 1000


def test_a_step_computes_the_same_bits(both, monkeypatch):
  """On devices that run, in the order for a cluster whose network is slow."""
  mesh = Mesh([f"CPU:{i}" for i in range(4)], names=("dp",))
  slow = cluster_of("h100x2:2")
  for d in mesh.devices:
    monkeypatch.setattr(Device[d], "target", replace(Device[d].target, overlaps=slow))
  orders = []

  def train():
    rng, plans = np.random.default_rng(0), []
    x = Tensor(rng.standard_normal((16, 64), np.float32)).shard(mesh, P("dp"))
    ws = [Tensor(rng.standard_normal((64, 64), np.float32) / 8).shard(mesh) for _ in range(4)]
    optimizer = Adam(ws, lr=0.01)
    recorders.append(lambda run: plans.append([i.slots for i in run.plan.items]))
    try:
      with Tensor.train():
        for _ in range(3):
          optimizer.zero_grad()
          h = x
          for w in ws:
            h = (h @ w).tanh()
          h.square().mean().backward()
          optimizer.step()
    finally:
      recorders.pop()
    orders.append(plans)
    return [w.numpy() for w in ws]

  new, old = both(train)
  assert orders[0] != orders[1]
  for a, b in zip(new, old, strict=True):
    np.testing.assert_array_equal(a, b)
