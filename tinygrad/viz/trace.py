"""A recording as data: a JSON document with a version, which the page reads (docs/howto/viewer.md says what is in it).

TextTables, lines and scopes are numbers in tables. Equal runs give equal documents but for the times in them.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from tinygrad.device import PlacedLine, Sharding, hint_of, reasons_for, show_placement
from tinygrad.helpers import MEMORY, Event, UserScope, events_since
from tinygrad.ops import Trait, having
from tinygrad.uop import GroupOp, Ops, UOp, mesh_of, print_graph, render_shape
from tinygrad.viz import recorder

FORMAT, VERSION = "tinygrad recording", 1
AROUND = 3  # lines of the user's file that are shown before and after one
LONGEST = 120  # letters of an arg that are shown
VIEWS = GroupOp.Movement | GroupOp.View | having(Trait.IDENTITY)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")

Table = dict[str, Any]
Moves = tuple[Sequence[UOp], Sequence[UOp], Sequence[tuple[UOp, UOp, Any]]]  # placed, local, what moves in both


class TextTables:
  """The tables of a document: each text, line and scope once."""

  def __init__(self) -> None:
    self.strings: dict[str, int] = {}
    self.lines: dict[tuple[str, int], int] = {}
    self.scopes: dict[UserScope, int] = {}
    self.places = PlacementTexts()

  def string(self, text: str) -> int:
    return self.strings.setdefault(text, len(self.strings))

  def line(self, origin: tuple[str, int] | None) -> int:
    """The number of a user's line; -1: unknown."""
    return -1 if origin is None else self.lines.setdefault((origin[0], origin[1]), len(self.lines))

  def line_of(self, where: str) -> int:
    """The number of what is written as `file:line`."""
    file, _, number = where.rpartition(":")
    return self.line((file, int(number))) if file and number.isdigit() else -1

  def scope(self, scope: UserScope | None) -> int:
    chain, s = list[UserScope](), scope
    while s is not None and s not in self.scopes:
      chain.append(s)
      s = s.above
    for s in reversed(chain):
      self.scopes[s] = len(self.scopes)
    return -1 if scope is None else self.scopes[scope]

  def tables(self) -> Table:
    here = os.getcwd() + os.sep
    lines = [
      [f.removeprefix(here), n, [linecache.getline(f, k).rstrip("\n") for k in lines_about(n)]] for f, n in self.lines
    ]
    scopes = [[str(s), self.scope(s.above)] for s in self.scopes]
    return {"strings": list(self.strings), "lines": lines, "scopes": scopes, "around": AROUND}


def lines_about(line: int) -> range:
  return range(line - AROUND, line + AROUND + 1)


class PlacementTexts:
  """PlacementTexts as text, each once: with the names of the mesh of the first value that has it."""

  def __init__(self) -> None:
    self.known: dict[Any, str] = {}

  def of(self, u: UOp) -> str:
    at = u.device
    if not isinstance(at, Sharding):
      return at or ""
    if at not in self.known:
      self.known[at] = show_placement(at, mesh_of(u))
    return self.known[at]


def told_graph(name: str, order: Sequence[UOp], moves: Sequence[tuple[UOp, int]], texts: TextTables) -> Table:
  """The nodes of a graph, sources first, in columns; `moves`: which of them are rows of the list of moves."""
  number = {u: i for i, u in enumerate(order)}
  rows = dict[int, list[int]]()
  for u, row in moves:
    if u in number:
      rows.setdefault(number[u], []).append(row)
  table: Table = {"name": name, "moves": rows}
  table["op"] = [texts.string(shown_op(u)) for u in order]
  table["kind"] = [kind_of(u) for u in order]
  table["src"] = [[number[s] for s in dict.fromkeys(u.src)] for u in order]
  table["value"] = [texts.string("" if u.op is Ops.SINK else f"{u.dtype.name}{render_shape(u.shape)}") for u in order]
  table["place"] = [texts.string(texts.places.of(u)) for u in order]
  table["line"] = [texts.line(u.origin) for u in order]
  lines = [u.origin if isinstance(u.origin, PlacedLine) else None for u in order]
  table["scope"] = [-1 if x is None else texts.scope(x.scope) for x in lines]
  table["backward"] = [i for i, x in enumerate(lines) if x is not None and x.backward]
  table["note"] = [texts.string("\n".join(notes(u))) for u in order]
  return table


def shown_op(u: UOp) -> str:
  if u.op is not Ops.CUSTOM:
    return u.op.name.lower()
  return str(getattr(u.arg[1], "name", type(u.arg[1]).__name__))


def kind_of(u: UOp) -> int:
  """0: computes, 1: only rearranges, 2: a constant, 3: memory, 4: writes."""
  if u.op is Ops.BUFFER:
    return 3
  if u.op is Ops.ASSIGN:
    return 4
  return 1 if u.op in VIEWS else 2 if not u.src or u.device is None else 0


