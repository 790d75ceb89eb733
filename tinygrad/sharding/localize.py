"""From the global view to the one program that every device runs: a list of passes, each from a graph to a graph."""

from collections.abc import Callable

from tinygrad.device import HOST_DEVICE, Sharding
from tinygrad.helpers import span
from tinygrad.sharding.costs import deliver
from tinygrad.sharding.decisions import droppable
from tinygrad.sharding.lower_to_local import lower_to_local
from tinygrad.sharding.place import placed
from tinygrad.sharding.view_assigns import lower_view_assigns
from tinygrad.uop import Ops, UOp, check_graph, substitute
from tinygrad.uop.rewrite import Sources, on_sources, rebuild, rewrite


def fold_host_copies(sink: UOp) -> UOp:
  """MOVE(MOVE(host data)) -> MOVE(host data): each device reads its own slice, and nobody holds the whole. The graph
  has both moves, for the gradient of what is in between."""
  mapping: dict[UOp, UOp] = {}
  for u in sink.toposort():
    if u.op is Ops.MOVE and u.src[0].op is Ops.MOVE:
      host = mapping.get(u.src[0], u.src[0]).src[0]
      if host.op is Ops.BUFFER and host.device == HOST_DEVICE:
        mapping[u] = u.replace(src=(host,))
  return substitute(sink, mapping) if mapping else sink


def drop_hints(sink: UOp) -> UOp:
  """CONSTRAIN(x) -> x: what was to be decided by it is decided. A move of it goes below views, as others of x do."""
  if not any(u.op is Ops.CONSTRAIN for u in sink.toposort()):
    return sink

  def make(u: UOp, src: Sources) -> UOp:
    if u.op is Ops.CONSTRAIN:
      return src[0]
    hinted = u.src and u.src[0].op is Ops.CONSTRAIN and droppable(u)
    return deliver(src[0], u.arg.device) if hinted else on_sources(u, src)

  return rebuild(sink, make)


def fold_waits(sink: UOp) -> UOp:
  """WAIT(x, others) -> x, if x has no device: its local form is x as it is, and the others would have none."""
  if not any(u.op is Ops.WAIT for u in sink.toposort()):
    return sink
  return rewrite(sink, {Ops.WAIT: lambda u: u.src[0] if u.device is None else None})


def inline_custom(sink: UOp) -> UOp:
  """CUSTOM(x) -> its graph on x, where nothing of it is cut: on one device, or anywhere; and where it has a place of
  its own."""
  if not (ours := [u for u in sink.toposort() if u.op is Ops.CUSTOM]):
    return sink
  apart = {u for u in ours if isinstance(u.device, Sharding) and u.arg[1].placed is None}
  return rewrite(sink, {Ops.CUSTOM: lambda u: None if u in apart else u.arg[1].graph(u.src)})


Pass = Callable[[UOp], UOp]
COMPLETE: dict[str, Pass] = {  # after these, every move is at its place
  "inline custom ops": inline_custom,
  "drop hints": drop_hints,
  "place": placed,
  "fold waits": fold_waits,
  "fold host copies": fold_host_copies,
  "lower view assigns": lower_view_assigns,
}
PASSES: dict[str, Pass] = COMPLETE | {"to local": lower_to_local}


def run_passes(passes: dict[str, Pass], sink: UOp) -> UOp:
  """`sink` after these passes, one after the other."""
  for name, lower in passes.items():
    with span(name):
      sink = lower(sink)
  return sink


def localize(sink: UOp) -> UOp:
  """The local view of a graph (docs/architecture.md, 3): no MOVE is left, buffers are behind SHARD."""
  check_graph(sink, "tensor")
  view = run_passes(PASSES, sink)
  check_graph(view, "local")
  return view
