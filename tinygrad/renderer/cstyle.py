"""Linear UOps to C: OpenCL C, CUDA C++ and Metal differ by a table of spellings (`Dialect`).

A kernel takes the buffers (or tables of peers' addresses) `p0`, `p1` by slot, then its variables `n0`, `n1` in the
order of their names, as 64-bit integers: what a user calls a variable is never a word of the source. In CUDA a variable
is a value, or where one lies in the device's memory: a graph of kernels is launched with other values, and no node of
it is changed.

Every value is scalar in the source: one of a vector dtype is an expression for each lane; memory is read and written
as vectors where lanes are neighbours, and aligned. bool is a byte in memory; float16, bfloat16 and fp8 are carried as
their bits, since arithmetic on them has been decomposed. Indices have 32 bits where all of a kernel's fit. A RANGE over
GLOBAL or LOCAL is no loop but the number of a work group, or of a thread within its group, along the next free
dimension of the grid.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import replace

from tinygrad.device import Launch, Rendered
from tinygrad.device.cores import Core
from tinygrad.dtype import DType, dtypes, to_numpy_dtype
from tinygrad.helpers import ceildiv, numpy, round_up
from tinygrad.ops import Trait, having
from tinygrad.renderer.dialects import Dialect
from tinygrad.renderer.mma import core_name
from tinygrad.renderer.scoped_names import ScopedNames
from tinygrad.renderer.streamed import LINE
from tinygrad.uop import CARDS, AxisKind, Ops, ParamArg, PieceArg, UOp
from tinygrad.uop.node import HALVES

BITS = {dtypes.float16: dtypes.uint16, dtypes.bfloat16: dtypes.uint16} | dict.fromkeys(dtypes.fp8s, dtypes.uint8)
_CONVERTED = {dtypes.float16: "half", dtypes.bfloat16: "bfloat16"}  # by functions of the prelude
_UNSIGNED = dict(zip(dtypes.sints, (dtypes.uint32, dtypes.uint32, dtypes.uint32, dtypes.uint64)))
_UNSIGNED_OF = {1: dtypes.uint8, 2: dtypes.uint16}
WRAPS = having(Trait.WRAPS)  # signed overflow is undefined in C: computed unsigned
_VECTOR_BYTES = 16  # the widest access to memory
GROUPS = AxisKind.GLOBAL, AxisKind.CLUSTER  # what groups of a grid are numbered by
THREADS = *GROUPS, AxisKind.LOCAL
UNROLLED = 16
WRITTEN_OUT = 1 << 13  # nodes of linear code, about twice the instructions
STATIC = 48 << 10  # bytes of local memory
TURN = "turn"  # the variable by which the numbers of work groups are turned
BOOLEAN = {Ops.ADD: "|", Ops.MUL: "&", Ops.MAX: "|", Ops.MIN: "&"}


def ctype(dtype: DType, d: Dialect, memory: bool = False) -> str:
  scalar = dtypes.uint8 if memory and dtypes.is_bool(dtype) else dtype.scalar()
  return d.types[BITS.get(scalar, d.index if scalar is dtypes.index else scalar)]


def literal(value: float, dtype: DType, d: Dialect) -> str:
  """A constant of a scalar dtype, exact."""
  dtype = d.index if dtype is dtypes.index else dtype
  if dtype in _CONVERTED:
    return str(int(numpy.array(value, to_numpy_dtype(dtype)).view("uint16")))
  if dtypes.is_bool(dtype):
    return "true" if value else "false"
  if dtypes.is_float(dtype):
    wide = dtype is dtypes.float64
    if not math.isfinite(value):
      form, name = ("<dQ", "double") if wide else ("<fI", "float")
      bits: int = struct.unpack(form[0] + form[2], struct.pack(form[:2], value))[0]
      return f"{name}_of_bits({bits}U{d.long if wide else ''})"
    text = f"{value:.17g}" if wide else f"{value:.9g}"
    return f"({text}{'' if any(c in text for c in '.e') else '.0'}{'' if wide else 'f'})"
  suffix = ("U" if dtypes.is_unsigned(dtype) else "") + (d.long if dtype.itemsize == 8 else "")
  if value == -(1 << 63):
    return f"(-{(1 << 63) - 1}{d.long} - 1)"
  return f"{int(value)}{suffix}" if value >= 0 else f"({int(value)}{suffix})"


class CRenderer:
  """Renders one kernel."""

  def __init__(self, linear: Sequence[UOp], name: str, dialect: Dialect) -> None:
    self.linear, self.name = linear, name
    self.d = replace(dialect, index=dtypes.int32) if all(map(fits_32_bits, linear)) else dialect
    self.names = ScopedNames[tuple[str, ...]]()
    self.vectors = ScopedNames[list[str]]()  # what an aligned INDEX of neighbours points at
    self.body, self.depth, self.count = list[str](), 1, 0
    self.params = [u for u in linear if u.op is Ops.PARAM]
    variables = [u for u in linear if u.op is Ops.VARIABLE and not isinstance(u.arg, PieceArg)]
    self.numbers: dict[UOp, str] = {u: f"n{i}" for i, u in enumerate(variables)}
    self.turned, self.short = turned_range(linear), short_loops(linear)
    self.later = self.eights = False  # whether something is copied while others compute, read by a warp together
    self.cores: dict[Core, str] = {}  # their functions
    places = [u.src[0] for u in linear if u.op is Ops.STORE and u.src[0].op is Ops.INDEX]
    # beside products of halves as well: what they sum of exponentials, each at most 1, loses no more than a rounding
    halves = any(u.op is Ops.MMA and u.arg.operand in HALVES for u in linear)
    self.narrow = halves or all(x.dtype.scalar() in HALVES for x in places if x.src[0].op is not Ops.SCRATCH)
    self.tiles = any(u.op is Ops.MMA and u.arg.late for u in linear)
    self.dims, self.shared = dict.fromkeys((dialect.group, dialect.thread), 0), 0

  def render(self) -> Rendered:
    for u in self.linear:
      self.one(u)
    d, params = self.d, self.params
    # a table may lead to what the kernel writes, and one thread reads what another has written
    written = {u.src[0].src[0] for u in self.linear if u.op is Ops.STORE and u.src[0].src}
    read = {u.src[0].src[0] for u in self.linear if u.op is Ops.LOAD and u.src[0].src}
    shared = {*params} if any(u.arg.peers for u in params) else written & read
    alone = {u: "" if u in shared else d.alone for u in params}
    kinds = [d.table if u.arg.peers else d.pointer.format(T=ctype(u.dtype, d, True)) + alone[u] for u in params]
    spelled = [d.parameter.format(T=T, name=f"p{u.arg.slot}", i=i) for i, (T, u) in enumerate(zip(kinds, params))]
    names, long = [*self.numbers.values()], ctype(dtypes.int64, d)
    if self.turned is not None:
      names.append(TURN)
    spelled += [d.variable.format(T=long, name=name, i=i) for i, name in enumerate(names, len(params))]
    given, local = self.group_memory()
    spelled += [d.arena] * bool(given and d.arena)
    clusters = any(u.op is Ops.RANGE and u.arg[1] is AxisKind.CLUSTER for u in self.linear)
    groups, threads = grid(self.linear, *GROUPS), grid(self.linear, AxisKind.LOCAL)
    cluster = d.cluster.format(shape=", ".join(map(str, grid(self.linear, *GROUPS, only=AxisKind.CLUSTER))))
    head = d.kernel.format(
      name=self.name, params=", ".join(spelled), threads=math.prod(threads), shape=threads, cluster=cluster * clusters
    )
    source = (
      "\n".join(
        [
          d.prelude
          + (d.copies if self.later else "")
          + (d.eights if self.eights else "")
          + d.neighbours * clusters
          + "".join(self.cores.values())
          + head
          + " {",
          *local,
          *self.body,
          "}",
        ]
      )
      + "\n"
    )
    stored = [u.src[0].src[0] for u in self.linear if u.op is Ops.STORE and u.src[0].op is Ops.INDEX]
    writes = 1 + max((u.arg.slot for u in stored if u.op is Ops.PARAM), default=0)
    turned = 0 if self.turned is None else int(self.turned.src[0].vmax)
    return Rendered(source, Launch(groups, threads, writes=writes, local=given, turned=turned))

  def group_memory(self) -> tuple[int, list[str]]:
    """(bytes of a group's memory that the launch gives, where it is said in the kernel)"""
    d, given = self.d, self.shared
    if not given:
      return 0, []
    if not d.arena and (given <= STATIC or not d.given):
      return 0, [f"  {d.shared} uint4 scratch[{ceildiv(given, 16)}];"]
    if d.arena:
      given = round_up(given, LINE)  # no two groups write to one
    return given, [d.given.format(n=given // 16)]

  # ---- text

  def fresh(self, prefix: str) -> str:
    self.count += 1
    return f"{prefix}{self.count}"

  def line(self, text: str) -> None:
    self.body.append("  " * self.depth + text)

  def lanes(self, u: UOp, count: int = 1) -> tuple[str, ...]:
    """One expression a lane."""
    xs = (literal(u.arg, u.dtype.scalar(), self.d),) * u.dtype.count if u.op is Ops.CONST else self.names[u]
    return xs * count if len(xs) == 1 else xs

  def declare(self, u: UOp, values: Sequence[str]) -> None:
    """A variable for each lane."""
    kind, first = ctype(u.dtype, self.d), self.fresh("v")
    names = tuple(first if len(values) == 1 else f"{first}_{i}" for i in range(len(values)))
    self.line(" ".join(f"{kind} {n} = {x};" for n, x in zip(names, values)))
    self.names[u] = names

  # ---- ops

  def one(self, u: UOp) -> None:
    match u.op:
      case Ops.PARAM:
        self.names[u] = (f"p{u.arg.slot}",)
      case Ops.VARIABLE:
        self.declare(u, [f"({ctype(dtypes.index, self.d)}){self.variable(u)}"])
      case Ops.SCRATCH if u.arg[0] < 0:  # a thread's own
        self.names[u] = (self.fresh("s"),)
        self.line(f"{ctype(u.dtype, self.d, True)} {self.names[u][0]}[{u.arg[2] // u.dtype.itemsize}];")
      case Ops.SCRATCH:
        assert u.arg[0] % u.dtype.itemsize == 0, u.arg
        self.names[u] = (self.fresh("s"),)
        pointer = self.pointer(u, ctype(u.dtype, self.d, True))
        self.line(f"{pointer} {self.names[u][0]} = ({pointer})scratch + {u.arg[0] // u.dtype.itemsize};")
        self.shared = max(self.shared, u.arg[0] + u.arg[2])
      case Ops.ENDRANGE:
        self.depth -= 1
        self.names.close()
        self.vectors.close()
        self.line("}")
      case Ops.ACC:
        self.names[u] = names = tuple(self.fresh("a") for _ in range(u.dtype.count))
        self.line(f"{ctype(u.dtype, self.d)} {', '.join(names)};")
      case Ops.PEER if u.src[0].op is Ops.SCRATCH:
        self.names[u] = (self.d.member.format(x=self.lanes(u.src[0])[0], n=self.lanes(u.src[1])[0]),)
      case Ops.PEER:
        kind, table = ctype(u.dtype, self.d, True), self.lanes(u.src[0])[0]
        form = self.d.peer.format(pointer=self.pointer(u, kind), table=table, T=kind, i="{i}")
        self.names[u] = tuple(form.format(i=i) for i in self.lanes(u.src[1]))
      case Ops.VECTORIZE | Ops.EXTRACT:
        xs = tuple(x for s in u.src for x in self.lanes(s))
        xs = tuple(xs[i] for i in u.arg) if u.op is Ops.EXTRACT else xs
        self.names[u] = xs if len(xs) == u.dtype.count else xs * u.dtype.count
      case Ops.FOLD:
        xs = self.lanes(u.src[0])
        while len(xs) > 1:  # pairwise
          pairs = [xs[i : i + 2] for i in range(0, len(xs), 2)]
          xs = tuple(self.expression(u.arg, u.dtype, u.dtype, p) if len(p) == 2 else p[0] for p in pairs)
        self.declare(u, xs)
      case op if op is not Ops.CONST:
        own = {Ops.RANGE: self.range, Ops.INDEX: self.index, Ops.LOAD: self.load, Ops.STORE: self.store}
        own |= {
          Ops.SHUFFLE: self.shuffle,
          Ops.MMA: self.product,
          Ops.COPY: self.copy,
          Ops.BARRIER: self.barrier,
          Ops.COMMIT: self.barrier,
        }
        own.get(op, self.alu)(u)

  def variable(self, u: UOp) -> str:
    """A variable's value: of which piece is done, the number of the work group."""
    piece = isinstance(u.arg, PieceArg)
    return self.d.group.format(d="x", i=0) if piece else self.d.value.format(name=self.numbers[u])

  def barrier(self, u: UOp) -> None:
    if isinstance(u.arg, int) and u.op is Ops.BARRIER:
      self.line(self.d.arrived.format(n=u.arg))
    if self.tiles and u.op is Ops.BARRIER:
      self.line(self.d.publish)
    others = {"memory": self.d.meeting, "cluster": self.d.together}
    self.line(self.d.commit if u.op is Ops.COMMIT else others.get(u.arg, self.d.barrier))

  def shuffle(self, u: UOp) -> None:
    self.declare(u, [self.d.shuffle.format(x=x, n=u.arg) for x in self.lanes(u.src[0])])

  def copy(self, u: UOp) -> None:
    """Memory to local memory, in its own time."""
    assert self.d.copies, u
    self.later = True
    to, at = u.src
    (target, *_), (source, *_) = self.names[to], self.names[at]
    exists = self.lanes(at.src[2])[0] if len(at.src) > 2 else "true"
    begun = f"copy_later<{to.dtype.count * to.dtype.itemsize}>(&{target}, &{source}, {exists});"
    self.line(f"if ({self.lanes(to.src[2])[0]}) {begun}" if len(to.src) > 2 else begun)

  def product(self, u: UOp) -> None:
    core: Core = u.arg
    assert self.d.core is not None, core
    self.cores[core] = self.d.core(core)
    self.declare(u, self.lanes(u.src[0]))
    words, whole = list[str](), u.src[0]
    for s in u.src[1:]:
      words += [f"&{x}" for x in self.names[s]] if s.op is Ops.INDEX else self.words(self.lanes(s), core.operand)
    if core.late and words:  # to nothing what there is is not added
      words.append(str(int(any(s.op is not Ops.CONST for s in whole.src))))
    self.line(f"{core_name(core)}({', '.join((*self.names[u], *words))});")

  def words(self, xs: Sequence[str], dtype: DType) -> list[str]:
    """Neighbours in words of 32 bits, the first in the lowest."""
    if dtypes.is_float(dtype) and dtype not in BITS:
      return [f"bits_of_float({x})" for x in xs]
    word, narrow = ctype(dtypes.uint32, self.d), ctype(_UNSIGNED_OF[dtype.itemsize], self.d)
    n = 4 // dtype.itemsize
    parts = [
      f"(({word})({narrow}){x}{f' << {8 * dtype.itemsize * (i % n)}' if i % n else ''})" for i, x in enumerate(xs)
    ]
    return [" | ".join(parts[i : i + n]) for i in range(0, len(xs), n)]

  def parts(self, name: str, n: int, dtype: DType) -> list[str]:
    """The elements of a vector of words."""
    per, kind = 4 // dtype.itemsize, ctype(dtype, self.d, True)
    return [f"({kind})({name}.{'xyzw'[i // per]} >> {8 * dtype.itemsize * (i % per)})" for i in range(n)]

  def range(self, u: UOp) -> None:
    kind, r, long = u.arg[1], self.fresh("r"), ctype(dtypes.index, self.d)
    self.names[u] = (r,)
    if kind in THREADS:
      form = self.d.thread if kind is AxisKind.LOCAL else self.d.group
      i = self.dims[form]
      self.dims[form] += 1
      number = form.format(d="xyz"[i], i=i)
      if u is self.turned:
        word = ctype(dtypes.uint32, self.d)
        number = (
          f"({word})({number} + {self.d.value.format(name=TURN)}) % {literal(u.src[0].vmax, dtypes.uint32, self.d)}"
        )
      self.line(f"{{ const {long} {r} = {number};")
    else:
      if u in self.short and self.d.unroll:
        self.line(self.d.unroll)
      self.line(f"for ({long} {r} = 0; {r} < {self.lanes(u.src[0])[0]}; {r}++) {{")
    self.depth += 1
    self.names.open()
    self.vectors.open()

  def vector(self, dtype: DType) -> str:
    """The type of several elements in memory: uchar4, longlong2; of more than four, that of as many words."""
    if dtype.count > 4:
      dtype = dtypes.uint32.vec(dtype.count * dtype.itemsize // 4)
    kind = ctype(dtype, self.d, True).replace("unsigned ", "u").replace("signed ", "").replace(" ", "")
    return f"{kind}{dtype.count}"

  def pointer(self, memory: UOp, kind: str) -> str:
    return (self.d.local if memory.op is Ops.SCRATCH else self.d.pointer).format(T=kind)

  def index(self, u: UOp) -> None:
    n, memory = u.dtype.count, u.src[0]
    pointers, offsets = self.lanes(memory, n), self.lanes(u.src[1])
    if len(offsets) == 1:  # neighbours
      offsets = tuple(f"{offsets[0]} + {i}" if i else offsets[0] for i in range(n))
      width = math.gcd(n, divisor(u.src[1]), _VECTOR_BYTES // u.dtype.scalar().itemsize)
      if width > 1 and len(set(pointers)) == 1:
        kind = self.pointer(memory, self.vector(u.dtype.scalar().vec(width)))
        self.vectors[u] = [f"*({kind})({pointers[0]} + {o})" for o in offsets[::width]]
    self.names[u] = tuple(f"{p}[{o}]" for p, o in zip(pointers, offsets))

  def access(self, u: UOp) -> tuple[Sequence[str], tuple[str, ...]]:
    """(the vectors that an INDEX points at if it is accessed so, the condition of each lane if there is one)."""
    masks = self.lanes(u.src[2], u.dtype.count) if len(u.src) > 2 else ()
    return self.vectors.get(u, ()) if len(set(masks)) <= 1 else (), masks

  def packed(self, dtype: DType, xs: Sequence[str]) -> str:
    if len(xs) > 4:
      dtype, xs = dtypes.uint32.vec(len(xs) * dtype.scalar().itemsize // 4), self.words(xs, dtype.scalar())
    kind = f"({ctype(dtype, self.d, True)})" if dtypes.is_bool(dtype) else ""
    return self.d.vector.format(T=self.vector(dtype.scalar().vec(len(xs))), xs=", ".join(kind + x for x in xs))

  def load(self, u: UOp) -> None:
    where = u.src[0]
    if where.op is Ops.ACC:
      self.declare(u, self.names[where])
      return
    if u.arg is not None:
      name = self.fresh("w")
      self.eights = True
      self.line(f"uint4 {name} = fragments_{u.arg}(&{self.names[where][0]});")
      self.names[u] = tuple(self.parts(name, u.dtype.count, u.dtype.scalar()))
      return
    values: Sequence[str] = self.names[where]
    vectors, masks = self.access(where)
    others = self.lanes(u.src[1] if len(u.src) > 1 else UOp.const(u.dtype.scalar(), 0), u.dtype.count)
    if vectors:
      n = len(values) // len(vectors)
      values = []
      for i, v in enumerate(vectors):
        name, kind = self.fresh("w"), self.vector(u.dtype.scalar().vec(n))
        guarded = f"{self.packed(u.dtype, others[i * n : (i + 1) * n])}; if ({masks[0]}) {name} = {v}" if masks else v
        self.line(f"{kind} {name} = {guarded};")
        values += [f"{name}.{c}" for c in "xyzw"[:n]] if n <= 4 else self.parts(name, n, u.dtype.scalar())
    if dtypes.is_bool(u.dtype):
      values = [f"({x} != 0)" for x in values]
    if masks and not vectors:
      values = [f"{m} ? {x} : {o}" for m, x, o in zip(masks, values, others)]
    self.declare(u, values)

  def store(self, u: UOp) -> None:
    where, value = u.src
    targets: Sequence[str] = self.names[where]
    vectors, masks = ((), ()) if where.op is Ops.ACC else self.access(where)
    xs: Sequence[str] = self.lanes(value, len(targets))
    if vectors:
      n = len(targets) // len(vectors)
      targets, xs = vectors, [self.packed(value.dtype, xs[i : i + n]) for i in range(0, len(xs), n)]
    for i, (t, x) in enumerate(zip(targets, xs)):
      self.line(f"if ({masks[i]}) {t} = {x};" if masks else f"{t} = {x};")

  def alu(self, u: UOp) -> None:
    if self.d.rounded and u.op is Ops.CAST and is_rounding(u):
      self.declare(u, [self.d.rounded.format(x) for x in self.lanes(u.src[0].src[0])])
      return
    columns = zip(*(self.lanes(s, u.dtype.count) for s in u.src))
    scalar, of = u.dtype.scalar(), u.src[-1 if u.op is Ops.WHERE else 0].dtype.scalar()
    self.declare(u, [self.expression(u.op, scalar, of, xs) for xs in columns])

  def expression(self, op: Ops, dtype: DType, of: DType, xs: Sequence[str]) -> str:
    """One lane of an op: as its card writes it, but for what C lacks."""
    d = self.d
    if self.narrow and dtype is dtypes.float32 and op in d.rough:
      return d.rough[op].format(*xs)
    match op:
      case Ops.CAST:
        return self.cast(xs[0], of, dtype)
      case Ops.BITCAST:
        return self.bitcast(xs[0], of, dtype)
      case Ops.RECIP:
        return f"({literal(1, dtype, d)} / {xs[0]})"
      case Ops.NOT:
        return f"{'!' if dtypes.is_bool(dtype) else '~'}{xs[0]}"
      case Ops.NEG if dtypes.is_int(dtype) and dtype is not dtypes.index:
        return f"({ctype(dtype, d)})(0 - {self.unsigned(xs[0], dtype)})"
      case Ops.NEG | Ops.MUL | Ops.FDIV | Ops.SUB if d.negated and (x := self.negated(op, dtype, xs)):
        return d.negated.format(x, T=ctype(dtype, d))
      case Ops.MAX | Ops.MIN if not dtypes.is_bool(dtype):
        (x, y), sign = xs, ">" if op is Ops.MAX else "<"
        if dtype is dtypes.float32 and d.extreme:
          return f"{d.extreme}_{op.name.lower()}({x}, {y})"
        first = f"({x} {sign} {y} || {x} != {x})" if dtypes.is_float(dtype) else f"{x} {sign} {y}"  # NaN if either is
        return f"({first} ? {x} : {y})"
      case Ops.IDIV | Ops.MOD:
        return f"({xs[0]} {'/' if op is Ops.IDIV else '%'} {xs[1]})"
    if dtypes.is_bool(of) and op in BOOLEAN:
      return f"({xs[0]} {BOOLEAN[op]} {xs[1]})"
    if op is Ops.SHR and dtype.itemsize == 1 and d.byte_shift and xs[1] != literal(0, dtype, d):
      return f"{d.byte_shift}({xs[0]}, {xs[1]})"
    form = CARDS[op].render
    assert form is not None, op
    if op in WRAPS and dtype in _UNSIGNED:
      second = xs[1] if op is Ops.SHL else self.unsigned(xs[1], dtype)
      return f"({ctype(dtype, d)}){form.format(self.unsigned(xs[0], dtype), second)}"
    return form.format(*xs)

  def negated(self, op: Ops, dtype: DType, xs: Sequence[str]) -> str:
    """The x of a float of which compilers make -x; none of anything else."""
    if not dtypes.is_float(dtype):
      return ""
    if op is Ops.NEG:
      return xs[0]
    one, given = literal(-1, dtype, self.d), literal(-0.0 if op is Ops.SUB else -1, dtype, self.d)
    x, y = xs[::-1] if op is Ops.SUB or (op is Ops.MUL and xs[0] == one) else xs
    return x if y == given and x != given else ""

  def unsigned(self, x: str, dtype: DType) -> str:
    return f"({ctype(_UNSIGNED[dtype], self.d)}){x}" if dtype in _UNSIGNED else x

  def cast(self, x: str, a: DType, b: DType) -> str:
    """Float to a narrow integer goes through 32 bits, so that it wraps; to bool is `!= 0`."""
    if a is b:
      return x
    if a in _CONVERTED:
      return self.cast(f"float_of_{_CONVERTED[a]}({x})", dtypes.float32, b)
    if b in _CONVERTED:
      return f"{_CONVERTED[b]}_of_float({self.cast(x, a, dtypes.float32)})"
    if dtypes.is_bool(b):
      return f"({x} != 0)"
    if dtypes.is_float(a) and dtypes.is_int(b) and b.itemsize < 8:
      x = f"({ctype(dtypes.int64 if b is dtypes.uint32 else dtypes.int32, self.d)}){x}"
    return f"({ctype(b, self.d)}){x}"

  def bitcast(self, x: str, a: DType, b: DType) -> str:
    """Between types of one size: floats are converted to and from the unsigned type of their size."""
    a, b = BITS.get(a, a), BITS.get(b, b)
    if dtypes.is_float(a):
      x = f"bits_of_{ctype(a, self.d)}({x})"
    if dtypes.is_float(b):
      return x[len(f"bits_of_{ctype(b, self.d)}") :] if a is b else f"{ctype(b, self.d)}_of_bits({x})"
    return f"({ctype(b, self.d)}){x}"


def is_rounding(u: UOp) -> bool:
  """Whether a CAST is of float32 to bfloat16 and back."""
  kinds = [x.dtype.scalar() for x in (u, *u.src, *u.src[0].src)]
  return u.src[0].op is Ops.CAST and kinds == [dtypes.float32, dtypes.bfloat16, dtypes.float32]


def fits_32_bits(u: UOp) -> bool:
  """Whether an index is known to fit 32 bits, with the lanes beside it."""
  if u.dtype.scalar() is not dtypes.index or u.op is Ops.VECTORIZE:
    return True
  return u.dtype.count == 1 and -(1 << 31) <= u.vmin and u.vmax < (1 << 31) - 16


def divisor(u: UOp) -> int:
  """What divides an index whatever its ranges are; 0 if it is 0."""
  match u.op:
    case Ops.CONST:
      return abs(int(u.arg))
    case Ops.ADD | Ops.SUB:
      return math.gcd(*map(divisor, u.src))
    case Ops.MUL:
      return math.prod(map(divisor, u.src))
  return 1


def short_loops(linear: Sequence[UOp]) -> set[UOp]:
  """The loops of at most UNROLLED steps, a constant number, that have no loop within: their code is written out, so
  that what one step loads is under way while others compute. (The 16 steps of a matmul take 103 registers, not 94.)
  Code of more than WRITTEN_OUT nodes would be read from memory rather than from a cache of instructions."""
  found, outer = set[UOp](), list[tuple[UOp, int]]()
  for i, u in enumerate(linear):
    if u.op is Ops.RANGE:
      found -= {r for r, _ in outer}
      outer.append((u, i))
      if u.arg[1] not in THREADS and u.src[0].op is Ops.CONST and u.src[0].arg <= UNROLLED:
        found.add(u)
    elif u.op is Ops.ENDRANGE:
      r, begin = outer.pop()
      if r in found and r.src[0].arg * (i - begin) > WRITTEN_OUT:
        found.remove(r)
  return found


def turned_range(linear: Sequence[UOp]) -> UOp | None:
  """The RANGE over work groups that says whose memory is read, if there is one: every device is to begin with its own
  part, and not all of them with the first one's."""
  seen: set[UOp] = set()
  waiting = [u.src[1] for u in linear if u.op is Ops.PEER]
  while waiting:
    if (u := waiting.pop()) not in seen:
      seen.add(u)
      waiting += u.src
  return next((u for u in linear if u in seen and u.op is Ops.RANGE and u.arg[1] is AxisKind.GLOBAL), None)


def grid(linear: Sequence[UOp], *kinds: AxisKind, only: AxisKind | None = None) -> tuple[int, int, int]:
  """The grid's extent in three dimensions, by the greatest lengths of the RANGEs of these kinds; 1 where there is none,
  or where it is not one of the `only` kind that counts."""
  loops = [u for u in linear if u.op is Ops.RANGE and u.arg[1] in kinds]
  pieces = [u.arg.max_val + 1 for u in linear if isinstance(u.arg, PieceArg) and AxisKind.GLOBAL in kinds]
  sizes = pieces + [int(u.src[0].vmax) if only in (None, u.arg[1]) else 1 for u in loops]
  assert len(sizes) <= 3, sizes
  x, y, z = (*sizes, 1, 1, 1)[:3]
  return x, y, z


def render(linear: Sequence[UOp], name: str, dialect: Dialect) -> Rendered:
  """C source of a kernel from its linear UOps, and the grid that it is launched on."""
  return CRenderer(linear, name, dialect).render()


def probe(size: int) -> list[UOp]:
  """The linear UOps of a kernel of one work group, `p0[i] = p1[i] / 2 + 3` in float32: what shows whether a driver
  works."""
  end, half, three = (
    UOp.const(dtypes.index, size),
    UOp.const(dtypes.float32, 0.5),
    UOp.const(dtypes.float32, 3.0),
  )
  i = UOp.new(Ops.RANGE, dtypes.index, (end,), (0, AxisKind.LOCAL))
  out, given = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, size)) for slot in (0, 1))
  to, at = (UOp.new(Ops.INDEX, dtypes.float32, (memory, i)) for memory in (out, given))
  x = UOp.new(Ops.LOAD, dtypes.float32, (at,))
  scaled = UOp.new(Ops.MUL, dtypes.float32, (x, half))
  y = UOp.new(Ops.ADD, dtypes.float32, (scaled, three))
  store = UOp.new(Ops.STORE, dtypes.void, (to, y))
  return [out, given, end, half, three, i, to, at, x, scaled, y, store, UOp.new(Ops.ENDRANGE, dtypes.void, (i,))]
