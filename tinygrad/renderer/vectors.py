"""C whose values of a vector dtype are vectors of the language, as OpenCL C has them: for processors, where a kernel is
loops over vectors and each work group, of one thread, has a piece of it.

A bool of several lanes is -1 or 0 in each, of the size of what was compared. What there is no vector for (a length that
is no power of two, a function of a narrow float, a gather) is computed lane by lane, as in `cstyle`."""

from collections.abc import Sequence
from dataclasses import replace

from tinygrad.device import Rendered
from tinygrad.dtype import DType, dtypes
from tinygrad.ops.elementwise import MIRROR
from tinygrad.renderer.cstyle import BITS, BOOLEAN, WRAPS, CRenderer, ctype, literal
from tinygrad.renderer.dialects import OPENCL
from tinygrad.renderer.scoped_names import ScopedNames
from tinygrad.uop import CARDS, GroupOp, Ops, UOp

OPENCL_LOOPS = replace(
  OPENCL,
  local="__global {T}*",
  negated="",  # a group has one thread
  arena="__global uint4* arena",
  given="  __global uint4* scratch = arena + get_group_id(0) * {n};",
)
_LENGTHS = 2, 4, 8, 16
_MASKS = {dtype.itemsize: dtype for dtype in dtypes.sints}
_UNSIGNED = dict(zip(dtypes.sints, dtypes.uints, strict=True))
_OF_BOOLS = BOOLEAN | {Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.CMPNE: "^"}


