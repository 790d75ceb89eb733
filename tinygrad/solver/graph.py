"""A graph as a problem of the solver: its values, what is said of them, and the factors of its ops; and the answer."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from tinygrad.device import Computes, Constraint, Device, Mesh, Placement, ShardError, Sharding, same_devices, spec_of
from tinygrad.helpers import PROCESS, prod, source_line
from tinygrad.ops import Trait, having
from tinygrad.solver.axes import Axes, coexist, common, number_of_parts, within_axes
from tinygrad.solver.contractions import Contractions, contractions
from tinygrad.solver.handed import before_moves, gradient_targets, is_decided_anew
from tinygrad.solver.problem import Direction, Edge, Hint, Problem, Rule
from tinygrad.solver.solve import DEFAULT, Disagreement, Policy, Solution, Told, solve
from tinygrad.uop import GroupOp, Ops, UOp, factor_rule

ALIKE = GroupOp.Elementwise | having(Trait.IDENTITY)  # each element of the result is of one element of each source

KEY = 8  # bytes of a digest, the part of a key
first_uid: weakref.WeakKeyDictionary[UOp, int] = weakref.WeakKeyDictionary()
"""Of memory that was moved to where an answer says, the uid of what it was at first: it keeps its place in order."""


counted: weakref.WeakSet[UOp] = weakref.WeakSet()
"""Hints that were not inert. They count again, when memory is where they have had it moved to."""


@dataclass(slots=True)
class Asked:
  """A graph and the problem made of it. `order`: its nodes, sources first; `by_depth`: these in an order that does not
  depend on which outputs were given first; `number`: the value that a node is (the
  implied moves, which are decided anew, are that of what they move); `leaves`: the nodes that hold what is not placed
  yet: memory, and what comes from the host or a file."""

  mesh: Mesh
  order: Sequence[UOp]
  by_depth: Sequence[UOp]
  problem: Problem
  number: dict[UOp, int]
  leaves: list[UOp]
  contractions: Contractions
  nodes: list[UOp]  # of each value, the first that it is
  ops: list[UOp]  # of each edge
  inert: Set[UOp]  # hints that are met without them
  kinds: Mapping[UOp, int]  # of each node a number for its op, dtype and arg
  gradients: Mapping[UOp, UOp]  # of what is a gradient, what it is by

  def sources(self, u: UOp) -> Sequence[UOp]:
    """Of an op of an edge; of a contraction its operands."""
    return c.operands if (c := self.contractions.by_reduce.get(u)) is not None else u.src

  def is_no_value(self, u: UOp) -> bool:
    """Whether a node only stands for its source: a move that is decided anew, or a hint that is met without it."""
    return is_decided_anew(u) or u in self.inert


@dataclass(frozen=True, slots=True)
class OpDecision:
  """How an op was decided to run: where it wants each of its sources; and, of a contraction, its MUL."""

  needs: tuple[Placement | None, ...]
  product: Placement | None


@dataclass(frozen=True, slots=True)
class Decisions:
  """`ops`: how each is to run, unless it runs where its result is; `copies`: of values by their numbers where they are
  moved, beside where they are held, for those who read them."""

  ops: dict[UOp, OpDecision]
  copies: dict[int, Placement]


@dataclass(slots=True)
class Answer:
  """Where each value of a graph is to be; `decisions`, where that was decided too: how ops are to run. Without, values
  between those that are stored or hinted are where bytes are fewest. `met`: how what inert hints
  speak of is cut."""

  asked: Asked
  solution: Solution
  decisions: Decisions | None = None
  placements: dict[tuple[Axes, ...], Placement] = field(default_factory=dict)
  places: dict[int, Placement] = field(default_factory=dict)  # of values, by their numbers
  met: dict[UOp, tuple[Axes, ...]] = field(default_factory=dict)

  def __getitem__(self, u: UOp) -> Placement | None:
    """None for what has no place of its own, or one that is not the solver's to choose."""
    if (v := self.asked.number.get(u)) is None:
      return None
    if u in self.met:
      return self.at(self.met[u])
    if (place := self.places.get(v)) is None:
      hint = self.solution.hints[v]
      place = self.places[v] = self.at(() if hint is None else hint.dims)
    return place

  def at(self, dims: tuple[Axes, ...]) -> Placement:
    """The placement of what is cut so, with the names of this mesh."""
    if (placement := self.placements.get(dims)) is None:
      placement = self.placements[dims] = Sharding(self.asked.mesh, spec_of(self.asked.mesh, dims))
    return placement


