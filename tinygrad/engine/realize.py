"""From lazy values to memory: the one place that names all stages.

`realize` gives each root a buffer, then: canonical graph (buffers numbered, variables unbound) → `localize` →
`create_schedule` → a compiled `Plan`, cached under the canonical graph → `run`. Nothing here loops over the devices
of a simulated backend."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinygrad.device import reduced_placement
from tinygrad.engine.compile import plan_of
from tinygrad.engine.run import execute, recorders, run_of
from tinygrad.helpers import DEBUG, LazyModule, say, span
from tinygrad.ops import Trait, having
from tinygrad.uop import GroupOp, Ops, UOp
from tinygrad.uop.node import stored, viewed

if TYPE_CHECKING:
  from tinygrad.debug import report as moves
else:
  moves = LazyModule("tinygrad.debug.report")

EFFECTS = having(Trait.EFFECT)
stages: list[Callable[[Sequence[UOp]], Sequence[UOp]]] = []
"""What runs before a graph is planned, and says what is left of it (transforms/run_loops.py)."""
random_states: weakref.WeakKeyDictionary[UOp, tuple[int, ...]] = weakref.WeakKeyDictionary()
"""What random numbers are computed from (mixin/random.py): memory that is nobody's."""


def realize(*roots: UOp, starting: Callable[[UOp], object] = lambda sink: None) -> list[UOp]:
  """Computes `roots` and performs the effects among them and below them. `starting` is called when all is planned and
  compiled, before anything runs, with what that is of: `roots` as the stages have left them.

  Returns for each root the BUFFER with its value, at the root's placement, not partial; for a view of a buffer that
  view, the effects before it done."""
  for stage in stages:
    roots = tuple(stage(roots))
  effects = [u for u in UOp.sink(*roots).toposort() if u.op is Ops.ASSIGN]
  made = {root: _prepare(root, effects) for root in dict.fromkeys(roots)}
  if effects:
    sink = UOp.sink(*effects)
    if DEBUG >= 2 and (found := moves.report(sink)).rows:
      say(str(found))
    with span("plan"):
      planned = plan_of(sink, once=not recorders)  # what is captured is run often
    execute(run_of(*planned), lambda: starting(sink))
  return [made[root] for root in roots]


def _prepare(root: UOp, effects: list[UOp]) -> UOp:
  """What `root` will be once `effects` have run; a computed value adds its own."""
  if (base := viewed(root)).op is Ops.BUFFER or base.op in EFFECTS:
    *above, u = root.down()
    for v in reversed(above):
      u = v.replace(src=(u,)) if v.op in GroupOp.View else u
    return u
  effects.append(store := stored(root, reduced_placement(root.device)))
  return store.src[0]
