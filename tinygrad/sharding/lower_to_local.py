"""The pass from a placed graph to the local view: what every node is asked for, then its local forms.

A value is asked for at a placement: its own, or (constants, and slices of what is replicated) one that needs no
communication."""

from collections.abc import Iterable, Sequence

from tinygrad.device import Placement
from tinygrad.helpers import SPEC
from tinygrad.sharding.local_forms import Demand, Local, LocalForms, Rule, as_it_is
from tinygrad.uop import UOp


def lower_to_local(sink: UOp) -> UOp:
  """A graph with every move at its place (`localize.COMPLETE`) in the local view."""
  return Localizer(sink.toposort()).run()


class Localizer:
  """One pass over a graph in order. From the sink down it finds at which placements each value is asked for; then the
  local forms are built from the leaves up. No recursion: graphs may be deeper than the stack."""

  def __init__(self, order: Sequence[UOp]) -> None:
    order[-1].shape, order[-1].device  # those of all nodes are there now
    self.order = order
    self.rules = LocalForms(order)
    self.wanted = {order[-1]}  # values as they are
    self.cut: dict[UOp, dict[Placement, None]] = {}  # values cut finer than they are
    self.done: dict[UOp | Demand, UOp] = {}  # local forms of both

  def run(self) -> UOp:
    """The local form of the sink."""
    forms = self.demanded()
    self.build(forms)
    return self.done[self.order[-1]]

  def demanded(self) -> list[tuple[UOp, Placement | None, Rule | Local]]:
    """All forms that the sink needs, each before its sources: of which node, where (None: as it is), and how."""
    sink, wanted, done, rule_of = self.order[-1], self.wanted, self.done, self.rules.of
    forms: list[tuple[UOp, Placement | None, Rule | Local]] = []
    for u in reversed(self.order):
      for p in self.cut.get(u, ()):
        rule = rule_of(u, p)
        forms.append((u, p, rule))
        self.ask(u, rule)
      if u not in wanted:
        continue
      if u.device is None and u is not sink:
        done[u] = u
        continue
      rule = rule_of(u, u.device)
      forms.append((u, None, rule))
      if isinstance(rule, Local) and rule.places is None:
        wanted.update(u.src)
      else:
        self.ask(u, rule)
    return forms

  def ask(self, u: UOp, rule: Rule | Local) -> None:
    """Notes what the local form of u is made of."""
    if isinstance(rule, Local):
      demands: Iterable[Demand] = zip(u.src, rule.places or (None,) * len(u.src))
    else:
      demands = [(s, None if as_it_is(s, there) else there) for s, there in rule[0]]
    for s, p in demands:
      if p is None:
        self.wanted.add(s)
      else:
        self.cut.setdefault(s, {})[p] = None

  def build(self, forms: Sequence[tuple[UOp, Placement | None, Rule | Local]]) -> None:
    """The local forms, sources first."""
    done, checked = self.done, SPEC.value >= 2
    for u, place_, rule in reversed(forms):
      if isinstance(rule, Local):
        if rule.places is None:
          src = tuple([done[s] for s in u.src])
        else:
          src = tuple([done[s if there is None else (s, there)] for s, there in zip(u.src, rule.places)])
        v = UOp.new(u.op, u.dtype, src, u.arg if rule.arg is None else rule.arg)
        if rule.shape is not None:
          assert not checked or v.shape == rule.shape, f"{v!r} is not of the shape {rule.shape}"
          v.shape = rule.shape
      else:
        v = rule[1]([done[s if as_it_is(s, there) else (s, there)] for s, there in rule[0]])
      if v.origin is None:
        v.origin = u.origin
      done[u if place_ is None else (u, place_)] = v