class VectorRenderer(CRenderer):
  """Renders one kernel."""

  def __init__(self, linear: Sequence[UOp], name: str) -> None:
    super().__init__(linear, name, OPENCL_LOOPS)
    self.vector_names = ScopedNames[tuple[str, int]]()  # and the bytes of a lane, of a bool
    self.runs = ScopedNames[str]()  # where neighbours begin
    self.count_lanes = 1  # of what is being rendered

  def one(self, u: UOp) -> None:
    n, dtype = u.dtype.count, u.dtype.scalar()
    self.count_lanes = u.src[0].dtype.count if u.op is Ops.STORE else n
    alone = n in _LENGTHS and not dtypes.is_bool(dtype)
    if u.op is Ops.ENDRANGE:
      self.vector_names.close()
      self.runs.close()
    if u.op is Ops.ACC and alone:
      self.line(f"{self.kind(dtype)} {(name := self.fresh('a'))};")
      self.called(u, name)
    elif (u.op is Ops.VECTORIZE or u.op is Ops.EXTRACT) and alone:
      xs = tuple(x for s in u.src for x in self.lanes(s))
      xs = tuple(xs[i] for i in u.arg) if u.op is Ops.EXTRACT else xs
      self.vector_of(u, self.together(dtype, xs))
    else:
      super().one(u)
    if u.op is Ops.RANGE:
      self.vector_names.open()
      self.runs.open()

  # ---- vectors

  def kind(self, dtype: DType) -> str:
    return f"{ctype(dtype, self.d)}{self.count_lanes}"

  def size(self, dtype: DType) -> int:
    """Bytes of a lane."""
    return self.d.index.itemsize if dtype is dtypes.index else dtype.itemsize

  def mask(self, size: int) -> str:
    return self.kind(_MASKS[size])

  def called(self, u: UOp, name: str, size: int = 0) -> None:
    self.vector_names[u] = name, size
    lane = "({}.s{:x} != 0)" if size else "{}.s{:x}"
    self.names[u] = tuple(lane.format(name, i) for i in range(u.dtype.count))

  def vector_of(self, u: UOp, text: str, size: int = 0) -> None:
    """A variable. `size`: bytes of a lane, of a bool."""
    kind = self.mask(size) if size else self.kind(u.dtype.scalar())
    self.line(f"{kind} {(name := self.fresh('v'))} = {text};")
    self.called(u, name, size)

  def together(self, dtype: DType, xs: Sequence[str]) -> str:
    """A vector of these lanes; of one, all are that."""
    return f"({self.kind(dtype)})({', '.join(xs if len({*xs}) > 1 else xs[:1])})"

  def whole(self, u: UOp, size: int = 0) -> str:
    """A value as a vector; a bool with lanes of `size` bytes."""
    dtype = u.dtype.scalar()
    name, has = self.vector_names.get(u, ("", 0))
    if not dtypes.is_bool(dtype):
      return name or self.together(dtype, self.lanes(u))
    if not name:
      return self.together(_MASKS[size], [f"-{x}" for x in self.lanes(u)])
    return name if has == size else f"convert_{self.mask(size)}({name})"

  # ---- memory

  def index(self, u: UOp) -> None:
    super().index(u)
    pointers, offsets = {*self.lanes(u.src[0], u.dtype.count)}, self.lanes(u.src[1])
    if len(offsets) == len(pointers) == 1:
      self.runs[u] = f"{pointers.pop()} + {offsets[0]}"

  def run_of(self, where: UOp) -> tuple[str | None, str]:
    """(where the neighbours begin that are read or written together, the condition on which), if they are."""
    n, dtype = where.dtype.count, where.dtype.scalar()
    masks = {*self.lanes(where.src[2], n)} if len(where.src) > 2 else {""}
    together = n in _LENGTHS and not dtypes.is_bool(dtype) and where in self.runs and len(masks) == 1
    return (self.runs[where], masks.pop()) if together else (None, "")

  def load(self, u: UOp) -> None:
    where = u.src[0]
    if where in self.vector_names:
      return self.vector_of(u, self.vector_names[where][0])
    run, mask = self.run_of(where) if where.op is Ops.INDEX else (None, "")
    if run is None:
      return super().load(u)
    text = f"vload{u.dtype.count}(0, {run})"
    self.vector_of(u, text if not mask else self.whole(u.src[1] if len(u.src) > 1 else UOp.const(u.dtype.scalar(), 0)))
    if mask:
      self.line(f"if ({mask}) {self.vector_names[u][0]} = {text};")

  def store(self, u: UOp) -> None:
    where, value = u.src
    if where in self.vector_names:
      return self.line(f"{self.vector_names[where][0]} = {self.whole(value)};")
    run, mask = self.run_of(where) if where.op is Ops.INDEX else (None, "")
    if run is None:
      return super().store(u)
    text = f"vstore{where.dtype.count}({self.whole(value)}, 0, {run});"
    self.line(f"if ({mask}) {text}" if mask else text)

  # ---- operations

  def alu(self, u: UOp) -> None:
    of = u.src[-1 if u.op is Ops.WHERE else 0].dtype.scalar()
    if u.dtype.count not in _LENGTHS:
      return super().alu(u)
    if dtypes.is_bool(u.dtype):
      text, size = self.condition(u, of)
    else:
      text, size = self.operation(u.op, u.dtype.scalar(), of, u.src), 0
    self.vector_of(u, text, size) if text else super().alu(u)

  def condition(self, u: UOp, of: DType) -> tuple[str, int]:
    """A bool, and the bytes of its lanes; "" if it is computed lane by lane."""
    if u.op in GroupOp.Comparison and of not in BITS and not dtypes.is_bool(of):
      return str(CARDS[u.op].render).format(*map(self.whole, u.src)), self.size(of)
    sizes = [self.vector_names[s][1] for s in u.src if s in self.vector_names]
    if not dtypes.is_bool(of) or not sizes or not (u.op in _OF_BOOLS or u.op is Ops.NOT):
      return "", 0
    xs = [self.whole(s, max(sizes)) for s in u.src]
    return f"~{xs[0]}" if u.op is Ops.NOT else f"{xs[0]} {_OF_BOOLS[u.op]} {xs[1]}", max(sizes)

  def operation(self, op: Ops, dtype: DType, of: DType, src: Sequence[UOp]) -> str:
    if op is Ops.WHERE:
      return f"{self.whole(src[0], self.size(dtype))} ? {self.whole(src[1])} : {self.whole(src[2])}"
    if op is Ops.BITCAST:
      return f"as_{self.kind(dtype)}({self.whole(src[0])})"
    if dtype in BITS or of in BITS:
      return ""
    if op is Ops.CAST:
      return self.converted(src[0], of, dtype)
    xs = [*map(self.whole, src)]
    if op is Ops.RECIP:
      return f"{literal(1, dtype, self.d)} / {xs[0]}"
    if op is Ops.NOT:
      return f"~{xs[0]}"
    if op in MIRROR:
      x, y = xs
      more = f"{x} {'>' if op is Ops.MAX else '<'} {y}"
      return f"{f'({more}) | ({x} != {x})' if dtypes.is_float(dtype) else more} ? {x} : {y}"  # NaN if either is
    if op is Ops.NEG and dtype in _UNSIGNED:
      op, xs = Ops.SUB, [self.together(dtype, ["0"]), *xs]
    form = {Ops.IDIV: "{0} / {1}", Ops.MOD: "{0} % {1}"}.get(op) or str(CARDS[op].render)
    if op in WRAPS and dtype in _UNSIGNED:
      unsigned = self.kind(_UNSIGNED[dtype])
      return f"as_{self.kind(dtype)}({form.format(*(f'as_{unsigned}({x})' for x in xs))})"
    return form.format(*xs)

  def converted(self, x: UOp, a: DType, b: DType) -> str:
    """As `CRenderer.cast`."""
    if dtypes.is_bool(a):
      size = self.vector_names[x][1] if x in self.vector_names else 1
      return f"convert_{self.kind(b)}(-{self.whole(x, size)})"
    text = self.whole(x)
    if dtypes.is_float(a) and dtypes.is_int(b) and b.itemsize < 8:
      text = f"convert_{self.kind(dtypes.int64 if b is dtypes.uint32 else dtypes.int32)}({text})"
    return f"convert_{self.kind(b)}({text})"


def render(linear: Sequence[UOp], name: str) -> Rendered:
  """C source of a kernel of loops over vectors, in one piece or in as many as there are work groups."""
  return VectorRenderer(linear, name).render()
