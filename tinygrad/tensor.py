"""The public `Tensor`: a value in the graph, how it is made from data, placed, realised, read and differentiated."""

from __future__ import annotations

import ctypes
import math
import pathlib
import sys
import warnings
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from tinygrad.device import (
  HOST_DEVICE,
  Buffer,
  Device,
  DeviceNames,
  Mesh,
  P,
  Placement,
  Sharding,
  ShardTypeError,
  ambient_mesh,
  around,
  as_index,
  check_fits,
  constraint,
  device_set,
  refuse,
  show_placement,
)
from tinygrad.dtype import (
  DType,
  _from_torch_dtype,
  as_const,
  check_holds,
  dtypes,
  from_numpy_dtype,
  to_dtype,
  to_numpy_dtype,
)
from tinygrad.engine.program_order import VIEWS, memory_state, program_order
from tinygrad.engine.realize import READ_OUTSIDE, Held, check_outside, join, to_numpy, to_numpy_once
from tinygrad.helpers import (
  NO_GRAD,
  TRAINING,
  Context,
  GlobalCounters,
  Holder,
  LazyModule,
  Setting,
  all_int,
  dedup,
  fetch,
  html_block,
  html_cell,
  html_rows,
  numpy,
  prod,
  uninterrupted,
)
from tinygrad.mixin.base import DeviceArg, DTypeArg, broadcast_shape, mismatch, to_placement
from tinygrad.mixin.nn import NN
from tinygrad.mixin.random import drawn_there
from tinygrad.ops import Trait, having
from tinygrad.propagation import place_on
from tinygrad.runtime import storage
from tinygrad.runtime.transfer import copy_blocks, own_parts
from tinygrad.transforms.ended import check_not_ended, note_written
from tinygrad.transforms.gradient import compute_gradient, occurrences
from tinygrad.transforms.tracing import check_write
from tinygrad.uop import GroupOp, Ops, UOp, buffer_of, describe, substitute

ONE_TO_ONE = having(Trait.ONE_TO_ONE)

if TYPE_CHECKING:
  from tinygrad.drawing import grid
  from tinygrad.sharding import view_assigns
else:
  grid = LazyModule("tinygrad.drawing.grid")
  view_assigns = LazyModule("tinygrad.sharding.view_assigns")


_to_np_dtype = to_numpy_dtype  # by which programs know it


class _Training(type(NN)):  # type: ignore[misc]
  """`Tensor.training` reads and sets the context variable TRAINING."""

  training = Setting(TRAINING, bool, int)