def answer(sink: UOp, mesh: Mesh, policy: Policy = DEFAULT, inert: Set[UOp] = frozenset()) -> Answer:
  """Where every value below `sink` is to be on the mesh, by the hints, but for those `inert`, and placements that are
  there.

  Values on one device are the solver's to place, unless the user has sent them there from another one that computes.
  Raises: ShardError for a hint that names no axis of the mesh, and for hints of one group that disagree.
  """
  asked = ask(sink, mesh, inert)
  with disagreements_told(asked):
    return Answer(asked, solve(asked.problem, policy))


@contextlib.contextmanager
def disagreements_told(asked: Asked) -> Iterator[None]:
  """Hints of one group that disagree raise a ShardError that names them, and their lines."""
  try:
    yield
  except Disagreement as e:
    grouped = (u for u in asked.order if u.op is Ops.CONSTRAIN and asked.number.get(u) in e.values)
    said = dict.fromkeys([f"    the hint: {u.arg} in {source_line(*u.origin)}" for u in grouped if u.origin])
    fix = "  fix: give values of one group equal hints, or other groups"
    raise ShardError("\n".join([str(e), *said.keys(), fix])) from None


def restated(found: Answer, made: Mapping[UOp, UOp], nodes: Iterable[UOp], policy: Policy = DEFAULT) -> Answer:
  """The answer with these values said to be where they have come to be, before all else, that are of no group: others
  follow from that, and not from which of several hints was needed for it. So does memory that nothing has cut."""
  asked, first = found.asked, found.solution
  hints, told = list(asked.problem.hints), dict[int, dict[int, Told]]()
  grouped = {v for group in asked.problem.groups for v in group}
  memory = set(asked.leaves)
  for u in nodes:
    if (
      (v := asked.number.get(u)) is not None and v not in grouped and (dims := cuts_on(made[u], asked.mesh)) is not None
    ):
      hints[v] = Hint.of(asked.mesh, dims, (u in memory and is_uncut(dims),) * len(dims))
      known = first.hints[v]
      told[v] = first.told[v] if known is not None and known.dims == dims else {}
  return Answer(asked, solve(replace(asked.problem, hints=hints), policy, told), met=found.met)


def is_uncut(dims: Sequence[Axes]) -> bool:
  """Whether nothing cuts a value."""
  return not any(dims)


def ends(asked: Asked) -> Iterable[UOp]:
  """Leaves and results."""
  return itertools.chain(asked.leaves, asked.order[-1].src)


def between(asked: Asked) -> list[UOp]:
  """What nobody says anything of, and leaves."""
  leaves = set(asked.leaves)
  return [u for u in asked.nodes if u in leaves or (u.op is not Ops.CONSTRAIN and u.op is not Ops.MOVE)]


def is_as_wished(found: Answer, made: Mapping[UOp, UOp]) -> bool:
  """Whether what is between was built where the answer says."""
  return all(
    at is found[u] or at.reduced is found[u] or cuts_on(made[u], found.asked.mesh) is None
    for u in between(found.asked)
    if isinstance(at := made[u].device, Sharding)
  )


def cuts_on(u: UOp, mesh: Mesh) -> tuple[Axes, ...] | None:
  """How each dim of what is on the mesh is cut."""
  at = u.device
  if not isinstance(at, Sharding) or not same_devices(at, Sharding.of(mesh, ())):
    return None
  return tuple([within_axes(at.cut(i), mesh) for i in range(u.ndim)])


