"""Matrix cores in CUDA C++: a function each, of the elements of D and the words of A and B that a lane has."""

from tinygrad.device.cores import WIDTH, Core, SwizzledTile
from tinygrad.dtype import dtypes

_TYPES = {dtypes.bfloat16: "bf16", dtypes.float16: "f16", dtypes.float32: "tf32"}


def core_name(core: Core) -> str:
  return f"mma_{core.name.replace('.', '_')}"


COPY = """template <int N> static __device__ inline void copy_later(void* to, const void* from, bool some) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  int length = some ? N : 0;  // of nothing are zeros
  if (N == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(length) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(at), "l"(from), "n"(N), "r"(length) : "memory");
}
"""  # PTX ISA, "cp.async"
EIGHTS = "".join(
  f"""static __device__ inline uint4 fragments_{name}(const void* row) {{
  uint4 x; unsigned at = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
    : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
  return x;
}}
"""
  for name, kind in (("eights", ""), ("turned", ".trans"))
)  # PTX ISA, "Warp-level matrix load instruction: ldmatrix"
# what threads have stored, what reads memory by matrix descriptors is to see (PTX ISA, "Async proxy")
PUBLISH = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'

# what another group of the cluster has where this one has x, by its rank there (PTX ISA, "mapa")
NEIGHBOURS = """template <typename T> static __device__ inline T* of_group(T* x, unsigned rank) {
  T* y; asm("mapa.u64 %0, %1, %2;" : "=l"(y) : "l"(x), "r"(rank)); return y;
}
"""
# arrives with .release and waits with .acquire, as by default (PTX ISA, "barrier.cluster")
TOGETHER = 'asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");'


def wgmma(core: Core) -> str:
  """PTX's instructions for a core whose operands lie in a group's memory, or A in registers: steps of 16 along k. What
  says where, the matrix descriptor, counts 16 bytes as one. The function of the results alone waits for them."""
  kind, n, lines, steps = _TYPES[core.operand], core.d.length, list[str](), core.k // 16
  d = [f"d{i}" for i in range(n)]
  held = ", ".join(f'"+f"({x})' for x in d)
  tiles = {name: x for name, x in (("a", core.a), ("b", core.b)) if isinstance(x, SwizzledTile)}
  words = [] if "a" in tiles else [f"a{i}" for i in range(core.a.length // core.word)]
  of_a, each = [f'"r"({x})' for x in words], len(words) // steps
  for name, tile in tiles.items():
    blocks, rows = 1 if tile.along_k else core.k * 8, 64  # from WIDTH columns to the next, from eight rows to the next
    begin = f"(unsigned)__cvta_generic_to_shared({name}) >> 4"
    lines.append(
      f"unsigned {name}_at = {begin} | {blocks} << 16; unsigned long long {name}_is = {rows}ull << 32 | 1ull << 62;"
    )
  lines.append(f'asm volatile("wgmma.fence.sync.aligned;" : {held} : {", ".join(of_a)} : "memory");')
  shape, across = f"m{core.m}n{core.n}k16", ", ".join(str(int(not x.along_k)) for x in tiles.values())
  groups = [f"{{{', '.join(f'%{i}' for i in some)}}}" for some in (range(n), range(n, n + each))]
  places = [groups[0], *groups[1 : 1 + bool(words)], *(f"%{n + each + i}" for i in range(len(tiles)))]
  code = f"wgmma.mma_async.sync.aligned.{shape}.f32.{kind}.{kind} {', '.join(places)}, p, 1, 1, {across};"
  for i in range(steps):
    more = 1 if i else f"%{n + each + len(tiles)}"
    ins = of_a[i * each : (i + 1) * each] + [
      f'"l"({x}_is | {x}_at + {i * (2 if tile.along_k else 2 * WIDTH)})' for x, tile in tiles.items()
    ]
    ins += ['"r"(more)'] * (not i)
    lines.append(f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, {more}, 0; {code} }}" : {held} : {", ".join(ins)});')
  lines += [
    f'asm volatile("wgmma.{x}.sync.aligned{y};" ::: "memory");' for x, y in (("commit_group", ""), ("wait_group", " 1"))
  ]
  come = f'  asm volatile("wgmma.wait_group.sync.aligned 0;" : {held} :: "memory");\n'
  parameters, given = ", ".join(f"float& {x}" for x in d), [f"unsigned {x}" for x in words]
  operands = ", ".join([*given, *(f"const void* {x}" for x in tiles), "int more"])
  body, name = "".join(f"  {line}\n" for line in lines), f"static __device__ inline void {core_name(core)}"
  return f"{name}({parameters}, {operands}) {{\n{body}}}\n{name}({parameters}) {{\n{come}}}\n"


def function_of(core: Core) -> str:
  return wgmma(core) if core.late else mma_sync(core)


def mma_sync(core: Core) -> str:
  """PTX's instruction for a core. A float32 is rounded to what the core takes of it."""
  kind, wide = _TYPES[core.operand], core.operand is dtypes.float32
  lengths = core.d.length, core.a.length // core.word, core.b.length // core.word
  d, a, b = ([f"{x}{i}" for i in range(n)] for x, n in zip("dab", lengths))
  parameters = ", ".join([f"float& {x}" for x in d] + [f"unsigned {x}" for x in a + b])
  numbers = iter(range(sum(lengths)))
  groups = ["{" + ", ".join(f"%{next(numbers)}" for _ in range(n)) + "}" for n in lengths]
  code = (
    f"mma.sync.aligned.m{core.m}n{core.n}k{core.k}.row.col.f32.{kind}.{kind}.f32 {', '.join((*groups, groups[0]))};"
  )
  rounded = [f'asm("cvt.rna.tf32.f32 %0, %1;" : "=r"({x}) : "f"(__uint_as_float({x})));' for x in a + b if wide]
  outs, ins = (", ".join(f'"{how}"({x})' for x in xs) for how, xs in (("+f", d), ("r", a + b)))
  lines = (*rounded, f'asm volatile("{code}" : {outs} : {ins});')
  body = "".join(f"  {line}\n" for line in lines)
  return f"static __device__ inline void {core_name(core)}({parameters}) {{\n{body}}}\n"
