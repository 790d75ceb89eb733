"""Matrix cores in CUDA C++: a function each, of the elements of D and the words of A and B that a lane has."""

from tinygrad.device.cores import Core
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