def ask(sink: UOp, mesh: Mesh, inert: Set[UOp] = frozenset()) -> Asked:
  """The problem of a graph, its hints but for those `inert`."""
  return _Asking(sink, mesh, inert).run()


@dataclass(frozen=True, slots=True)
class Facts:
  """Of a value its shape, symbolic dims at their upper bounds, and what it takes to move it; of its op the rule, if it
  has sources."""

  shape: tuple[int, ...]
  nbytes: float
  rule: Rule | None


class _Asking:
  def __init__(self, sink: UOp, mesh: Mesh, inert: Set[UOp] = frozenset()) -> None:
    sink.shape, sink.device  # noqa: B018 (fills in those of all nodes below)
    self.mesh, self.order, self.inert = mesh, sink.toposort(), inert
    self.whole: Placement = Sharding.of(mesh, ())
    self.one = self.whole if isinstance(self.whole, str) else ""  # the device of a mesh of one
    self.problem = Problem(mesh)
    self.number: dict[UOp, int] = {}
    self.leaves: list[UOp] = []
    self.elsewhere: set[UOp] = set()  # what is where the user has put it, on other devices
    self.depth: dict[UOp, int] = {}
    self.keys: dict[UOp, bytes] = dict.fromkeys(self.order, b"")
    self.same: dict[UOp, UOp] = {}  # of each node the first that is equal to it but for implied moves
    self.first: dict[tuple[Any, ...], UOp] = {}
    self.kinds: dict[UOp, int] = {}
    self.numbered: dict[tuple[Any, ...], int] = {}  # kinds, by op, dtype and arg
    buffers = sorted((u for u in self.order if u.op is Ops.BUFFER), key=lambda u: first_uid.get(u, u.arg.uid))
    self.made = {u: i for i, u in enumerate(buffers)}  # which of the graph's buffers came first
    self.rules: dict[Rule, Rule] = {}  # one for all that are equal
    self.known: dict[tuple[Any, ...], Facts] = {}
    self.nodes: list[UOp] = []
    self.edges: list[tuple[int, bytes, Edge, UOp]] = []
    self.groups: dict[Any, list[int]] = {}
    for u in self.order:
      self.identify(u)
    for number in range(4):
      if number == 0 or not self.is_ordered():
        self.refine(number)
    self.by_depth = sorted(self.order, key=lambda u: (self.depth[u], self.keys[u]))
    self.contractions = contractions(self.by_depth, self.same)

  def identify(self, u: UOp) -> None:
    """Which value a node is, and where it stands in the order."""
    op, dtype, src, arg = u.ref.key
    kind = self.kinds[u] = self.numbered.setdefault((op, dtype, arg), len(self.numbered))
    depth, same = self.depth, self.same
    if (op is Ops.MOVE and is_decided_anew(u)) or u in self.inert:
      depth[u], same[u] = depth[src[0]], same[src[0]]
    else:
      depth[u] = 1 + max([depth[s] for s in src], default=0)
      same[u] = self.first.setdefault((kind, *[same[s] for s in src]), u)

  def run(self) -> Asked:
    for u in self.order:
      self.see(u)
    self.edges.sort(key=lambda e: e[:2])
    self.problem.edges = [edge for _, _, edge, _ in self.edges]
    self.problem.memory = [self.number[u] for u in self.leaves]
    self.problem.groups = [tuple(values) for values in self.groups.values()]
    ops = [u for *_, u in self.edges]
    return Asked(
      self.mesh,
      self.order,
      self.by_depth,
      self.problem,
      self.number,
      self.leaves,
      self.contractions,
      self.nodes,
      ops,
      self.inert,
      self.kinds,
      gradient_targets(self.order),
    )

  def refine(self, number: int) -> None:
    """Adds a part to the keys, by which nodes of one depth are ordered: a digest of a text of each node below."""
    part: dict[UOp, bytes] = {}
    texts: dict[int, bytes] = {}  # of the first part, by kinds
    for u in self.order:
      if is_decided_anew(u) if u.op is Ops.MOVE else u in self.inert:
        part[u] = part[u.src[0]]
        continue
      if number or (text := texts.get(self.kinds[u])) is None:
        text = self.text(u, number).encode()
        if not number:
          texts[self.kinds[u]] = text
      part[u] = hashlib.blake2b(text + b"".join([part[s] for s in u.src]), digest_size=KEY).digest()
    for u, more in part.items():
      self.keys[u] += more

  def text(self, u: UOp, number: int) -> str:
    """What orders nodes of one depth: alike in each process, whenever a program is written again, and when it has been
    placed. So it is by what is computed first, then by memory, of which counts what came first in the graph, and only
    then by where values are moved; last by where what is stored arrives, which has not been decided yet."""
    if number == 0:
      return f"{u.op.name} {u.dtype!r} {u.shape if u.op is Ops.BUFFER else None if u.op is Ops.MOVE else u.arg!r}"
    if number == 1 or u.op is not Ops.MOVE:
      return str(self.made.get(u)) if number == 1 else ""
    return repr(u.arg) if is_stored(u.src[0].device) == (number == 3) else ""

  def is_ordered(self) -> bool:
    """Whether there are no two values of one depth and key."""
    return len({(self.depth[u], self.keys[u]) for u in self.first.values()}) == len(self.first)

  def see(self, u: UOp) -> None:
    """Notes a node as a value, or a part of one, and how it hangs together with its sources."""
    op, number, inside = u.op, self.number, self.contractions.inside
    if op is Ops.SINK or (op is Ops.MOVE and is_anywhere(u)):
      return
    is_unsaid = (
      (op is Ops.MOVE and is_decided_anew(u)) or u in self.inert or (u.device is None and op is not Ops.CONSTRAIN)
    )
    if is_unsaid and not any(s in number for s in u.src):
      return  # nothing says where it is
    if self.is_elsewhere(u):
      self.elsewhere.add(u)
    elif (same := self.same[u]) is not u and same in number and u not in inside:
      number[u] = number[same]
    elif (op is Ops.BUFFER or op is Ops.MOVE) and is_arrival(u):
      self.leaves.append(u)
      self.value(u, self.facts(u), self.said(u))
    elif u not in inside:
      facts = self.facts(u)
      self.value(u, facts, self.said(u))
      if (c := self.contractions.by_reduce.get(u)) is not None:
        self.connect(u, self.rules.setdefault(c.rule, c.rule), c.operands)
      elif facts.rule is not None:
        self.connect(u, facts.rule, u.src)

  def is_elsewhere(self, u: UOp) -> bool:
    """Whether a value is not the solver's to place: on other devices, in a file, or sent to one device by the user."""
    device = u.device
    if isinstance(device, Sharding):
      return not same_devices(device, self.whole)
    if device == self.one or ((u.op is Ops.BUFFER or u.op is Ops.MOVE) and is_arrival(u)):
      return False
    if u.op is Ops.MOVE and u.arg.pinned:
      return True
    return not self.elsewhere.isdisjoint(u.src) or is_stored(device)

  def said(self, u: UOp) -> Hint | None:
    """What the user has said of a value."""
    if u.op is Ops.CONSTRAIN:
      return self.constrained(u, u.arg)
    if isinstance(u.device, Sharding) and (u.op is Ops.BUFFER or (u.op is Ops.MOVE and u.arg.pinned)):
      return Hint.of(self.mesh, [u.device.cut(i) for i in range(u.ndim)], (False,) * u.ndim)
    return None

  def constrained(self, u: UOp, hint: Constraint) -> Hint:
    said = hint_on(u, self.mesh)
    if hint.group is not None:
      self.groups.setdefault(hint.group, []).append(self.number[u] if u in self.number else len(self.problem.shapes))
    return said

  def value(self, u: UOp, facts: Facts, hint: Hint | None) -> None:
    """A value weighs what it takes to move it, which may be done below movement and before it is widened."""
    weight, problem = facts.nbytes, self.problem
    is_seen = u.op in GroupOp.Rearranging or u.op is Ops.CAST  # it may be made of what has been moved
    if is_seen and (below := self.number.get(u.src[0])) is not None:
      weight = min(weight, problem.weights[below])
    self.nodes.append(u)
    self.number[u] = problem.value(facts.shape, hint, weight)

  def facts(self, u: UOp) -> Facts:
    """What is to be known of a node; of those of one kind, on sources of the same shapes, asked once."""
    key = (self.kinds[u], *[s.shape for s in u.src])
    if (found := self.known.get(key)) is None:
      shape, rule = u.max_shape, None
      if u.src:
        allowed = Direction[u.arg.propagate.upper()] if u.op is Ops.CONSTRAIN else Direction.BOTH
        rule = Rule.of(factor_rule(u), u.op in ALIKE, allowed)
        rule = self.rules.setdefault(rule, rule)
      found = self.known[key] = Facts(shape, float(prod(shape) * u.dtype.itemsize), rule)
    return found

  def connect(self, u: UOp, rule: Rule, sources: Sequence[UOp]) -> None:
    """The edge of an op."""
    number = self.number
    values = tuple([number.get(s) for s in sources])
    if any(v is not None for v in values):
      self.edges.append((self.depth[u], self.keys[u], Edge(rule, (*values, number[u])), u))


