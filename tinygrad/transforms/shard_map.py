"""`shard_map`: a function of one device's parts, over a mesh.

It is a map over the mesh's axes: each argument is cut into lanes, which lie where the mesh's devices are, and the
function is batched over them. What is the same along an axis has length 1 there. Only the collectives move anything.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from tinygrad.device import Mesh, P, Sharding, ShardTypeError, refuse
from tinygrad.dtype import dtypes
from tinygrad.engine.jit import is_tensor
from tinygrad.transforms.batching import Batching, Lanes, placed_on
from tinygrad.transforms.tracing import Outside, next_hole, tracing, unknown
from tinygrad.transforms.tree import tree_leaves, tree_map
from tinygrad.uop import Ops, UOp, describe

Specs = Any  # a P for all of a structure, or a list, tuple or dict of such
Axes = tuple[tuple[int, ...], ...]  # of each dim the numbers of the mesh axes that cut it, major to minor


def shard_map(fun: Callable[..., Any], mesh: Any, in_specs: Specs, out_specs: Specs) -> Callable[..., Any]:
  """`fun`, written for the parts on one device, over all devices of the mesh: its arguments are the blocks that
  `in_specs` cut of the Tensors given (one `P` for all, or one for each argument, or in the structure of the arguments),
  its results the blocks of Tensors that `out_specs` describes. Tensors are brought to `in_specs` first; then only
  collectives (`psum`, `all_gather`, …) move anything, by the names of the mesh's axes. `P()`: the whole, on every
  device; a result must then be the same on all, as that of a `psum` is.

  Raises: ValueError for dims that the axes do not divide, and for results that differ along an axis which `out_specs`
  does not name; ShardError for names that are no axes of the mesh, ShardTypeError for what is no Mesh.

  Examples:
    >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
    >>> total = shard_map(lambda x: psum(x.sum(), "d"), mesh, (P("d"),), P())
    >>> total(Tensor([1.0, 2.0, 3.0, 4.0])).item()
    10.0
  """
  if not isinstance(mesh, Mesh):
    fix = 'shard_map(f, Mesh(("CPU:0", "CPU:1"), names=("dp",)), P("dp"), P("dp"))'
    refuse(f"shard_map: {mesh!r} is no Mesh", fix, error=ShardTypeError)

  @functools.wraps(fun, updated=())
  def over_devices(*args: Any) -> Any:
    specs = in_specs if isinstance(in_specs, (list, tuple)) and not isinstance(in_specs, P) else (in_specs,) * len(args)
    cuts = [axes_of(mesh, spec) for spec in _spread(specs, args, "in_specs")]
    index = tuple(UOp.new(Ops.HOLE, dtypes.int32, (), (next_hole(), ())) for _ in mesh.names)
    spmd = tuple((name,) for name in mesh.names)
    lanes = Lanes(mesh.names, mesh.shape, index, spmd, next(iter(tree_leaves(args)), None), mesh=mesh)
    actual: dict[UOp, UOp] = {}
    places = iter(cuts)

    def leaf(x: Any) -> Any:
      u = in_lanes(x.uop, next(places), lanes)
      one = x._new(unknown(u.shape[len(mesh.names) :], u, None))
      actual[one.uop] = u
      return one

    before = Outside.now()
    parts = tree_map(leaf, args)
    with tracing(lanes, before):
      result = fun(*parts)
    batching = Batching(lanes, actual)
    out = iter([axes_of(mesh, spec) for spec in _spread(out_specs, result, "out_specs")])
    return tree_map(lambda y: y._new(of_lanes(y.uop, batching, next(out))), result)

  return over_devices


def _spread(specs: Specs, x: Any, name: str) -> Iterator[P]:
  """For each Tensor of a structure its spec."""
  if isinstance(specs, P):
    for _ in tree_leaves(x):
      yield specs
    return
  if is_tensor(x) or not isinstance(specs, (list, tuple, dict)):
    fix = 'give a P, such as P("dp"), or the structure of what it is of'
    raise ValueError(f"shard_map: {name} says {specs!r} of {x!r}\n  fix: {fix}")
  keys = list(specs) if isinstance(specs, dict) else list(range(len(specs)))
  there = list(x) if isinstance(x, dict) else list(range(len(x))) if isinstance(x, (list, tuple)) else []
  if set(keys) != set(there):
    raise ValueError(f"shard_map: {name} has entries {keys} for {there}\n  fix: give as many as there are")
  for k in there:
    yield from _spread(specs[k], x[k], name)


def axes_of(mesh: Mesh, spec: P) -> Axes:
  """The numbers of the axes that a spec names. Raises: ShardError for what is no whole axis of the mesh.

  Examples:
    >>> mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
    >>> mesh.axes_of([mesh.sub_axis("model")])
    ('model',)
  """
  Sharding(mesh, spec)  # says what is wrong with it
  names = [(entry,) if isinstance(entry, str) else entry or () for entry in spec]
  for name in (n for dim in names for n in dim):
    if name not in mesh.names:
      refuse(f"shard_map: {name!r} of {spec!r} is no axis of {mesh}", f"axes: {', '.join(map(repr, mesh.names))}")
  return tuple(tuple(map(mesh.names.index, dim)) for dim in names)


def in_lanes(u: UOp, axes: Axes, lanes: Lanes) -> UOp:
  """`u` with the mesh axes in front, of length 1 where they do not cut it: every lane has its block."""
  mesh, sizes = lanes.mesh, lanes.sizes
  assert mesh is not None
  if len(axes) > u.ndim:
    raise ValueError(f"shard_map: in_specs has {len(axes)} dims for {describe(u)}\n  fix: a P of at most {u.ndim}")
  split: list[Any] = []
  where: dict[int, int] = {}  # of each axis: the dim it has become
  for d, n in enumerate(u.shape):
    cuts, parts = axes[d] if d < len(axes) else (), 1
    for a in cuts:
      where[a], parts = len(split), parts * sizes[a]
      split.append(sizes[a])
    if n % parts:
      fix = f"pad dim {d} to {-(-n // parts) * parts}, and mask what was added, by axis_index, in the function"
      rule = f"dim {d} of {describe(u)} is cut into {parts} parts, and {n} is no multiple of {parts}"
      raise ValueError(f"shard_map: {rule}\n  fix: {fix}")
    split.append(n // parts)
  x = placed_on(u, mesh, [tuple(mesh.names[a] for a in dim) or None for dim in axes])
  x = x.reshape(split)
  front = [where[a] for a in range(len(sizes)) if a in where]
  x = x.permute((*front, *(i for i in range(len(split)) if i not in front)))
  return x.reshape((*(n if a in where else 1 for a, n in enumerate(sizes)), *x.shape[len(front) :]))


def of_lanes(u: UOp, batching: Batching, axes: Axes) -> UOp:
  """What a result for one device is for all: its blocks, put together along the dims that the axes cut."""
  lanes, k = batching.lanes, batching.k
  made = batching.fronted(u)
  lead, rest = made.shape[:k], made.shape[k:]
  named = {a for dim in axes for a in dim}
  if differs := [lanes.names[a] for a in range(k) if lead[a] != 1 and a not in named]:
    fix = f"name it in out_specs, or reduce it: psum(y, {differs[0]!r}), pmean, all_gather"
    rule = f"a result, {describe(u)}, differs along {differs[0]!r}, which out_specs does not name"
    raise ValueError(f"shard_map: {rule}\n  fix: {fix}")
  if len(axes) > len(rest):
    raise ValueError(f"shard_map: out_specs has {len(axes)} dims for {describe(u)}\n  fix: at most {len(rest)}")
  full = [lanes.sizes[a] if a in named else 1 for a in range(k)]
  made = made.expand((*full, *rest))
  order: list[int] = [a for a in range(k) if a not in named]
  shape: list[Any] = []
  for d, n in enumerate(rest):
    cuts = axes[d] if d < len(axes) else ()
    order += [*cuts, k + d]
    for a in cuts:
      n = n * lanes.sizes[a]
    shape.append(n)
  whole = made.permute(order).reshape(shape)
  mesh = lanes.mesh
  assert mesh is not None
  return placed_on(whole, mesh, [tuple(lanes.names[a] for a in dim) or None for dim in axes])
