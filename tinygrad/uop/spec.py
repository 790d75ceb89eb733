"""What a well-formed graph is: `check` runs on every new node under SPEC=2, `check_graph` on a stage's output."""

from collections.abc import Callable

from tinygrad.device import Sharding
from tinygrad.dtype import dtypes
from tinygrad.helpers import SPEC
from tinygrad.uop.cards import CARDS
from tinygrad.uop.node import Hooks, UOp, knows
from tinygrad.uop.op import GroupOp, Ops
from tinygrad.uop.printing import print_graph


class SpecError(AssertionError):
  """A node that breaks the IR's rules: a bug of this package, not of its user."""


def check(u: UOp) -> None:
  """Op, arity, dtype and shape of one node, by its card."""
  if u.op not in CARDS:
    raise SpecError(f"{u.op!r} has no card")
  try:
    CARDS[u.op].dtype(u)
    u.shape  # noqa: B018 (the card's shape rule raises)
  except (TypeError, ValueError, IndexError) as e:
    sources = "".join(
      f"\n    src[{i}]: {s.op.name} {s.dtype}{list(s.shape) if knows(s, 'shape') else ''}" for i, s in enumerate(u.src)
    )
    raise SpecError(f"{u.op.name} with arg {u.arg!r} and dtype {u.dtype}: {e}{sources}") from e


TENSOR = GroupOp.Elementwise | GroupOp.Movement | GroupOp.Leaf | {
  Ops.BIND, Ops.GATHER, Ops.SCATTER, Ops.REDUCE, Ops.CUSTOM, Ops.MOVE, Ops.ASSIGN, Ops.AFTER, Ops.WAIT,
  Ops.CONTIGUOUS, Ops.DETACH, Ops.CONSTRAIN, Ops.SINK,
}  # fmt: skip
LOCAL = (TENSOR - {Ops.MOVE, Ops.CUSTOM}) | {Ops.SHARD, Ops.COLLECTIVE, Ops.CALL}
KERNEL = GroupOp.Elementwise | {
  Ops.CONST, Ops.VARIABLE, Ops.PARAM, Ops.PEER, Ops.RANGE, Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.FOLD, Ops.ONE_HOT,
  Ops.SINK,
}  # fmt: skip


def allow_tensor(u: UOp) -> str | None:
  """Global view: tensor-level ops; a node's placement is what the placement function says of its sources."""
  if u.op not in TENSOR:
    return f"{u.op.name} in the global view"
  if isinstance(u.device, Sharding) and any(i >= u.ndim for i, d in enumerate(u.device.dims) if d):
    return f"{u.op.name} of {u.ndim} dims is placed as {u.device}"
  return None


def allow_kernel(u: UOp) -> str | None:
  """Kernel ASTs: scalars, loads and stores; index arithmetic in dtype index; conditions are bool."""
  if u.op not in KERNEL:
    return f"{u.op.name} in a kernel"
  if u.op is Ops.INDEX and [s.dtype for s in u.src[1:]] not in ([dtypes.index], [dtypes.index, dtypes.bool]):
    return f"INDEX by {[s.dtype for s in u.src[1:]]}"
  if u.op is Ops.LOAD and len(u.src[0].src) > 2 and len(u.src) < 2:
    return "a LOAD under a condition without an alternative"
  if u.op is Ops.FOLD and len(u.src) < 2:
    return "a FOLD over nothing"
  if u.op is Ops.STORE and any(s.op is not Ops.RANGE for s in u.src[2:]):
    return f"a STORE over {[s.op.name for s in u.src[2:]]}"
  return None


STAGES: dict[str, Callable[[UOp], str | None]] = {
  "tensor": allow_tensor, "kernel": allow_kernel,
  "local": lambda u: None if u.op in LOCAL else f"{u.op.name} in the local view",  # no moves but COLLECTIVEs
}  # fmt: skip


def check_graph(root: UOp, stage: str) -> None:
  """Every node of a stage's output ("tensor", "local": SPEC=2; "kernel": SPEC>=1). Raises SpecError with the graph."""
  if SPEC.value < (1 if stage == "kernel" else 2):
    return
  for u in root.toposort():
    if (fault := STAGES[stage](u)) is not None:
      raise SpecError(f"{fault} (after the stage that makes the {stage} view)\n{print_graph(u)}")


Hooks.check = check