def hint_on(u: UOp, mesh: Mesh) -> Hint:
  """What a CONSTRAIN says. Raises: ShardError for what is no axis of the mesh."""
  hint: Constraint = u.arg
  try:
    dims, replicated, _ = hint.sub_axes(mesh)
  except ShardError as e:
    rule, fix = str(e).rsplit("\n", 1)
    line = f"\n    the hint: {source_line(*u.origin)}" if u.origin else ""
    raise ShardError(f"{rule}{line}\n{fix}") from None
  return Hint.of(mesh, dims, hint.opened, hint.priorities, replicated)


def unread_hints(sink: UOp, counting: bool = False) -> set[UOp]:
  """The hints that nobody reads, but for others of them; without those that say more than how a value is cut, and,
  unless `counting`, those that have counted before."""
  return hints_that_may_be_inert(sink, counting, False)


def closed_hints(sink: UOp) -> set[UOp]:
  """Those of `unread_hints`, and those that are read, leave no dim open, and let pass what is said in both directions:
  what is read back of a value says so."""
  return hints_that_may_be_inert(sink, False, True)


def hints_that_may_be_inert(sink: UOp, counting: bool, closed: bool) -> set[UOp]:
  found, read = set[UOp](), set[UOp]()
  for u in reversed(sink.toposort()):  # readers before what they read
    op = u.op
    may_be = op is Ops.CONSTRAIN and (u not in read or (closed and not any(u.arg.opened) and u.arg.propagate == "both"))
    is_cut = may_be and not u.arg.reduced and u.arg.group is None
    if is_cut and (counting or u not in counted):
      found.add(u)
      if u in read:
        read.update(u.src)
    elif op is not Ops.SINK and (op is not Ops.MOVE or not is_decided_anew(u) or u in read):
      read.update(u.src)
  return found


