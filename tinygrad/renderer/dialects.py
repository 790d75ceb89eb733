"""The languages of the C family, each a table of spellings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tinygrad.device.cores import Core
from tinygrad.dtype import DType, dtypes
from tinygrad.renderer.mma import COPY, EIGHTS, NEIGHBOURS, PUBLISH, TOGETHER, function_of
from tinygrad.uop import Ops


@dataclass(frozen=True, slots=True)
class Dialect:
  """How one language of the family spells what they do not share."""

  types: dict[DType, str]
  prelude: str  # bits_of_float, float_of_bits (double too), float_of_half, half_of_float (whatever else it converts)
  kernel: str  # of {name}, {params}, {threads}, the threads of a work group, and {cluster}, of the groups of one
  pointer: str  # to {T} in device memory
  table: str  # parameter: the addresses of every device's buffer
  shared: str  # storage class of local memory
  local: str  # pointer to {T} there
  barrier: str  # of a group's threads, after which they know what is in its local memory
  meeting: str  # and in the device's
  group: str  # number of the work group along dimension {d} ("x", "y", "z"), or {i}
  thread: str
  vector: str  # of {T}, the type, and {xs}
  peer: str = "(({pointer}){table}[{i}])"  # entry {i} of {table}, a {pointer} to {T}
  variable: str = "const {T} {name}"
  value: str = "{name}"  # of a variable
  alone: str = ""  # behind the type of a pointer: nothing else leads to what is written there
  unroll: str = ""  # before a short loop
  parameter: str = "{T} {name}"  # {i}: its position
  long: str = "L"  # suffix of a 64-bit literal
  index: DType = dtypes.int64
  given: str = ""  # local memory of more than STATIC bytes, which the launch gives; of {n} words of 16 bytes
  arena: str = ""  # the last parameter, a buffer in which each group has its local memory, whatever it needs
  copies: str = ""  # the function by which memory is copied to local memory while others compute
  extreme: str = ""  # functions begin so, followed by _max and _min, of two floats of which either may be NaN
  rough: Mapping[Ops, str] = field(default_factory=dict)  # of float32, within what is lost where halves are stored
  eights: str = ""  # the functions by which a warp reads fragments of local memory
  commit: str = ""  # of copies that have been begun, these are a group
  arrived: str = ""  # waits until no more than {n} groups are under way
  member: str = ""  # local memory {x} of group {n} of the cluster
  together: str = ""  # a barrier of all threads of a cluster, after which they know what is in its local memory
  cluster: str = ""  # of {shape}, how many groups it has along each dimension
  neighbours: str = ""  # the function by which a group finds what another has
  shuffle: str = ""  # {x} of the thread whose number is this one's exclusive or {n}
  byte_shift: str = ""  # the function that shifts a byte to the right, where the operator does not do
  rounded: str = ""  # float32 {0} as a float32 that is a bfloat16
  negated: str = ""  # of a float {0} of type {T}, where the operator does not do
  publish: str = ""  # before a barrier behind which cores read a group's memory
  core: Callable[[Core], str] | None = None  # a function of the elements of D and the words of A and B: D += A·B


_NAMES = {
  dtypes.bool: "bool", dtypes.int8: "char", dtypes.uint8: "uchar", dtypes.int16: "short", dtypes.uint16: "ushort",
  dtypes.int32: "int", dtypes.uint32: "uint", dtypes.int64: "long", dtypes.uint64: "ulong",
  dtypes.float32: "float", dtypes.float64: "double",
}  # fmt: skip

OPENCL = Dialect(
  types=_NAMES,
  prelude="""#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define bits_of_double(x) as_ulong(x)
#define double_of_bits(x) as_double(x)
#endif
#define bits_of_float(x) as_uint(x)
#define float_of_bits(x) as_float(x)
// by way of bytes, which may alias a half
static inline float float_of_half(ushort x) {
  uchar b[2] __attribute__((aligned(2))) = {x & 255, x >> 8};
  return vload_half(0, (const half*)b);
}
static inline ushort half_of_float(float x) {
  uchar b[2] __attribute__((aligned(2))); vstore_half_rte(x, 0, (half*)b); return b[0] | b[1] << 8;
}
""",
  kernel="__kernel __attribute__((reqd_work_group_size{shape})) void {name}({params})",
  pointer="__global {T}*", table="__global const ulong*", shared="__local", local="__local {T}*",
  # Intel's optimiser (release 2026.2) takes -x of one work item for that of all, where a barrier lies between it
  # and its use; it makes -x of copysign(x, -x), x ^ sign, x * -1 and -0 - x, too
  negated="fma({0}, ({T})-1, ({T})-0.0)",
  barrier="barrier(CLK_LOCAL_MEM_FENCE);",
  meeting="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
  group="get_group_id({i})", thread="get_local_id({i})", vector="({T})({xs})",
  alone=" restrict",
)  # fmt: skip

_CUDA_NAMES = _NAMES | {
  dtypes.int8: "signed char", dtypes.uint8: "unsigned char", dtypes.uint16: "unsigned short",
  dtypes.uint32: "unsigned int", dtypes.int64: "long long", dtypes.uint64: "unsigned long long",
}  # fmt: skip
CUDA = Dialect(
  types=_CUDA_NAMES,
  prelude="""#define bits_of_float(x) __float_as_uint(x)