def notes(u: UOp) -> Iterable[str]:
  """What else there is to say of a node: its arg, hints, reasons."""
  if u.arg is not None and u.op is not Ops.BUFFER:
    yield ADDRESS.sub("", repr(u.arg))[:LONGEST]
  if hint := hint_of(u.origin):
    yield f"hint: {hint}"
  yield from reasons_for(u.origin, u.device)


# ---------------------------------------------------------------- plans


def told_move(row: Any, texts: TextTables) -> Table:
  words = {name: getattr(row, name) for name in ("kind", "axes", "n", "payload", "wire", "why", "value", "source")}
  return words | {"line": texts.line_of(row.where), "result": row.result, "hints": row.hints}


def told_item(item: Any, program: Any, kernels: dict[int, int], texts: TextTables) -> Table:
  """A kernel or copy of a plan. `lines`: of what it computes, the last one first."""
  computes = [[texts.string(op), texts.line(origin)] for op, origin in item.computes]
  scopes = [origin for _, origin in item.computes if isinstance(origin, PlacedLine)]
  sizes: list[int] = []  # bytes of each device's part of what stands in a slot
  if isinstance(item.kernel, UOp):
    params = {u.arg.slot: u.arg.size * u.dtype.itemsize for u in item.kernel.toposort() if u.op is Ops.PARAM}
    sizes = [params.get(i, 0) for i in range(len(item.slots))]
  name = "copy" if program is None else program.name
  told: Table = {"name": name, "kernel": -1 if program is None else kernels[id(program)], "devices": item.devices}
  told |= {"slots": item.slots, "sizes": sizes, "writes": item.writes, "peers": item.peers, "computes": computes}
  scope, backward = (scopes[0].scope, scopes[0].backward) if scopes else (None, False)
  return told | {"scope": texts.scope(scope), "backward": backward}


def graphs_of(
  placed: Sequence[UOp], local: Sequence[UOp], rows: Sequence[tuple[UOp, UOp, Any]], texts: TextTables
) -> list[Table]:
  at = [[(nodes[k], i) for i, nodes in enumerate(rows)] for k in (0, 1)]
  return [told_graph("placed", placed, at[0], texts), told_graph("local", local, at[1], texts)]


def told_plan(record: recorder.PlanRecord, kernels: dict[int, int], texts: TextTables) -> Table:
  """A plan: its graph after each stage, its moves, its items, and the memory that these work on."""
  rows = [told_move(row, texts) for _, _, row in record.moves]
  stages = [told_graph("global", record.sink.toposort(), [], texts)]
  stages += graphs_of(record.placed, record.local, record.moves, texts)
  plan = record.plan
  items = [told_item(i, p, kernels, texts) for i, p in zip(plan.items, plan.programs)]
  buffers = {u.arg.uid: u for u in record.sink.toposort() if u.op is Ops.BUFFER}
  numbered = [buffers[uid] for uid in sorted(buffers, reverse=True)]
  lines = dict(record.slots.values())
  slots = []
  for slot, i in enumerate(plan.buffers):
    u = numbered[i]
    where = {"place": texts.string(texts.places.of(u)), "line": texts.line(lines.get(slot) or u.origin)}
    slots.append({"value": texts.string(f"{u.dtype.name}{render_shape(u.shape)}"), **where})
  temps = [{"nbytes": t.nbytes} for t in plan.temps]
  first = next((i["computes"][0][1] for i in reversed(items) if i["computes"]), -1)
  return {"line": first, "stages": stages, "moves": rows, "items": items, "slots": slots, "temps": temps}


def planned_moves(name: str, order: Sequence[UOp], moves: Moves) -> Table:
  """A document of a graph alone: as it is written, as it is placed, and its local view; `moves` is what
  debug/report.py finds: `moves_of`."""
  texts = TextTables()
  placed, local, rows = moves
  stages = [told_graph("global", order, [], texts)]
  stages += graphs_of(placed, local, rows, texts)
  plan = {"line": -1, "stages": stages, "moves": [told_move(row, texts) for *_, row in rows]}
  return document(name, [plan | {"items": [], "slots": [], "temps": []}], texts)


def drawn(name: str, nodes: Sequence[Any], edges: Iterable[tuple[int, int]]) -> Table:
  """A document of a picture (drawing/graph.py)."""
  texts, sources = TextTables(), dict[int, list[int]]()
  for a, b in edges:
    sources.setdefault(b, []).append(a)
  rows: list[Table] = []
  moves: dict[int, list[int]] = {}
  for i, n in enumerate(nodes):
    for m in n.moves:
      moves.setdefault(i, []).append(len(rows))
      rows.append(told_move(m, texts))
  table: Table = {"name": "placed", "moves": moves, "backward": [], "scope": [-1] * len(nodes)}
  table["op"] = [texts.string(n.lines[0]) for n in nodes]
  table["kind"] = [{"input": 3, "output": 4}.get(n.kind, 0) for n in nodes]
  table["src"] = [sources.get(i, []) for i in range(len(nodes))]
  table["value"] = [texts.string(" ".join(n.lines[1:])) for n in nodes]
  table["place"] = [texts.string(n.key) for n in nodes]
  table["line"] = [texts.line(n.origin) for n in nodes]
  table["note"] = [texts.string("\n".join([*n.title, *n.hints])) for n in nodes]
  plan = {"line": -1, "stages": [table], "moves": rows, "items": [], "slots": [], "temps": []}
  return document(name, [plan], texts)