def met(hints: Set[UOp], made: Mapping[UOp, UOp], mesh: Mesh) -> dict[UOp, tuple[Axes, ...]]:
  """The hints that say how what their values became is placed, and how each of these is cut."""
  out = {}
  for u in hints:
    said, dims = hint_on(u, mesh), cuts_on(made[u.src[0]], mesh)
    if dims is not None and is_met(said, dims):
      out[u] = dims
  return out


def with_those_below(unmet: Set[UOp], inert: Set[UOp]) -> set[UOp]:
  """Hints, and the inert ones of which these are said: what is met by chance would not be so for long."""
  out, todo = set(unmet), list(unmet)
  while todo:
    if (below := before_moves(todo.pop().src[0])) in inert and below not in out:
      out.add(below)
      todo.append(below)
  return out


def wanting(found: Answer, hints: Set[UOp], counting: Set[UOp]) -> set[UOp]:
  """Which inert hints are to count besides `counting`, as an answer tells before it is built. Those that it does not
  meet and that are alike to one that counts: layers are. Else the next one, if that is of memory, which is where the
  answer says, or names an axis that cuts nothing yet."""
  asked, wished = found.asked, found.solution.hints
  unmet = set[UOp]()
  for u in hints:
    if (v := asked.number.get(u)) is not None:
      here = wished[v]
      if not is_met(hint_on(u, asked.mesh), ((),) * u.ndim if here is None else here.dims):
        unmet.add(u)
  first = next_to_count(found, unmet, counting)
  if not unmet or not {what_is_said(u) for u in first}.isdisjoint(map(what_is_said, counting)):
    return first
  cuts = {d for hint in set(wished) if hint is not None for dim in hint.dims for d in dim}
  memory = {asked.number[u] for u in asked.leaves}
  named = (hint_on(u, asked.mesh).dims for u in first)
  is_new = any(all(coexist(d, e) for e in cuts) for dims in named for dim in dims for d in dim)
  return first if is_new or any(asked.number[u] in memory for u in first) else set()