#define float_of_bits(x) __uint_as_float(x)
#define bits_of_double(x) ((unsigned long long)__double_as_longlong(x))
#define double_of_bits(x) __longlong_as_double((long long)(x))
static __device__ inline float float_of_half(unsigned short x) {
  float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y;
}
static __device__ inline unsigned short half_of_float(float x) {
  unsigned short y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y;
}
#define float_of_bfloat16(x) __uint_as_float((unsigned int)(x) << 16)
static __device__ inline unsigned short bfloat16_of_float(float x) {
  unsigned short y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y;
}
static __device__ inline float rounded_to_bfloat16(float x) {
  unsigned y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(x), "f"(0.0f)); return __uint_as_float(y);
}
#if __CUDA_ARCH__ >= 800
static __device__ inline float float_max(float x, float y) {
  float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;
}
static __device__ inline float float_min(float x, float y) {
  float z; asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;
}
#else
#define float_max(x, y) (((x) > (y) || (x) != (x)) ? (x) : (y))
#define float_min(x, y) (((x) < (y) || (x) != (x)) ? (x) : (y))
#endif
static __device__ inline float rough_exp(float x) {
  float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f)); return y;
}
static __device__ inline float rough_div(float x, float y) {
  float z; asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;
}
// CUDA 13.0 to 13.5 make a dp4a of four products of bytes, and of ((x >> 4) & 15) * y take x as it is
static __device__ inline unsigned char shift_byte(unsigned char x, unsigned n) {
  unsigned y; asm("shr.u32 %0, %1, %2;" : "=r"(y) : "r"((unsigned)x), "r"(n)); return y;
}
static __device__ inline signed char shift_byte(signed char x, unsigned n) {
  int y; asm("shr.s32 %0, %1, %2;" : "=r"(y) : "r"((int)x), "r"(n)); return y;
}
""",
  kernel='extern "C" __global__ void {cluster}__launch_bounds__({threads}) {name}({params})',
  pointer="{T}*", table="const unsigned long long*", shared="__shared__ __align__(1024)", local="{T}*",
  barrier="__syncthreads();", meeting="__syncthreads();",
  group="blockIdx.{d}", thread="threadIdx.{d}", vector="make_{T}({xs})", long="LL",
  alone=" __restrict__", unroll="#pragma unroll",
  variable="const {T} {name}, const {T}* {name}_at", value="({name}_at ? *{name}_at : {name})",
  cluster="__cluster_dims__({shape}) ", neighbours=NEIGHBOURS, member="of_group({x}, {n})", together=TOGETHER,
  core=function_of, publish=PUBLISH, byte_shift="shift_byte", shuffle="__shfl_xor_sync(0xffffffffu, {x}, {n})",
  extreme="float", rounded="rounded_to_bfloat16({0})", copies=COPY, eights=EIGHTS,
  rough={Ops.EXP: "rough_exp({0})", Ops.FDIV: "rough_div({0}, {1})", Ops.RECIP: "rough_div(1, {0})"},
  commit='asm volatile("cp.async.commit_group;" ::: "memory");',
  arrived='asm volatile("cp.async.wait_group {n};" ::: "memory");',
  given="  extern __shared__ __align__(1024) uint4 scratch[];",
)  # fmt: skip

METAL = Dialect(
  types={dtype: name for dtype, name in _NAMES.items() if dtype is not dtypes.float64},
  prelude="""#include <metal_stdlib>
using namespace metal;
#define bits_of_float(x) as_type<uint>(x)
#define float_of_bits(x) as_type<float>(uint(x))
template <typename T> struct Peer { device T* at; };
static inline float float_of_half(ushort x) { return float(as_type<half>(x)); }
static inline ushort half_of_float(float x) { return as_type<ushort>(half(x)); }
""",
  kernel="[[max_total_threads_per_threadgroup({threads})]] kernel void {name}({params},"
  " uint3 group [[threadgroup_position_in_grid]], uint3 thread_ [[thread_position_in_threadgroup]])",
  pointer="device {T}*", table="device const ulong*", shared="threadgroup", local="threadgroup {T}*",
  barrier="threadgroup_barrier(mem_flags::mem_threadgroup);",
  meeting="threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);",
  group="group.{d}", thread="thread_.{d}",
  vector="{T}({xs})", peer="((device const Peer<{T}>*){table})[{i}].at",
  variable="constant const {T}& {name} [[buffer({i})]]", parameter="{T} {name} [[buffer({i})]]",
)  # fmt: skip