def document(name: str, plans: list[Table], texts: TextTables, **more: Any) -> Table:
  """What every document has; without times and memory, unless there is `more`."""
  about: Table = {"format": FORMAT, "version": VERSION, "program": name, "plans": plans}
  empty: Table = {"kernels": [], "peaks": {}, "tracks": [], "memory": {"before": {}, "rows": []}}
  return about | empty | more | texts.tables()


def told_kernel(program: Any, kernel: Any) -> Table:
  """A compiled kernel; what has been compiled before the recording began has no source."""
  record = recorder.KERNELS.get(id(program.code))
  steps = {} if record is None else {label: [str(s) for s in steps] for label, steps in record.steps.items()}
  source, launch = ("", "") if record is None else (record.source, record.launch)
  if record is None and kernel.op is Ops.CALL:
    source = "\n".join(text for _, text in kernel.arg.sources)
  costs = {"name": program.name, "ops": program.ops, "nbytes": program.nbytes}
  return costs | {"steps": steps, "source": source, "launch": launch, "ast": ADDRESS.sub("", print_graph(kernel))}


# ---------------------------------------------------------------- the document


def trace_of(first: int = 0, run: int = 0, since: float = 0.0) -> Table:
  """The recording: plans, kernels, what has been noted after event number `first` and run number `run`, and the memory
  that was in use after second `since`."""
  texts, kernels, shown = TextTables(), dict[int, int](), list[Table]()
  events = events_since(first)
  numbers = sorted({more["item"][0] for _, _, _, _, more in events if "item" in more}.union(recorder.RUNS[run:]))
  for record in (recorder.PLANS[i] for i in numbers):
    for item, program in zip(record.plan.items, record.plan.programs):
      if program is not None and id(program) not in kernels:
        kernels[id(program)] = len(kernels)
        shown.append(told_kernel(program, item.kernel))
  plans = [told_plan(recorder.PLANS[i], kernels, texts) for i in numbers]
  starts = [start for _, _, start, _, _ in events] + [m.start for m in MEMORY.all.values() if m.end is None]
  zero = since or min(starts, default=0.0)
  more = {"kernels": shown, "peaks": recorder.PEAKS, "tracks": told_tracks(events, numbers, zero)}
  name = os.path.basename(sys.argv[0]) or "python"
  return document(name, plans, texts, **more, memory=told_memory(numbers, zero, texts))


def told_tracks(events: Iterable[Event], plans: Sequence[int], zero: float) -> list[Table]:
  """What ran on each device and in each thread of Python: [name, from, microseconds, plan, item]."""
  found: dict[str, list[list[Any]]] = {}
  place = {n: i for i, n in enumerate(plans)}
  for track, name, start, end, more in events:
    plan, item = more.get("item", (-1, -1))
    row = [name, round((start - zero) * 1e6, 1), round((end - start) * 1e6, 1), place.get(plan, -1), item]
    found.setdefault(track, []).append(row)
  main = f"Python {threading.main_thread().name}"
  names = sorted(found, key=lambda t: (t.startswith("Python") and t != main, t.startswith("Python"), t))
  return [{"name": t, "python": t.startswith("Python"), "events": sorted(found[t], key=lambda e: e[1])} for t in names]


def told_memory(plans: Sequence[int], zero: float, texts: TextTables) -> Table:
  """The memory of buffers: on which devices, how many bytes on each, from when to when, what it holds: the plans
  that run over it, with its slot in each, and the line of its value, or -1."""
  holds: dict[int, list[tuple[int, int]]] = {}
  lines: dict[int, int] = {}
  for i, record in enumerate(recorder.PLANS[n] for n in plans):
    for number, (slot, line) in record.slots.items():
      holds.setdefault(number, []).append((i, slot))
      if line is not None:
        lines.setdefault(number, texts.line(line))
  rows = []
  for number, m in MEMORY.all.items():
    if m.end is None or m.end > zero:
      end = None if m.end is None else round((m.end - zero) * 1e6, 1)
      times = [max(round((m.start - zero) * 1e6, 1), 0.0), end]
      rows.append([m.devices, m.nbytes, *times, holds.get(number, []), lines.get(number, -1)])
  return {"before": MEMORY.before, "rows": rows}