def next_to_count(found: Answer, unmet: Set[UOp], counting: Set[UOp]) -> set[UOp]:
  """Of hints that are read, and not met, all that are alike to one that counts; else to the first."""
  like = {what_is_said(u) for u in counting}
  if not (more := {u for u in unmet if what_is_said(u) in like}) and unmet:
    (first,) = earliest(unmet, found.asked.by_depth, 1)
    more = {u for u in unmet if what_is_said(u) == what_is_said(first)}
  return more


def what_is_said(u: UOp) -> tuple[object, ...]:
  """What a hint says, of what kind of value."""
  return u.arg, u.shape, before_moves(u.src[0]).op


def earliest(hints: Set[UOp], by_depth: Sequence[UOp], most: int) -> set[UOp]:
  """The first, `most` at most, of those of the earliest round, of which none is said of another one. What says less
  goes first, by the dims that it closes and the axes that it names, then by depth: what says more may follow from
  it."""
  rounds = {u: min(u.arg.priorities, default=0) for u in hints if before_moves(u.src[0]) not in hints}
  place = {u: i for i, u in enumerate(by_depth)}
  first = sorted(
    [u for u, number in rounds.items() if number == min(rounds.values())],
    key=lambda u: (u.ndim - sum(u.arg.opened), sum(map(len, u.arg.dims)), place[before_moves(u.src[0])], repr(u.arg)),
  )
  return set(first[:most])


def has_room(u: UOp, mesh: Mesh) -> bool:
  """Whether a hint leaves a dim open, and an axis of the mesh to cut it."""
  said = hint_on(u, mesh)
  used = prod(number_of_parts(axes) for axes in (*said.dims, said.replicated))
  return any(said.opened) and used < prod(mesh.shape)


def is_met(said: Hint, dims: Sequence[Axes]) -> bool:
  """Whether a value that is cut so is as a hint says."""
  if not all(coexist(d, e) for dim in dims for d in dim for e in said.replicated):
    return False
  return all(common(x, y) == x and (is_open or x == y) for x, y, is_open in zip(said.dims, dims, said.opened))


@PROCESS.cached
def is_stored(device: Placement | None) -> bool:
  """Whether values on a device are computed on others."""
  return isinstance(device, str) and Device.capabilities(device).computes in (Computes.NOTHING, Computes.ON_HOST)


def is_anywhere(u: UOp) -> bool:
  """Whether a node puts what lives anywhere, a constant, on one device: it may as well be made where it is used."""
  return u.op is Ops.MOVE and u.src[0].device is None and isinstance(u.device, str)


def is_arrival(u: UOp) -> bool:
  """Whether a node on one device is where a value comes from: memory there, or a copy of what is only stored."""
  if not isinstance(u.device, str) or is_stored(u.device):
    return False
  return u.op is Ops.BUFFER or (u.op is Ops.MOVE and is_stored(u.src[0].device))