class Tensor(NN, metaclass=_Training):
  """An array of one type on one device or cut over several.

  `Tensor(data, device, dtype)` takes numbers, nested lists, bytes (uint8), a path (its bytes), numpy arrays, a bound
  variable or nothing (an empty tensor). Nothing is computed before `realize`, `numpy`, `item`, …
  `grad` is what `backward` has left; `requires_grad` says whether it does (None: as the optimizer likes).

  Examples:
    >>> Tensor([[1, 2], [3, 4]])
    <Tensor int32[2, 2] on CPU>
    >>> (Tensor([1.0, 2.0]) * Tensor([[10.0], [20.0]])).tolist()
    [[10.0, 20.0], [20.0, 40.0]]
  """

  __slots__ = ("__weakref__", "_holder", "_uop", "grad")
  _holder: Holder
  _uop: UOp
  grad: Tensor | None

  def __init__(
    self, data: Any = None, device: DeviceArg = None, dtype: DTypeArg = None, requires_grad: bool | None = None
  ) -> None:
    d = None if dtype is None else to_dtype(dtype)
    self.uop = _from_data(data, None if device is None else to_placement(device), d)
    # a Tensor or a node is shown as it is; all else becomes memory only when it is realised
    given = type(data) is UOp or (isinstance(data, Tensor) and data.follows)
    u = self._uop
    self.follows = given and (u.op is Ops.BUFFER or memory_state(u, moved=True) is not None)
    self.grad, self.requires_grad = None, requires_grad
    program_order.enter(self)

  @classmethod
  def _wrap(cls, uop: UOp, follows: bool = False) -> Self:
    t = object.__new__(cls)
    t.uop, t.grad, t.requires_grad = uop if not NO_GRAD.value else uop.detach(), None, None
    t.follows = follows
    program_order.enter(t)
    return t

  @property
  def uop(self) -> UOp:
    """The node that this tensor stands for.

    Examples:
      >>> Tensor([1.0]).uop.shape
      (1,)
    """
    return self._uop

  @uop.setter
  def uop(self, u: UOp) -> None:
    program_order.sees(self, u)
    self._uop = u
    if u.dtype is dtypes.float64 and (bad := [d for d in device_set(self.device) if not Device[d].target.float64]):
      mismatch("float64", f"{bad[0]} has no float64", [u], "use float32 there, or compute in float64 on CPU", TypeError)

  @property
  def is_param(self) -> bool:
    """Whether `backward` may fill `.grad` here.

    Examples:
      >>> Tensor([1.0]).is_param, Tensor([1.0], requires_grad=False).is_param
      (True, False)
    """
    return self.requires_grad is not False

  def is_param_(self, is_param: bool = True) -> Self:
    """`requires_grad_`.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0]).is_param_(False).is_param
      False
    """
    return self.requires_grad_(is_param)

  # ---- what it shows

  def __repr__(self) -> str:
    return f"<Tensor {describe(self.uop)}{'' if self.grad is None else ', with grad'}>"

  def _repr_html_(self) -> str:
    """Shape, type, placement in colour, and the first values where they are in memory; nothing is computed for it but
    the copy of those."""
    drawn = isinstance(self.device, Sharding) and all_int(self.shape)
    parts = f'<div style="background:#fff;width:max-content">{grid.draw_grid(self.uop).svg}</div>' if drawn else ""
    said = "" if self._in_memory() else "<div>not computed yet</div>"
    return html_block(f"Tensor {describe(self.uop)}", self._first_values() if not said else said, parts)

  def _in_memory(self) -> bool:
    """Whether it is memory, or a view of some, that holds values."""
    base = memory_state(self.uop)
    if base is None or base.op is not Ops.BUFFER or not all_int(self.shape):
      return False
    return bool(buffer_of(base).handles) and not any(Device[d].capabilities.simulated for d in device_set(self.device))

  def _first_values(self) -> str:
    """The first rows and columns of the last two dims, as HTML."""
    first = self[(0,) * max(0, self.ndim - 2)]
    values = first.shrink(tuple((0, min(n, k)) for n, k in zip(first.shape, (6, 10)[-first.ndim :]))).numpy()
    more = "…" if values.size < self.numel() else ""
    rows = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    return html_rows([html_cell(f"{x:.4g}" if x.dtype.kind == "f" else x) for x in row] for row in rows) + more

  def __hash__(self) -> int:
    return id(self)

  def __len__(self) -> int:
    if not self.ndim:
      raise TypeError("len() of a 0-d tensor\n  fix: x.reshape(1) has one dim, x.item() is its number")
    return int(self.shape[0])

  def __bool__(self) -> bool:
    raise TypeError("the truth of a tensor is not defined\n  fix: use x.item(), x.any().item() or x.all().item()")

  def __iter__(self) -> Iterator[Self]:
    if not self.ndim:
      raise TypeError("iteration over a 0-d tensor\n  fix: x.reshape(1) has one element, x.item() is its number")
    return (self[i] for i in range(len(self)))

  def __delitem__(self, indices: Any) -> None:
    raise TypeError("a tensor does not support deleting elements\n  fix: join the parts that stay with Tensor.cat")

  # ---- placement

  def to(self, device: DeviceArg) -> Self:
    """The value on another device (None: the default one) or placement; itself if it is there.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1]).to("CPU:1").device
      'CPU:1'
    """
    return self._at(to_placement(device))

  def _at(self, placement: Placement) -> Self:
    if self.uop.device == placement:
      return self
    if storage.only_stored(self.uop.device):  # read where it arrives
      return self._wrap(storage.read(self.uop))._at(placement)
    if storage.only_stored(placement):
      return self._wrap(UOp.buffer(self.numpy_shape(), self.dtype, placement), True).assign(self)
    t = self._wrap(self.uop.copy_to_device(placement))
    t.requires_grad = self.requires_grad
    return t

  def to_(self, device: DeviceArg) -> Self:
    """`to` in place.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1]).to_("CPU:1").device
      'CPU:1'
    """
    return self._become(self.to(device))

  def _become(self, x: Self) -> Self:
    if self.grad is not None:
      self.grad = self.grad.to(x.device)
    drawn = drawn_there(self.uop, x.device) if x.uop is not self.uop else None
    self.uop, self.follows = (x.uop, x.follows) if drawn is None else (drawn, False)
    program_order.reenter(self)
    return self

  @overload
  def shard(self, devices: Sharding) -> Self: ...
  @overload
  def shard(self, devices: DeviceNames | Mesh, axis: int | P | None = None) -> Self: ...
  def shard(self, devices: Any, axis: int | P | None = None) -> Self:
    """The value over several devices: `shard(names, axis)` cuts one dim (None: a copy on each), `shard(mesh, P(...))`
    by mesh axes, or `shard(sharding)`, which over one device is its name. On a sharded tensor it reshards. Names of one
    device are that device, with a warning.

    Raises: ShardError for a dim that is not there and for a placement that cannot be, ShardTypeError for what is none.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor.arange(5).shard(("CPU:0", "CPU:1"), axis=0)
      >>> x.shape, [part.tolist() for part in x.shards]
      ((5,), [[0, 1, 2], [3, 4]])
      >>> Tensor.ones(4, 4).shard(Mesh(("CPU:0", "CPU:1"), names=("d",)), P(None, "d")).device.axis
      1
    """
    if isinstance(devices, Sharding):
      if axis is not None:
        rule = f"shard: the placement says already how dims are cut, beside it axis={axis!r} is one too many"
        refuse(rule, f"x.shard(placement.devices, axis={axis!r})", describe(self.uop), show_placement(devices))
      return self._at(devices)
    if isinstance(devices, str) and axis is None:
      return self.to(devices)  # what a Sharding over one device is
    if isinstance(devices, (str, P)):
      fix = f"x.to({devices!r})" if isinstance(devices, str) else f"x.shard(mesh, {devices!r})"
      refuse(f"shard: needs a sequence of devices, got {devices!r}", fix, describe(self.uop), error=ShardTypeError)
    if (number := as_index(axis)) is not None and not -self.ndim <= number < self.ndim:
      mesh, last = "mesh" if isinstance(devices, Mesh) else "devices", f", axis={self.ndim - 1}" if self.ndim else ""
      rule = f"shard: dim {number} is out of range, the tensor of shape {self.shape} has {self.ndim} dims"
      refuse(rule, f"x.shard({mesh}{last})", describe(self.uop))
    if isinstance(devices, (tuple, list)) and len(devices) > 1 and len({*map(Device.canonicalize, devices)}) == 1:
      warnings.warn(f"shard: {tuple(devices)} are one device, so nothing is cut", stacklevel=2)
      return self.to(devices[0])
    return self._at(Sharding(devices, axis if number is None else number % self.ndim))

  @overload
  def shard_(self, devices: Sharding) -> Self: ...
  @overload
  def shard_(self, devices: DeviceNames | Mesh, axis: int | P | None = None) -> Self: ...
  def shard_(self, devices: Any, axis: int | P | None = None) -> Self:
    """`shard` in place.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor.ones(4)
      >>> x.shard_(("CPU:0", "CPU:1"), axis=0).device.axis
      0
    """
    return self._become(self.shard(devices, axis))

  def shard_like(self, y: Tensor) -> Self:
    """The value at y's placement. ShardTypeError (a ShardError) if y is no tensor.
    Shape: `(*dims), (*other) -> (*dims)`.

    Examples:
      >>> x = Tensor.ones(4).shard(("CPU:0", "CPU:1"), axis=0)
      >>> Tensor.zeros(4).shard_like(x).device == x.device
      True
    """
    if not isinstance(y, Tensor):
      refuse(f"shard_like: y is a tensor, not {y!r}", "x.to(y)", describe(self.uop), error=ShardTypeError)
    return self._at(y.device)

  def constrain(
    self,
    spec: P | None = None,
    priority: int | Sequence[int] = 0,
    replicated: Sequence[str] = (),
    reduced: Sequence[str] = (),
    group: Hashable = None,
    propagate: str = "both",
  ) -> Self:
    """The value, with a hint of how it is to be placed: `x.constrain(P("dp", None, OPEN))`. It changes nothing before
    a mesh is there to place values on: `propagate(*outputs, mesh=mesh)`, `TinyJit(f, mesh=mesh)` or `with mesh:`.

    `spec` has for each dim the axes that cut it; `OPEN` alone or behind them: others may cut it further; None, and dims
    that are not reached: none may. Without a spec all dims are open. `priority`: in which round the hint is propagated,
    0 first, one number or one for each dim. `replicated`: axes that cut no dim. `reduced`: axes over which a sum is not
    put off beyond this point. Values of one `group` are placed alike. `propagate`: what passes this point, "both"
    directions, "forward", "backward" or "none".
    Raises: ShardError and ShardTypeError for what is no hint for this tensor, and an axis that is named twice; for
    names that are no axes, when a mesh is there.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor.ones(4, 2).constrain(P("d"))
      >>> said = propagate(x, mesh=Mesh(("CPU:0", "CPU:1"), names=("d",)))
      >>> x.device.axis
      0
    """
    return self._wrap(
      self.uop.constrain(constraint(self.ndim, spec, priority, replicated, reduced, group, propagate)), self.follows
    )

  @property
  def shards(self) -> list[Self]:
    """The part of each device, there; a list of one where the tensor is on one device. Where devices are spread over
    processes, those of this one, realized, as host data: what is done with them is this process's own affair.
    Shape: `(*dims) -> (*block), …`.

    Examples:
      >>> [part.shape for part in Tensor.ones(5).shard(("CPU:0", "CPU:1"), axis=0).shards]
      [(3,), (2,)]
    """
    where = self.device
    if Device.world is not None:
      return [self._wrap(UOp.from_numpy(array)) for array in own_parts(buffer_of(self.contiguous().realize().uop))]
    if isinstance(where, str):
      return [self]
    shape = self.numpy_shape()
    return [self.shrink(where.box(i, shape)).to(name) for i, name in enumerate(where.devices)]

  @classmethod
  def from_shards(cls, parts: Sequence[Any], placement: Placement) -> Self:
    """The tensor whose block on device i is `parts[i]`, a Tensor or an array; the inverse of `shards`.

    Its shape follows from the parts. Replicas may be given once: then `parts` holds the distinct blocks, in the order
    of the first device that holds each. A part that lies on its device gives its memory to the new tensor, and reads
    from there from now on; any other is copied once. The result is a leaf: no gradient flows to the parts.
    Raises: ShardError for another number of parts, for shapes that are not the placement's blocks of one shape, and
    for a partial placement; TypeError if the dtypes differ.
    Shape: `(*block), … -> (*dims)`.

    Examples:
      >>> Tensor.from_shards([[1, 2], [3, 4]], Sharding(("CPU:0", "CPU:1"), axis=0)).shape
      (4,)
    """
    placement = to_placement(placement)
    tensors = [p if isinstance(p, Tensor) else Tensor(p) for p in parts]
    shape, number = _shape_of_blocks([t.numpy_shape() for t in tensors], placement)
    if len(kinds := dedup(t.dtype for t in tensors)) > 1:
      rule = f"the parts must have one dtype, not {', '.join(d.name for d in kinds)}"
      mismatch("from_shards", rule, [t.uop for t in tensors], f"cast them, e.g. part.cast({kinds[0]!r})", TypeError)
    if isinstance(placement, str):
      one = tensors[0].to(placement)
      return cls._wrap(one.uop, one.follows)
    with Context(NO_GRAD=0):
      sources = [_source(t.uop) for t in tensors]
      made = [cls._wrap(u, True) if u.op is Ops.BUFFER else cls._wrap(u.contiguous()) for u in sources]
      made[0].realize(*made[1:])
    whole = join([made[i].uop for i in number], placement, shape)
    given = {}
    for i, (name, k) in enumerate(zip(placement.devices, number, strict=True)):
      if buffer_of(whole).handle(i) is buffer_of(made[k].uop).handle() and not Device[name].capabilities.simulated:
        given[made[k].uop] = whole.shrink(placement.box(i, shape)).copy_to_device(name)
    if given:  # what shared memory would be written through two buffers
      memo: dict[UOp, UOp] = {}
      for t in program_order.live():
        t.uop = substitute(t.uop, given, memo)
        t.follows = t.follows and memory_state(t.uop, moved=True) is not None
    return cls._wrap(whole, True)

  @classmethod
  def from_process_local(cls, array: Any, placement: Placement, shape: Sequence[int] | None = None) -> Self:
    """The tensor of which this process gives `array`: the smallest box that holds the blocks of its devices. So no
    process has to have the whole; in one process alone the array is the whole. `shape` of the whole is needed where
    blocks are not all of one size. Done by all processes together.

    Raises: ShardError if the array is not that box; DivergedError where processes give other values for one block.
    Shape: `-> (*shape)`.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("dp",))
      >>> batch = Tensor.from_process_local(np.arange(4), Sharding(mesh, P("dp")))
      >>> batch.shape, batch.sum().item()
      ((4,), 6)
    """
    array = numpy.ascontiguousarray(array)
    if isinstance(placement := to_placement(placement), str):
      return cls(array, device=placement)
    blocks = tuple(placement.parts(i) for i in range(array.ndim))
    own = [i for i, name in enumerate(placement.devices) if Device.here(name)]
    if shape is None:  # even blocks
      held = around([placement.box(i, blocks) for i in own])
      shape = [n * k // max(hi - lo, 1) for n, k, (lo, hi) in zip(array.shape, blocks, held)]
    check_fits(placement, shape)
    box = around([placement.box(i, shape) for i in own])
    if array.shape != tuple(hi - lo for lo, hi in box):
      rule = f"from_process_local: this process's part of {[*shape]} is {[*box]}, the array has shape {array.shape}"
      refuse(rule, "array[tuple(slice(lo, hi) for lo, hi in part)], and shape= of the whole", show_placement(placement))
    whole = Buffer(placement, tuple(shape), from_numpy_dtype(array.dtype)).allocate()
    source = {box: (buffer_of(UOp.from_numpy(array)), 0)}
    copy_blocks(shape, source, [(placement.box(i, shape), whole, i) for i in range(len(placement.devices))])
    return cls._wrap(UOp.buffer(whole.shape, whole.dtype, placement, whole), True)

  def bitcast(self, dtype: DType | str) -> Self:
    """The same bits read as another type; between widths the last dim grows or shrinks. ValueError if it does not
    divide. What is only stored stays where it is.
    Shape: `(.., n) -> (.., m)`; n and m have the same bits.

    Examples:
      >>> Tensor([1.0]).bitcast(dtypes.int32).tolist()
      [1065353216]
      >>> Tensor([1.0]).bitcast(dtypes.uint8).shape
      (4,)
    """
    if storage.only_stored(self.uop.device):
      return self._wrap(storage.bitcast_stored(self.uop, to_dtype(dtype)))
    return super().bitcast(dtype)

  # ---- realisation

  def realize(self, *lst: Tensor, do_update_stats: bool = True) -> Self:
    """Computes this tensor and `lst` in one go; each then has memory of its own, if it is no view of another's.
    `GlobalCounters` count it or don't.
    Shape: `(..) -> (..)`.

    Raises: TypeError for what is no Tensor, as a `.grad` that is None.

    Examples:
      >>> x = Tensor.ones(2) + 1
      >>> x.realize().tolist()
      [2.0, 2.0]
    """
    counted = [(k, getattr(GlobalCounters, k)) for k in ("global_ops", "global_mem", "time_sum_s", "kernel_count")]
    tensors: tuple[Tensor, ...] = (self, *lst)
    arguments: tuple[object, ...] = tensors
    for i, x in enumerate(arguments):
      if not isinstance(x, Tensor):
        fix = "give Tensors; a .grad is None before backward(), and where a tensor's requires_grad is not True"
        refuse(f"realize: argument {i} is {x!r}, of type {type(x).__name__}", fix, error=TypeError)
    given = {id(t): t for t in tensors}
    if asked := [t for t in given.values() if t.uop.op is not Ops.BUFFER or not t.follows]:
      if (mesh := ambient_mesh()) is not None:
        place_on(mesh, [t.uop for t in asked])
      program_order.own(asked)
      program_order.run(asked)
    if not do_update_stats:
      for k, v in counted:
        setattr(GlobalCounters, k, v)
    return self

  def numpy(self) -> Any:
    """The value as a numpy array of its own; bfloat16 and fp8 come as float32. The tensor itself stays a graph, so that
    it can still be differentiated.

    Examples:
      >>> Tensor([1, 2]).numpy()
      array([1, 2], dtype=int32)
    """
    if storage.only_stored(self.uop.device):
      return self.to(HOST_DEVICE).numpy()
    if (mesh := ambient_mesh()) is not None:
      place_on(mesh, [self.uop])
    x = self if self.dtype.fmt is not None else self.float()
    if 0 in x.shape:
      return numpy.empty(x.shape, to_numpy_dtype(x.dtype))
    check_outside(x.uop, "value", READ_OUTSIDE)  # before anything that waits is run
    u, computed = x.uop, memory_state(x.uop) is None
    (done,) = program_order.run([], [Tensor(u)])
    alone = computed and done.op is Ops.BUFFER and not program_order.views(done)
    return to_numpy_once(done) if alone else to_numpy(done)

  __array_priority__ = 1000  # numpy leaves `number * tensor` to the tensor, and its gradient with it

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    """What numpy's functions take of a tensor: `numpy()`. ValueError for copy=False."""
    if copy is False:
      raise ValueError("a tensor's values are copied for numpy\n  fix: numpy.from_dlpack(x) shares memory")
    array = self.numpy()
    return array if dtype is None else array.astype(dtype)

  def __dlpack_device__(self) -> tuple[int, int]:
    """(1, 0): the host's memory."""
    return 1, 0

  def __dlpack__(self, **kwargs: Any) -> Any:
    """The realised memory for another library, e.g. `torch.from_dlpack(x)`; no copy where the tensor has all of a
    buffer, and a write on either side is seen on both (one of ours after `Device[x.device].synchronize()`).

    Raises: TypeError for types that DLPack's users lack (bfloat16, fp8), ValueError for a tensor that the host cannot
    address or that lies on several devices.
    """
    if self.dtype.fmt is None:
      fix = f"x.bitcast(dtypes.uint{self.dtype.bitsize}), and back on the other side"
      mismatch("dlpack", f"{self.dtype} is no type of numpy", [self.uop], fix, TypeError)
    x = self.realize()
    u = x.uop if x.uop.op is Ops.BUFFER else x.contiguous().realize().uop
    if not isinstance(u.device, str) or not Device.capabilities(u.device).wraps:
      mismatch("dlpack", "shares the memory of one CPU device", [u], 'x.to("CPU")')
    return numpy.asarray(Held(buffer_of(u))).__dlpack__(**kwargs)

  @classmethod
  def from_dlpack(cls, x: Any, device: str | None = None) -> Self:
    """A tensor over the memory of a torch, numpy, … array of the host (any with `__dlpack__`): no copy if it is
    contiguous and may be written.
    Shape: `-> (*dims)`, as the array.

    Examples:
      >>> Tensor.from_dlpack(np.array([1.0, 2.0], np.float32)).tolist()
      [1.0, 2.0]
    """
    array = numpy.from_dlpack(x)
    where = Device.canonicalize(device or Device.DEFAULT)
    shared = _share(array, where) if array.flags.c_contiguous and array.flags.writeable else None
    return cls(array, device=where) if shared is None else cls._wrap(shared, True)

  @classmethod
  def from_blob(cls, ptr: int, shape: Sequence[int], dtype: DTypeArg = None, device: str | None = None) -> Self:
    """A tensor over the memory at the address `ptr` (row-major, float32 unless given), which must outlive it; what is
    assigned to the tensor is written there. ValueError where the device cannot use the host's memory.
    Shape: `-> (*shape)`.

    Examples:
      >>> a = np.array([1.0, 2.0], np.float32)
      >>> Tensor.from_blob(a.ctypes.data, (2,), device="CPU").tolist()
      [1.0, 2.0]
    """
    d = dtypes.default_float if dtype is None else to_dtype(dtype)
    nbytes = prod(shape) * d.itemsize
    array = numpy.frombuffer((ctypes.c_char * nbytes).from_address(ptr), to_numpy_dtype(d)).reshape(shape)
    where = Device.canonicalize(device or Device.DEFAULT)
    if (shared := _share(array, where)) is None:
      fix = 'device="CPU" and a pointer to the host\'s memory, a multiple of the element size'
      raise ValueError(f"from_blob: {where} cannot use {d.name}{list(shape)} at {ptr:#x} in place\n  fix: give {fix}")
    return cls._wrap(shared, True)

  @classmethod
  def from_url(cls, url: str, gunzip: bool = False, **kwargs: Any) -> Self:
    """The bytes behind a URL (uint8), unpacked if `gunzip`; downloaded once (`fetch`). Keywords: those of Tensor.
    Shape: `-> (n)`.

    Examples:
      >>> path = pathlib.Path("bytes")
      >>> path.write_bytes(b"abc")
      3
      >>> Tensor.from_url(path.resolve().as_uri()).tolist()
      [97, 98, 99]
    """
    return cls(fetch(url, gunzip=gunzip), **kwargs)

  def __reduce__(self) -> tuple[Any, ...]:
    """Pickled and deep-copied with its values, placement and gradient."""
    kind = self.dtype
    bits = self if kind.fmt is not None else self.bitcast(f"uint{kind.bitsize}")
    return _restore, (bits.numpy(), kind, self.device, self.requires_grad, self.grad)

  def data(self) -> memoryview:
    """The value as a memoryview with its format and shape. TypeError for types of which a memoryview has none.

    Examples:
      >>> Tensor([[1, 2]]).data().tolist()
      [[1, 2]]
    """
    if self.dtype.fmt is None:
      raise TypeError(f"data: {self.dtype} has no buffer format\n  fix: cast it, e.g. x.float().data(), or use numpy()")
    return memoryview(self.numpy())

  def item(self) -> float | int | bool:
    """The one element as a Python number. ValueError if there are several.

    Examples:
      >>> Tensor([[2.5]]).item()
      2.5
    """
    if self.numel() != 1:
      fix = "reduce or index it first, or use tolist()"
      raise ValueError(f"item: needs one element, the shape is {self.shape}\n  fix: {fix}")
    result: float | int | bool = self.tolist() if self.ndim == 0 else self.reshape(()).tolist()
    return result

  def tolist(self) -> Any:
    """The elements as (nested lists of) Python numbers.

    Examples:
      >>> Tensor([[1, 2], [3, 4]]).tolist()
      [[1, 2], [3, 4]]
    """
    return self.numpy().tolist()

  def __float__(self) -> float:
    """The one element: `item()` as a float. ValueError if there are several."""
    return float(self.item())

  def __int__(self) -> int:
    """The one element, truncated toward zero. ValueError if there are several."""
    return int(self.item())

  def __format__(self, spec: str) -> str:
    """`f"{loss:.4f}"` reads and formats the one element; without a format it is the tensor's `repr`."""
    return format(self.item(), spec) if spec else repr(self)

  def clone(self, device: DeviceArg = None) -> Self:
    """A copy in memory of its own, through which gradients flow to this tensor; it takes gradients if this one does,
    and a copy of `.grad` goes with it.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor([1.0]).realize()
      >>> y = x.clone()
      >>> x.assign([2.0]).tolist(), y.tolist()
      ([2.0], [1.0])
    """
    t = self._wrap(self.uop.clone())
    t = (t if device is None else t.to(device)).requires_grad_(self.requires_grad)
    t.grad = None if self.grad is None else self.grad.clone(device)
    return t

  # ---- assignment

  def replace(self, x: Tensor) -> Self:
    """This tensor now stands for x's value, whose type it takes; the shapes must agree. ValueError for another shape,
    TypeError for what is no tensor.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> x = Tensor([1.0])
      >>> x.replace(Tensor([2.0])).tolist()
      [2.0]
    """
    if not isinstance(x, Tensor):
      raise TypeError(f"replace: takes a tensor, not {type(x).__name__}\n  fix: Tensor(x), or x.assign")
    if x.shape != self.shape:
      mismatch("replace", "the shapes must be equal", (self.uop, x.uop), "reshape the new value")
    self.uop, self.follows = x.uop, x.follows
    program_order.reenter(self)
    return self

  def assign(self, x: Any) -> Self:
    """Writes x, broadcast to this shape, into this tensor's memory (or, if it has none yet, makes it stand for x).
    Returns the tensor.

    Memory is what `realize` or `empty` gives. Views of it (`reshape`, slices, … of a tensor that has memory) see the
    new value; what was computed from it before keeps the old one, and is realised before the memory is written
    (docs/assignment.md). The placement stays; x moves. Raises TypeError if the dtypes differ, ValueError if x does not
    broadcast.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> x = Tensor.zeros(2).contiguous().realize()
      >>> x.assign([1.0, 2.0]).tolist()
      [1.0, 2.0]
    """
    v = x if isinstance(x, Tensor) else self._wrap(_from_data(x, None, self.dtype))
    if v.dtype is not self.dtype:
      fix = f"cast the value: x.cast({self.dtype!r})"
      mismatch("assign", "the dtypes must be equal", (self.uop, v.uop), fix, TypeError)
    if broadcast_shape(v.shape, self.shape) != self.shape:
      mismatch("assign", "the value must broadcast to the target", (self.uop, v.uop), "reshape the value to the target")
    self._write(self.uop, v._expand_to(self.shape).uop)
    return self

  def _write(self, view: UOp, value: UOp) -> None:
    """Puts `value` into `view`, a view of this tensor's memory; without memory the tensor stands for `value`."""
    if value is view:
      return
    if storage.only_stored(view.device):
      storage.write(_without_detach(view), self._wrap(value).numpy())
      return
    state = memory_state(view, moved=True) if self.follows else None
    check_write(self, view, value, state)
    if state is None:
      note_written(self)
      here = self.uop.device
      if here is None or here == value.device:  # a node of its own: to realise it is not to realise x
        self.uop = UOp.build(Ops.RESHAPE, value.dtype, (value,), value.shape)
      else:
        self.uop = value.copy_to_device(here)
      program_order.reenter(self, assigned=True)
      return
    view = _without_detach(view)
    if any(u.op in GroupOp.View and u.op not in ONE_TO_ONE for u in view.toposort(lambda u: u is not state)):
      rule = "several elements of the target share memory"
      mismatch("assign", rule, (view, value), "assign to the tensor before expand or windows", ValueError)
    if memory_state(view) is None:  # elements had to move for the view: all of the memory is written
      views = [u for u in reversed(view.toposort(lambda u: u is not state)) if u.op in GroupOp.Movement]
      view, value = state, view_assigns.overlaid(views, value, state)
    # a copy from other devices lands in memory of its own before it is laid into a part
    after = state.after(view.assign(value.contiguous() if value.op is Ops.MOVE and view is not state else value))
    with uninterrupted():  # all views, or none
      for t in program_order.views(state):
        if t.follows and memory_state(t.uop, moved=True) is state:
          note_written(t)
          t.uop = substitute(t.uop, {state: after})
          program_order.reenter(t, assigned=True)

  # ---- differentiation

  @staticmethod
  def train(mode: bool = True) -> Context:
    """`with Tensor.train(): ...` — dropout drops and batch norm updates its statistics.

    A decorator as well: `@Tensor.train()`. Raises TypeError for a function, which is `@Tensor.train` without its call.

    Examples:
      >>> with Tensor.train():
      ...   y = Tensor.ones(1000).dropout(0.5)
      >>> y.max().item()
      2.0
    """
    if callable(mode):
      raise TypeError("Tensor.train takes a bool, got a function\n  fix: @Tensor.train()")
    return Context(TRAINING=int(mode))

  @staticmethod
  def test(mode: bool = True) -> Context:
    """`with Tensor.test(): ...` — the opposite of `train`.

    Examples:
      >>> with Tensor.test():
      ...   y = Tensor.ones(4).dropout(0.5)
      >>> y.tolist()
      [1.0, 1.0, 1.0, 1.0]
    """
    return Context(TRAINING=int(not mode))

  @staticmethod
  def no_grad() -> Context:
    """`with Tensor.no_grad(): ...` — no gradient flows through what is computed inside.

    Examples:
      >>> x = Tensor([1.0])
      >>> with Tensor.no_grad():
      ...   y = x * 2
      >>> y.requires_grad
    """
    return Context(NO_GRAD=1)

  def _seed_gradient(self, gradient: Tensor | None, name: str) -> UOp:
    if not dtypes.is_float(self.dtype):
      mismatch(name, "only floats have gradients", [self.uop], "cast to a float before computing the loss", TypeError)
    given: Any = gradient
    if given is not None and not isinstance(given, Tensor):
      rule = f"the gradient argument is a tensor, not {type(given).__name__}"
      mismatch(name, rule, [self.uop], f"give Tensor(gradient) of shape {self.shape}", TypeError)
    if gradient is None:
      if self.shape != ():
        fix = "reduce it first, e.g. loss.sum() or loss.mean()"
        mismatch(name, "without a gradient argument it needs a scalar", [self.uop], fix)
      return UOp.const(self.dtype, 1.0)
    if gradient.shape != self.shape:
      rule = "the gradient must have the tensor's shape"
      mismatch(name, rule, (self.uop, gradient.uop), "expand or reshape the gradient")
    return gradient.cast(self.dtype).uop

  def gradient(self, *targets: Tensor, gradient: Tensor | None = None) -> list[Self]:
    """The derivative of this scalar (or of the sum of it times `gradient`) by each target, at the target's placement.

    Zeros where it depends on a target only by what is constant almost everywhere: comparisons, signs, rounding.
    Raises ValueError if this is no scalar and no `gradient` is given, TypeError for targets and gradients that are no
    tensors, RuntimeError for a target it does not depend on, or only by what was written to memory, and for one with
    requires_grad that it depends on by way of a tensor that was realized, or by what it was before a write.
    Shape: `(..), (*target), … -> (*target), …`.

    Examples:
      >>> x = Tensor([1.0, 2.0])
      >>> (x**3).sum().gradient(x)[0].tolist()
      [3.0, 12.0]
    """
    if not_tensors := [t for t in targets if not isinstance(t, Tensor)]:
      rule = f"the targets are tensors, not {type(not_tensors[0]).__name__}"
      mismatch("gradient", rule, [self.uop], "give them one by one: loss.gradient(*parameters)", TypeError)
    seed, wanted = self._seed_gradient(gradient, "gradient"), [t.uop for t in targets]
    check_not_ended("gradient", self.uop, targets, wanted)
    found = compute_gradient(self.uop, seed, wanted)
    for i, t in enumerate(targets):
      if t.uop not in found:
        if not t.is_floating_point():
          fix = "cast it to a float, and compute the value from that"
          mismatch("gradient", f"target {i} is no float", (self.uop, t.uop), fix, RuntimeError)
        rule, fix = "", "compute the value from this very tensor, and realise it only after differentiating"
        if any(u.op is Ops.AFTER and t.uop in u.toposort() for u in self.uop.toposort()):
          rule = " but by what was written to memory (assign, x[..] = value), through which no gradient flows"
          fix = "write to a tensor without realize or empty, which is a value; or use cat, stack, where"
        mismatch("gradient", f"the value does not depend on target {i}{rule}", (self.uop, t.uop), fix, RuntimeError)
    return [self._wrap(found[t.uop]) for t in targets]

  def backward(self, gradient: Tensor | None = None) -> Self:
    """Adds the derivative of this scalar to `.grad` of the float tensors that it depends on, in its memory if it has
    some.

    Of those with requires_grad=True (an optimizer sets it on its parameters); if there are none, of all but those with
    False. Raises ValueError if this is no scalar and no `gradient` is given, RuntimeError if it depends on no such
    tensor, or on one with requires_grad=True by way of a tensor that was realized since, or by what that was before a
    write.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor([3.0])
      >>> loss = (x * x).sum().backward()
      >>> x.grad.tolist()
      [6.0]
    """
    seed = self._seed_gradient(gradient, "backward")
    live = [t for t in program_order.live() if t.is_param and t.is_floating_point()]
    graph = occurrences(self.uop.toposort(), [t.uop for t in live])
    reached = [t for t in live if t.uop in graph]
    chosen = [t for t in reached if t.requires_grad] or reached
    # a value that is memory because what it reads was written to is no leaf: nobody has realized it
    leaves = [t.uop for t in chosen if t.requires_grad and (t.follows or t.uop.op is not Ops.BUFFER)]
    check_not_ended("backward", self.uop, None, [u for leaf in leaves for u in graph[leaf]])
    found = compute_gradient(self.uop, seed, dedup(t.uop for t in chosen))
    if not any(t.uop in found and t.uop is not self.uop for t in chosen):
      fix = "call backward on the loss itself, before it is realised, and check requires_grad"
      mismatch("backward", "the tensor depends on no tensor that takes a gradient", [self.uop], fix, RuntimeError)
    for t in chosen:
      if (g := found.get(t.uop)) is not None:
        t._add_gradient(self._wrap(g))
    return self

  def _add_gradient(self, g: Tensor) -> None:
    """Into the memory of `.grad`, if it has some; either way as an assignment, which a captured step does each time."""
    if self.grad is not None and self.grad.follows:
      self.grad.assign(self.grad.add(g).cast(self.grad.dtype))
      return
    self.grad = g if self.grad is None else self.grad.add(g)
    program_order.reenter(self.grad, assigned=True)


def _from_data(data: Any, device: Placement | None, dtype: DType | None) -> UOp:
  """The node of a `Tensor(...)` argument. Numbers live anywhere unless a device is given; arrays go to it, or to the
  default one."""
  if isinstance(data, Tensor):
    data = data.uop if dtype is None else data.cast(dtype).uop
  if isinstance(data, UOp):
    u = data.cast(dtype or (dtypes.default_int if data.dtype is dtypes.index else data.dtype))
    return u if device is None or u.device == device else u.copy_to_device(device)
  if isinstance(data, (bool, int, float)):
    d = dtype or dtypes.from_py(data)
    check_holds(d, data)
    u = UOp.const(d, data, unique=True)
    return u if device is None else u.copy_to_device(device)
  if data is None:
    return UOp.buffer((0,), dtype or dtypes.default_float, Device.DEFAULT if device is None else device)
  if isinstance(data, pathlib.Path):
    u = storage.open_file(data, dtype or dtypes.uint8)
    return u if device is None else storage.read(u).copy_to_device(device)
  array = _to_array(data, None if getattr(data, "shape", None) == () else dtype)
  if array.ndim == 0:  # a number of numpy's, which holds what Python's does
    return _from_data(array.item(), device, dtype or from_numpy_dtype(array.dtype))
  return UOp.from_numpy(array).copy_to_device(Device.DEFAULT if device is None else device)


def _share(array: Any, device: str) -> UOp | None:
  """A buffer over an array's memory; None where the device cannot use it."""
  handle = Device[device].wrap(array)
  memory = Buffer(device, tuple(array.shape), from_numpy_dtype(array.dtype))
  return None if handle is None else UOp.buffer(memory.shape, memory.dtype, device, memory.allocate([handle], array))


def _restore(array: Any, dtype: DType, device: Placement, requires_grad: bool | None, grad: Tensor | None) -> Tensor:
  t = Tensor(array.view(to_numpy_dtype(dtype)), device=device, requires_grad=requires_grad)
  t.grad = grad
  return t


def _array_of_torch(tensor: Any) -> Any:
  """The values of a tensor of PyTorch as a numpy array, those of types that numpy lacks by their bits."""
  kind, values = _from_torch_dtype(tensor.dtype), tensor.detach().cpu()
  if kind.fmt is not None:
    return values.numpy()
  word = sys.modules["torch"].uint8 if kind.itemsize == 1 else sys.modules["torch"].int16
  return values.contiguous().view(word).numpy().view(to_numpy_dtype(kind))


def _to_array(data: Any, dtype: DType | None) -> Any:
  if isinstance(data, (bytes, bytearray, memoryview)):
    array = numpy.frombuffer(data, numpy.uint8).copy()
  elif isinstance(data, (list, tuple)):
    array = _array_of_list(data, dtype)
  elif hasattr(data, "__array__"):
    torch = sys.modules.get("torch")
    is_torch = torch is not None and isinstance(data, torch.Tensor)
    array = _array_of_torch(data) if is_torch else numpy.asarray(data)
    from_numpy_dtype(array.dtype)  # raises for what is not supported
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
  else:
    fix = "give numbers, nested lists, bytes, a path or an array"
    raise TypeError(f"cannot make a Tensor of {type(data).__name__}\n  fix: {fix}")
  return array if dtype is None else array.astype(to_numpy_dtype(dtype), copy=False)


def _array_of_ints(objects: Any, kind: DType) -> Any:
  """An array of Python's integers, which numpy would take for floats or objects."""
  for x in objects.flat:
    check_holds(kind, x)
  values = [as_const(int(x), kind) for x in objects.flat]
  return numpy.array(values, to_numpy_dtype(kind)).reshape(objects.shape)


def _array_of_list(data: Sequence[Any], dtype: DType | None) -> Any:
  if any(isinstance(x, Tensor) for x in data):
    fix = "join them with Tensor.stack(*tensors) or Tensor.cat(*tensors)"
    raise TypeError(f"a list of tensors is no data\n  fix: {fix}")
  try:
    wide = numpy.asarray(data)
  except ValueError as e:
    fix = "give every row the same number of elements"
    raise ValueError(f"the nested lists have different lengths: {data!r}\n  fix: {fix}") from e
  if wide.dtype.kind in "OSU" or (wide.dtype == float and (abs(wide) >= 2.0**63).any()):
    objects = numpy.asarray(data, dtype=object)
    if all(isinstance(x, (int, numpy.integer)) for x in objects.flat):  # beyond int64, not all of them beyond it
      return _array_of_ints(objects, dtype or dtypes.from_py(objects.tolist()))
  kind = dtype or dtypes.from_py(data if wide.dtype.kind in "OSU" else wide.tolist())  # numpy's numbers as Python's
  if wide.dtype == object:
    fix = "leave out what is none, and give a whole number that is so large as a float"
    raise TypeError(f"a list for a Tensor must hold numbers, got {data!r}\n  fix: {fix}")
  if dtypes.is_int(kind):
    whole = numpy.trunc(wide) if wide.dtype.kind == "f" else wide
    for bad in wide[~((whole >= dtypes.min(kind)) & (whole < int(dtypes.max(kind)) + 1))].tolist():
      if isinstance(bad, float) and not math.isfinite(bad):
        raise ValueError(f"{bad} is no {kind.name}\n  fix: a finite number, or a float type")
      check_holds(kind, bad)
  if dtypes.is_float(kind) or dtypes.is_bool(kind) or wide.dtype.kind == "f":
    with numpy.errstate(invalid="ignore", over="ignore"):  # as a cast on a device
      return wide.astype(to_numpy_dtype(kind))
  return wide.astype(numpy.uint64 if wide.dtype.kind == "u" else numpy.int64).astype(to_numpy_dtype(kind))


def _source(u: UOp) -> UOp:
  """What to copy from: host data itself rather than its pending copy to another device."""
  return u.src[0] if u.op is Ops.MOVE and u.src[0].op is Ops.BUFFER and u.src[0].device == HOST_DEVICE else u


def _shape_of_blocks(shapes: Sequence[tuple[int, ...]], placement: Placement) -> tuple[tuple[int, ...], Sequence[int]]:
  """(the shape that `shapes` are the blocks of, which of them each device holds). Raises ShardError."""
  if isinstance(placement, str):
    if len(shapes) != 1:
      refuse(f"from_shards: {placement} is one device, and {len(shapes)} parts are given", "parts[:1]  # give one")
    return shapes[0], [0]
  if placement.partial:
    refuse(f"from_shards: {show_placement(placement)}", "placement.reduced  # reduce the parts, and give this")
  if not shapes or any(len(s) != len(shapes[0]) for s in shapes):
    refuse(f"from_shards: the parts have shapes {list(shapes)}", "give parts of equal rank")
  n, rank = len(placement), len(shapes[0])
  check_fits(placement, (0,) * rank)
  where = [tuple(placement.block(i, d) for i in range(rank)) for d in range(n)]
  distinct = dedup(where)
  if len(shapes) not in (n, len(distinct)):
    count = f"{n} (one for each device)" + ("" if len(distinct) == n else f" or {len(distinct)} (one for each block)")
    rule = f"{show_placement(placement)} needs {count} parts, got {len(shapes)}"
    refuse(f"from_shards: {rule}", _joined(shapes, placement) or "give those")
  number = list(range(n)) if len(shapes) == n else [distinct.index(w) for w in where]
  # along each dim the blocks at block 0 of the others
  along = [{w[i]: shapes[k][i] for w, k in zip(where, number) if not any(w[:i] + w[i + 1 :])} for i in range(rank)]
  shape = tuple(sum(lengths.values()) for lengths in along)
  for d, k in enumerate(number):
    want = tuple(hi - lo for lo, hi in placement.box(d, shape))
    if shapes[k] != want:
      rule = f"on {show_placement(placement)} device {placement.devices[d]} holds {list(want)} of {list(shape)}"
      fix = "cut every dim into blocks of ceil(n / parts), the last ones shorter (Sharding.box)"
      refuse(f"from_shards: part {k} has shape {list(shapes[k])}, and {rule}", _joined(shapes, placement) or fix)
  return shape, number


def _joined(shapes: Sequence[tuple[int, ...]], placement: Sharding) -> str:
  """Code that makes a tensor of parts of any number and lengths along the one cut dim, and places that; "" if they fit
  along no such dim."""
  cut = [i for i, dim in enumerate(placement.dims) if dim]
  if len(cut) != 1 or len({s[: cut[0]] + s[cut[0] + 1 :] for s in shapes}) > 1:
    return ""
  return f"Tensor.cat(*map(Tensor, parts), dim={cut[0]}).shard(placement)"


def _without_detach(view: UOp) -> UOp:
  """A view as the target of a write."""
  if view.op is Ops.DETACH or view.op is Ops.CONSTRAIN:
    return _without_detach(view.src[0])
  return view.replace(src=(_without_detach(view.src[0]),)) if view.op in VIEWS else view
