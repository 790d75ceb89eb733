"""A stand-in for the CUDA driver, and the backend over it as devices `EMULATED:i`: kernels are compiled for the host,
work waits in its stream until somebody has to wait for it, and then runs in the worst order that events allow.

What a real driver lets pass, or would answer with silent damage, is noted in `Driver.faults`: memory that is freed
while queued work needs it, reads of a device that cannot be reached, a barrier that not every thread of a group comes
to, a group's memory that threads touch without a barrier between, that cores read without a fence or that is filled
while they do, that another group of its cluster reads without the cluster's barriers around it, registers of their
products before these have come, vectors that are not aligned. It follows the driver's documentation and the PTX ISA,
not what they do: what it accepts a GPU has yet to confirm.

  pytest -p cuda_emulator test/laws …   (PYTHONPATH=test/runtime, DEV=EMULATED) runs other tests over it
"""

from __future__ import annotations

import ctypes
import enum
import functools
import hashlib
import importlib.util
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from types import SimpleNamespace

from tinygrad.device import cores
from tinygrad.dtype import dtypes
from tinygrad.renderer import mma

CUresult = enum.Enum(
  "CUresult",
  "CUDA_SUCCESS CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_INVALID_HANDLE CUDA_ERROR_ILLEGAL_ADDRESS"
  " CUDA_ERROR_LAUNCH_FAILED CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED CUDA_ERROR_INVALID_IMAGE"
  " CUDA_ERROR_INVALID_CONTEXT CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES CUDA_ERROR_NO_DEVICE CUDA_ERROR_INVALID_CLUSTER_SIZE",
)
OK = CUresult.CUDA_SUCCESS
HOST = """
#include <cmath>
#include <cstring>
#include <ucontext.h>
#include <vector>
#define __device__
#define __global__
#define __shared__
#define __launch_bounds__(n)
struct index3 { unsigned x, y, z; };
static index3 blockIdx, threadIdx;
#define VECTORS(T, N) \\
  struct alignas(2 * sizeof(T)) N##2 { T x, y; }; \\
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) N##4 { T x, y, z, w; }; \\
  static inline N##2 make_##N##2(T x, T y) { return {x, y}; } \\
  static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(signed char, char) VECTORS(unsigned char, uchar) VECTORS(short, short) VECTORS(unsigned short, ushort)
VECTORS(int, int) VECTORS(unsigned, uint) VECTORS(long long, longlong) VECTORS(unsigned long long, ulonglong)
VECTORS(float, float) VECTORS(double, double)
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
enum { THREADS = GROUPS * 1024 };  // of a cluster: number `me` % 1024 of group `rank` = me / 1024
static ucontext_t home, fiber[THREADS];
static char stacks[THREADS][65536], told[256];
enum { RUNS, BARRIER, MEETING, TOGETHER, ENDED };
static int state[THREADS], me, rank;
static void fault(const char* what) { if (!*told) strncpy(told, what, sizeof told - 1); }
static void stop(int at) { state[me] = at; swapcontext(&fiber[me], &home); }
static void __syncthreads() { stop(BARRIER); }
static void meet() { stop(MEETING); }  // threads that one instruction needs: nothing that they can rely on

// A group's memory, of each byte who touched it last between which barriers. What was written goes through a fence of
// its writer and a barrier before cores read it (PTX ISA, "Async proxy").
enum { UNDER_WAY = 1 << 30, MANY = -1 };
// What another group of the cluster reads is written before a barrier of the cluster, and written again, or gone with
// its group, after one (PTX ISA, "barrier.cluster"; CUDA C++ Programming Guide, "Distributed Shared Memory").
struct Byte { int written, writer, fences, read, reader, products, stored, shown; };
alignas(1024) static uint4 memories[GROUPS][1 << 14];
#define scratch memories[rank]
static Byte touched[GROUPS][sizeof memories[0]];
#define bytes touched[rank]
static int nows[GROUPS], together;  // how many barriers there have been, of each group and of the cluster
#define now nows[rank]
static int shown[GROUPS];  // when another group has last read of it
static bool ended[GROUPS];
static std::vector<int> fences[THREADS];  // of each thread: between which barriers
static unsigned held;  // bytes that a group has
static size_t __cvta_generic_to_shared(const void* p) { return (const char*)p - (const char*)scratch; }
static Byte* bytes_of(const void* p, size_t n) {
  size_t at = __cvta_generic_to_shared(p);
  if (at + n > held) { fault("memory beyond a group's is touched"); return bytes; }
  if (at % n) fault("an access to a group's memory is not aligned");
  return bytes + at;
}
static void writes(void* p, const void* x, size_t n, bool late = false) {
  Byte* b = bytes_of(p, n);
  for (size_t i = 0; i < n; i++, b++) {
    bool other = !x || ((const char*)x)[i] != ((const char*)p)[i];  // of what is the same nobody sees whose it is
    if (b->products) fault("a group's memory is written while a product reads it");
    else if (b->written == UNDER_WAY && (!late || b->writer != me)) fault("written while a copy is under way");
    else if (b->written == now && b->writer != me && other) fault("two threads write between two barriers");
    else if (b->read == now && b->reader != me && other) fault("written while another thread may read it");
    else if (b->shown == together && other) fault("written while another group of the cluster may read it");
    *b = {now, me, (int)fences[me].size(), b->read, b->reader, b->products, together, b->shown};
  }
}
static void reads(const void* p, size_t n) {
  Byte* b = bytes_of(p, n);
  for (size_t i = 0; i < n; i++, b++) {
    if (b->written == UNDER_WAY) fault("a group's memory is read before what is copied there has come");
    else if (b->written == now && b->writer != me) fault("read without a barrier after another thread's write");
    b->reader = b->read == now && b->reader != me ? MANY : me;
    b->read = now;
  }
}
static void tile_reads(const void* p) {  // two bytes
  Byte* b = bytes_of(p, 2);
  for (int i = 0; i < 2; i++, b++) {
    if (!b->written) continue;
    if (b->written == UNDER_WAY) fault("a product reads what has not come");
    else if (b->written >= now) fault("a product reads what was written since the last barrier");
    else if ((int)fences[b->writer].size() <= b->fences || fences[b->writer][b->fences] >= now)
      fault("a product reads what its writer has not published by a fence before a barrier");
    b->products++;
  }
}
template <typename T> struct Place {
  T* p;
  operator T() const { reads(p, sizeof(T)); return *p; }
  T operator=(T x) const { writes(p, &x, sizeof(T)); return *p = x; }
  T operator=(const Place& x) const { return *this = (T)x; }
  T* operator&() const { return p; }
};
template <typename T> struct Shared {
  T* p;
  Place<T> operator[](long i) const { return {p + i}; }
  Shared operator+(long i) const { return {p + i}; }
};
static void barrier_cluster() { stop(TOGETHER); }
template <typename T> struct Beside { T* p; int of; T operator[](long i) const {
  size_t at = (const char*)(p + i) - (const char*)memories[of];
  for (size_t k = at; k < at + sizeof(T); k++) {
    Byte* b = &touched[of][k];
    if (ended[of]) fault("a group of the cluster has ended, and its memory is read");
    else if (!b->written || b->written == UNDER_WAY || b->stored == together)
      fault("another group's memory is read without a barrier of the cluster after it was written");
    b->shown = shown[of] = together;
  }
  return p[i];
} };
template <typename T> static Beside<T> of_group(Shared<T> x, unsigned of) {
  if (of >= GROUPS) { fault("the cluster has no such group"); of = rank; }
  return {(T*)((char*)memories[of] + __cvta_generic_to_shared(x.p)), (int)of};
}
template <typename V, typename T> static Place<V> at(Shared<T> x) { return {(V*)x.p}; }
template <typename V, typename T> static V& at(T* x) {
  if ((size_t)x % sizeof(V)) fault("a vector in memory is not aligned");
  return *(V*)x;
}

struct Copy { void* to; const void* from; int length; bool some; };
static Copy copies[THREADS][4096];  // of each thread: those that have been begun,
static int begun[THREADS], done[THREADS], ends[THREADS][4096], groups[THREADS], arrived[THREADS];  // in groups
static void copy_later(void* to, const void* from, int length, bool some) {
  copies[me][begun[me]++ % 4096] = {to, from, length, some};
  if ((size_t)from % length) fault("a copy of memory is not aligned");
  writes(to, nullptr, length);
  for (int i = 0; i < length; i++) bytes_of(to, length)[i].written = UNDER_WAY;
}
static double given[THREADS];
template <typename T> static T __shfl_xor_sync(unsigned, T x, int n) {
  memcpy(given + me, &x, sizeof x);
  meet();
  T y; memcpy(&y, given + (me ^ n), sizeof y);
  meet();
  return y;
}
static void commit() { ends[me][groups[me]++ % 4096] = begun[me]; }
static void arrive(int left) {
  for (; arrived[me] < groups[me] - left; arrived[me]++)
    for (; done[me] < ends[me][arrived[me] % 4096]; done[me]++) {
      Copy& c = copies[me][done[me] % 4096];
      writes(c.to, nullptr, c.length, true);
      if (c.some) memcpy(c.to, c.from, c.length); else memset(c.to, 0, c.length);
    }
}
static const void* rows[THREADS];  // that each thread has named
static uint4 fragments(const void* row, bool turned) {  // of four matrices of 8 x 8 (PTX ISA, "ldmatrix")
  unsigned x[4];
  int warp = me / 32 * 32, lane = me % 32;
  rows[me] = row;
  reads(row, 16);
  meet();
  for (int i = 0; i < 4; i++) for (int half = 0; half < 2; half++) {
    int r = lane / 4, c = lane % 4 * 2 + half;
    if (turned) { r = c; c = lane / 4; }
    memcpy((char*)(x + i) + 2 * half, (const char*)rows[warp + 8 * i + r] + 2 * c, 2);
  }
  meet();
  return {x[0], x[1], x[2], x[3]};
}
static unsigned words[THREADS][16];  // what each thread has given
static float value(const unsigned* w, int i, int kind) {  // element i of bfloat16, float16, tf32
  if (kind == 2) { float y; memcpy(&y, w + i, 4); return y; }
  unsigned short h; memcpy(&h, (const char*)w + 2 * i, 2);
  if (kind == 0) return __uint_as_float((unsigned)h << 16);
  _Float16 y; memcpy(&y, &h, 2); return y;
}

// wgmma (PTX ISA, "Asynchronous warpgroup level matrix instructions"). What a product adds to is nobody's until it has
// been waited for: registers hold meanwhile what is no number, and says which it is (signaling: calculations show).
enum { SUMS = 8, FLOATS = 128, NOBODYS = 0x7f900000 };
struct Sums { float x[FLOATS]; int group; bool open; };
static Sums sums[THREADS][SUMS];
static bool in_order[THREADS];  // whether registers written before may be a product's
static int committed[THREADS], waited[THREADS], some_sums[THREADS];
struct Read { int group; const void* at; };
static std::vector<Read> under_way[THREADS / 128];  // of each warpgroup, the elements that its products read
static float of_a[THREADS / 128][64][16], of_b[THREADS / 128][256][16];
static int number(float x) {
  int y; memcpy(&y, &x, 4);
  return (y & ~(SUMS * FLOATS - 1)) == NOBODYS ? y - NOBODYS : -1;
}
static float nobodys(int s, int i) { int y = NOBODYS + s * FLOATS + i; float x; memcpy(&x, &y, 4); return x; }
static const void* of_tile(unsigned long long is, bool across, int i, int k) {  // "Matrix Descriptor Format"
  size_t first = (is & 0x3fff) << 4, leading = (is >> 16 & 0x3fff) << 4, stride = (is >> 32 & 0x3fff) << 4;
  if (is >> 62 != 1 || (is >> 49 & 7)) fault("a matrix descriptor is not of 128 bytes' swizzling from its beginning");
  size_t to = i / 8 * stride + i % 8 * 128 + k * 2;
  if (across) to = i / 64 * leading + k / 8 * stride + k % 8 * 128 + i % 64 * 2;
  return (const char*)scratch + ((first + to) ^ ((first + to) >> 7 & 7) << 4);
}
static void wgmma_fence() { in_order[me] = true; }
static void wgmma_product(int n, int kind, float** d, const unsigned* a, unsigned long long a_is,
                          unsigned long long b_is, bool more, bool a_across, bool b_across) {
  int w = me / 128, s = number(*d[0]) / FLOATS, length = n / 2;
  bool goes_on = number(*d[0]) >= 0 && sums[me][s].open;
  for (int i = 0; i < length; i++)
    if (number(*d[i]) != (goes_on ? s * FLOATS + i : -1)) fault("registers of a product are changed meanwhile");
  if ((!goes_on || a) && !in_order[me]) fault("registers are a product's without a fence of wgmma");
  if (!goes_on) {
    sums[me][s = some_sums[me]++ % SUMS].open = true;
    for (int i = 0; i < length; i++) sums[me][s].x[i] = *d[i];
  }
  if (a) memcpy(words[me], a, 16);
  meet();
  if (me % 128 == 0) {
    auto element = [&](bool across, unsigned long long is, int i, int k) {
      const void* at = of_tile(is, across, i, k);
      tile_reads(at);
      under_way[w].push_back({committed[me], at});
      unsigned x = 0; memcpy(&x, at, 2);
      return value(&x, 0, kind);
    };
    for (int k = 0; k < 16; k++) for (int i = 0; i < n; i++) of_b[w][i][k] = element(b_across, b_is, i, k);
    for (int k = 0; k < 16 && !a; k++) for (int i = 0; i < 64; i++) of_a[w][i][k] = element(a_across, a_is, i, k);
    for (int t = 0; t < 128 && a; t++) for (int r = 0; r < 8; r++)
      of_a[w][t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8][t % 4 * 2 + r / 4 * 8 + r % 2] = value(words[me + t], r, kind);
  }
  meet();
  for (int i = 0; i < length; i++) {
    int row = me % 128 / 32 * 16 + me % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + me % 4 * 2 + i % 2;
    double sum = more ? sums[me][s].x[i] : 0;
    for (int k = 0; k < 16; k++) sum += (double)of_a[w][row][k] * of_b[w][column][k];
    sums[me][s].x[i] = sum;
    *d[i] = nobodys(s, i);
  }
  sums[me][s].group = committed[me];
}
static void wgmma_commit() { committed[me]++; in_order[me] = false; }
static void wgmma_wait(int left, float** d, int length) {
  if (waited[me] < committed[me] - left) waited[me] = committed[me] - left;
  auto& reading = under_way[me / 128];
  for (size_t i = 0; me % 128 == 0 && i < reading.size(); i++) if (reading[i].group < waited[me]) {
    Byte* b = bytes_of(reading[i].at, 2);
    for (int k = 0; k < 2; k++) { b[k].products -= b[k].products > 0; b[k].read = now; b[k].reader = MANY; }
    reading[i--] = reading.back(); reading.pop_back();
  }
  for (int i = 0; i < length; i++) {
    int found = number(*d[i]), s = found / FLOATS;
    if (found < 0) continue;
    if (sums[me][s].group >= waited[me]) { fault("read before the product has been waited for"); continue; }
    *d[i] = sums[me][s].x[found % FLOATS];
    sums[me][s].open = false;
  }
}
"""
RUN = """
static long long** args;
static void one() { CALL; }
static void strand() {
  one();
  if (waited[me] < committed[me]) fault("a thread ends while its product is under way");
  stop(ENDED);
}
static const unsigned cluster[] = {CLUSTER};
static index3 first, threads;
static void place(int of, int i) {
  rank = of; me = of * 1024 + i;
  threadIdx = {i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y};
  unsigned g = of;
  blockIdx = {first.x + g % cluster[0], first.y + g / cluster[0] % cluster[1], first.z + g / cluster[0] / cluster[1]};
}
static bool run_cluster(int n) {  // of n threads a group; each runs up to the cluster's barriers, or its end
  int at[GROUPS] = {}, left = GROUPS;
  for (int of = 0; of < GROUPS; of++) for (int i = 0; i < n; i++) {
    place(of, i);
    getcontext(&fiber[me]);
    fiber[me].uc_stack.ss_sp = stacks[me]; fiber[me].uc_stack.ss_size = sizeof stacks[me]; fiber[me].uc_link = &home;
    makecontext(&fiber[me], strand, 0);
    state[me] = RUNS;
  }
  while (left) {
    for (int of = 0; of < GROUPS; of++) while (at[of] < TOGETHER) {
      for (int i = 0; i < n; i++) { place(of, i); swapcontext(&home, &fiber[me]); }
      at[of] = state[of * 1024];
      for (int i = 0; i < n; i++)
        if (state[of * 1024 + i] != at[of]) { fault("not every thread comes to its barriers"); return false; }
      now += at[of] == BARRIER;
      if (at[of] == ENDED) { ended[of] = true; left--; }
      if (at[of] == ENDED && shown[of] == together) fault("a group ends while another may read its memory");
    }
    if (left && left < GROUPS) { fault("not every group comes to the barriers of its cluster"); return false; }
    together++;
    for (rank = 0; rank < GROUPS && left; rank++) { now++; at[rank] = RUNS; }
  }
  return true;
}
extern "C" const char* run(long long** given, const unsigned* g, const unsigned* b, unsigned shared) {
  args = given;
  *told = 0;
  held = LOCAL ? LOCAL : shared;
  threads = {b[0], b[1], b[2]};
  int n = b[0] * b[1] * b[2];
  for (first.z = 0; first.z < g[2]; first.z += cluster[2])
  for (first.y = 0; first.y < g[1]; first.y += cluster[1])
  for (first.x = 0; first.x < g[0]; first.x += cluster[0]) {
    together = 1;
    for (int of = 0; of < GROUPS; of++) {
      place(of, 0);
      memset(scratch, 255, held); memset(bytes, 0, held * sizeof *bytes);
      now = 1; shown[of] = 0; ended[of] = false;
      for (int i = 0; i < n; i++) {
        place(of, i);
        begun[me] = done[me] = groups[me] = arrived[me] = committed[me] = waited[me] = in_order[me] = 0;
        fences[me].clear(); under_way[me / 128].clear();
        if (!BARRIERS) one();
      }
    }
    if (BARRIERS && !run_cluster(n)) return told;
  }
  return *told ? told : nullptr;
}
"""
_folder = os.environ.get("EMULATED_CODE") or tempfile.mkdtemp()  # of kernels; several processes may share one
_compiled: dict[str, ctypes.CDLL] = {}


def of_core(found: re.Match[str]) -> str:
  """A core's function, for lanes that come to it together."""
  core = next(c for c in cores.cuda_cores((9, 0)) if mma.core_name(c) == found[1])
  if core.late:
    return of_instructions(found)
  given, results = (
    re.findall(r"unsigned (\w+)", found[2]),
    re.sub(r"float(& \w+)", r"\1", found[2].partition(", unsigned")[0]),
  )
  kind = (dtypes.bfloat16, dtypes.float16, dtypes.float32).index(core.operand)
  rounded = "mine[i] = mine[i] + 0x1000 & ~0x1fff;" if kind == 2 else ""
  of_a, of_b, first = core.a.places(), core.b.places(), core.a.length // core.word
  terms = {}
  for lane in range(core.lanes):
    for r in range(core.d.length):
      row, column = core.d.at(lane, r)
      terms[lane, r] = [(*of_a[row, k], *of_b[k, column]) for k in range(core.k)]
  table = ", ".join(str(x) for some in terms.values() for t in some for x in t)
  return f"""static inline void {found[1]}({found[2]}) {{
  static const unsigned char table[{core.lanes}][{core.d.length}][{core.k}][4] = {{{table}}};
  unsigned mine[] = {{{", ".join(given)}}};
  for (int i = 0; i < {len(given)}; i++) {{ {rounded} words[me][i] = mine[i]; }}
  meet();
  float* d[] = {{{results}}};
  for (int r = 0; r < {core.d.length}; r++) {{
    double sum = *d[r];
    for (auto& t : table[me % {core.lanes}][r]) {{
      int warp = me / {core.lanes} * {core.lanes};
      sum += (double)value(words[warp + t[0]], t[1], {kind}) * value(words[warp + t[2]] + {first}, t[3], {kind});
    }}
    *d[r] = sum;
  }}
  meet();
}}"""


ASSEMBLER = re.compile(r'asm volatile\("([^"]*)"((?:[^;"]|"[^"]*")*)\);')
PRODUCT = re.compile(
  r"\{ \.reg \.pred p; setp\.ne\.b32 p, (\S+), 0; wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)\.\3 "
  r"\{([^}]*)\}, (?:\{([^}]*)\}|(%\d+)), (%\d+), p, 1, 1((?:, [01]){1,2}); \}"
)


def of_instructions(found: re.Match[str]) -> str:
  """A function of wgmma, instruction by instruction as they are written."""
  return ASSEMBLER.sub(of_instruction, found[0])


def of_instruction(found: re.Match[str]) -> str:
  code, operands = found[1], re.findall(r'"\+?[frl]"\(((?:[^()]|\([^()]*\))*)\)', found[2])
  given = {f"%{i}": x for i, x in enumerate(operands)}

  def those(text: str) -> list[str]:
    return [given.get(x.strip(), x.strip()) for x in text.split(",")]

  if code == "wgmma.fence.sync.aligned;":
    return "wgmma_fence();"
  if code == "wgmma.commit_group.sync.aligned;":
    return "wgmma_commit();"
  if (wait := re.fullmatch(r"wgmma\.wait_group\.sync\.aligned (\d+);", code)) is not None:
    pointers = ", ".join(f"&{x}" for x in operands)
    return f"{{ float* d[] = {{{pointers or 'nullptr'}}}; wgmma_wait({wait[1]}, d, {len(operands)}); }}"
  product = PRODUCT.fullmatch(code)
  assert product is not None, code
  more, n, kind, d, a, a_is, b_is, across = product.groups()
  ways = [x for x in across.split(", ") if x]
  assert len(those(d)) == int(n) // 2 and len(ways) == 1 + (a is None), code
  words = f"unsigned a[] = {{{', '.join(those(a))}}};" if a else "unsigned* a = nullptr;"
  of_a = those(a_is)[0] if a_is else "0"
  return (
    f"{{ float* d[] = {{{', '.join(f'&{x}' for x in those(d))}}}; {words} wgmma_product({n}, {int(kind == 'f16')}, d,"
    f" a, {of_a}, {those(b_is)[0]}, {those(more)[0]}, {ways[0] if a is None else 0}, {ways[-1]}); }}"
  )


# the nearest, the even one of two; of NaN all bits but the sign
BFLOAT16 = (
  "unsigned b = __float_as_uint(x); return x != x ? 0x7fff : (unsigned short)((b + 0x7fff + (b >> 16 & 1)) >> 16);"
)
ROUGH_EXP = "y = exp2f(x * 1.4426950408889634f); return y < 1.17549435e-38f ? 0 : y;"


def has_compiler() -> bool:
  return shutil.which("g++") is not None


def signature(source: str) -> tuple[str, list[str]]:
  """(name, parameters) of the kernel in a source."""
  name, parameters = re.search(r"__launch_bounds__\(\d+\) (\w+)\((.*?)\) \{", source).groups()
  return name, [p.strip() for p in parameters.split(",")] if parameters.strip() else []


def cluster_of(source: str) -> tuple[int, ...]:
  """How many groups of a kernel's grid are a cluster, along each dimension."""
  found = re.search(r"__cluster_dims__\((\d+), (\d+), (\d+)\)", source)
  return tuple(map(int, found.groups())) if found else (1, 1, 1)


def host_code(source: str) -> ctypes.CDLL:
  """A kernel's source compiled for the host."""
  if source not in _compiled:
    name, parameters = signature(source)
    static = re.search(r"^ *__shared__ __align__\(1024\) uint4 scratch\[(\d+)\];", source, re.M)
    body = re.sub(r"^ *(extern )?__shared__ __align__\(1024\) uint4 scratch\[\d*\];", "", source, flags=re.M)
    body = re.sub(r"^( *)(\w[\w ]*)\* (s\d+) = (\(\2\*\)scratch \+ \d+);", r"\1Shared<\2> \3{\4};", body, flags=re.M)
    body = re.sub(r"\*\((\w+\d)\*\)\(", r"at<\1>(", body)
    body = re.sub(r'asm\("cvt.f32.f16.*', "_Float16 h; memcpy(&h, &x, 2); y = (float)h; return y;", body)
    body = re.sub(r'asm\("cvt.rn.bf16.f32.*', BFLOAT16, body)
    body = re.sub(r'asm\("cvt.rn.bf16x2.f32.*', "return __uint_as_float(bfloat16_of_float(x) << 16);", body)
    body = re.sub(r'asm\("cvt.rn.f16.f32.*', "_Float16 h = (_Float16)x; memcpy(&y, &h, 2); return y;", body)
    body = re.sub(r"static __device__ inline void (mma_\w+)\(([^)]*)\) \{.*?^\}", of_core, body, flags=re.M | re.S)
    body = re.sub(r"^template <int N> .*?^\}", "", body, flags=re.M | re.S)
    body = re.sub(r"^template <typename T> static __device__ inline T\* of_group.*?^\}", "", body, flags=re.M | re.S)
    body = body.replace(mma.TOGETHER, "barrier_cluster();")
    body = re.sub(r"__cluster_dims__\([^)]*\) ", "", body)
    body = re.sub(r"^static __device__ inline uint4 fragments_.*?^\}", "", body, flags=re.M | re.S)
    body = re.sub(r"fragments_(eights|turned)\((.*?)\);", lambda m: f"fragments({m[2]}, {m[1] == 'turned':d});", body)
    body = re.sub(r'asm\("ex2.approx.ftz.f32.*', ROUGH_EXP, body)
    body = re.sub(r'asm\("div.full.f32.*', "z = x / y; return z;", body)
    body = re.sub(r"copy_later<(\d+)>\((.*), (.*?)\);", r"copy_later(\2, \1, \3);", body)
    body = re.sub(r'asm volatile\("cp.async.commit_group.*', "commit();", body)
    body = re.sub(r'asm volatile\("cp.async.wait_group (\d+).*', r"arrive(\1);", body)
    body = re.sub(r'asm volatile\("fence.proxy.async.*', "fences[me].push_back(now);", body)
    body = re.sub(r'asm\("shr\.[us]32.*', "y = x >> n; return y;", body)
    given = [f"*({p.rsplit(' ', 1)[0]}*)args[{i}]" for i, p in enumerate(parameters)]
    meets = any(
      call in body for call in ("__syncthreads", "__shfl", "fragments(", "barrier_cluster")
    )  # or else one thread after the other
    cluster = cluster_of(source)
    run = RUN.replace("CALL", f"{name}({', '.join(given)})").replace("BARRIERS", str(int(meets)))
    run = run.replace("CLUSTER", ", ".join(map(str, cluster)))
    head = f"enum {{ GROUPS = {cluster[0] * cluster[1] * cluster[2]} }};\n"
    run = run.replace("LOCAL", str(16 * int(static[1]) if static else 0))
    path = Path(_folder, f"{hashlib.sha256(source.encode()).hexdigest()[:20]}.so")
    if not path.exists():
      with tempfile.TemporaryDirectory(dir=_folder) as own:
        Path(own, "kernel.cpp").write_text(head + HOST + body + run)
        options = "-O1 -w -fwrapv -fno-strict-aliasing -shared -fPIC".split()
        subprocess.run(["g++", *options, f"{own}/kernel.cpp", "-o", f"{own}/kernel.so"], check=True)
        Path(own, "kernel.so").rename(path)
    _compiled[source] = ctypes.CDLL(str(path))
    _compiled[source].run.restype = ctypes.c_char_p
  return _compiled[source]


class Op:
  """Work in a stream: it runs when all before it in the stream, and the ops that it `waits` for, have run."""

  def __init__(self, stream, work=None, waits=None, what=""):
    self.stream, self.work, self.waits, self.what, self.done = stream, work, waits, what, False


class Stream:
  def __init__(self, context):
    self.context, self.ops = context, deque()

  def __int__(self):
    return id(self)  # as other libraries are given it


class Event:
  def __init__(self, context):
    self.context, self.record = context, None


class Function:
  def __init__(self, context, source):
    self.context, self.source = context, source
    self.name, self.parameters = signature(source)
    self.shared, self.cluster = 48 << 10, cluster_of(source)  # bytes that a launch may give


class Node:
  def __init__(self, before, params):
    self.before, self.params = before, params


class KernelNodeParams:
  func = kernelParams = None
  gridDimX = gridDimY = gridDimZ = blockDimX = blockDimY = blockDimZ = 1
  sharedMemBytes = 0


class Driver:
  """`devices` physical ones of `capacity` bytes; `order`: "lazy", "eager" or "shuffled"."""

  CUresult = CUresult
  CUDA_KERNEL_NODE_PARAMS = KernelNodeParams
  CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
  CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
  CUdevice_attribute = SimpleNamespace(
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97,
  )  # fmt: skip
  CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

  def __init__(self, devices=2, capacity=1 << 30, order="lazy"):
    self.devices, self.capacity, self.order = devices, capacity, order
    self.random = random.Random(0)
    self.reach = {(i, k) for i in range(devices) for k in range(devices) if i != k}
    self.enabled = set()
    self.current, self.stack = None, []
    self.version, self.capability = 13000, (9, 0)
    self.domain = 0  # of the bus, which tells apart what other processes emulate
    self.units, self.shared = 2, 200 << 10  # multiprocessors; bytes of a group's memory
    self.unknown, self.loaded = set(), []  # architectures whose code is refused; those of the modules, in order
    self.memory = {}  # address -> (context, nbytes, what keeps it)
    self.used = [0] * devices
    self.streams = []
    self.broken = {}  # context -> status, for good
    self.fault_in = None  # (name of a kernel, status): its next run breaks its context
    self.refuse = {}  # function -> status of its next call
    self.calls = []  # names of the functions called
    self.launched = []  # names of the kernels, as they ran
    self.faults = []  # what a real driver would not have told

  def __getattribute__(self, name):
    """A function, as the caller sees it: statuses first, sticky errors before all else."""
    found = object.__getattribute__(self, name)
    if not (name.startswith("cu") and name[2].isupper()):
      return found

    @functools.wraps(found)
    def called(*args):
      self.calls.append(name)
      if (status := self.refuse.pop(name, None)) is not None:
        return (status, None)
      if self.current in self.broken and not name.startswith("cuCtx"):
        return (self.broken[self.current], None)
      out = found(*args)
      if isinstance(out, CUresult):
        return (out, None)
      if self.current in self.broken and name not in ("cuCtxSetCurrent", "cuLaunchKernel", "cuGraphLaunch"):
        return (self.broken[self.current], None)
      return (OK,) if out is None else (OK, out)

    return called

  # ---- the order of work

  def add(self, op):
    op.stream.ops.append(op)
    if self.order == "eager":
      self.finish(op)
    elif self.order == "shuffled":
      for _ in range(self.random.randrange(3)):
        stream = self.random.choice(self.streams)
        if stream.ops:
          self.finish(stream.ops[0])
    return op

  def finish(self, op):
    while not op.done:
      first = op.stream.ops[0]
      if first.waits is not None:
        self.finish(first.waits)
      op.stream.ops.popleft()
      first.done = True
      if first.work is not None and op.stream.context not in self.broken:
        first.work()

  def kernel(self, stream, function, grid, block, words, shared):
    if self.fault_in is not None and self.fault_in[0] in function.name:
      self.broken[stream.context], self.fault_in = self.fault_in[1], None
      return
    self.launched.append(function.name)
    self.alone(function, words)
    for parameter, word in zip(function.parameters, words):
      if "*" in parameter and (word.value or not parameter.endswith("_at")):  # a variable need not lie in memory
        self.touch(function, stream, word.value)
        if "const unsigned long long*" in parameter:
          table = (ctypes.c_uint64 * (self.memory[word.value][1] // 8)).from_address(word.value)
          for address in table[: self.table_length]:
            self.touch(function, stream, address, peer=True)
    pointers = (ctypes.c_void_p * len(words))(*(ctypes.addressof(w) for w in words))
    shape = (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block)
    if (told := host_code(function.source).run(pointers, *shape, shared)) is not None:
      self.faults.append(f"{function.name}: {told.decode()}")

  def alone(self, function, words):
    """What is written by way of a pointer that is declared to lead there alone is named by no other argument, and no
    thread reads there what another has written: a compiler may move that across a barrier."""
    given = [(p.rpartition(" ")[2], w.value) for p, w in zip(function.parameters, words) if "__restrict__" in p]
    for name, address in given:
      written = re.search(rf"(^|[ )]){name}\[[^=;]*\] = |\({name} \+ [^=;]*\) = ", function.source, re.M)
      if written and [a for _, a in given].count(address) > 1:
        self.faults.append(f"{function.name} is given {name} twice")
      if written and re.search(rf"= ([^;]*[ (])?{name}\[|= \*\([^;]*\({name} \+ ", function.source):
        self.faults.append(f"{function.name} reads {name}, which it writes, as if it alone did")

  table_length = 0  # entries of a table of peers that are looked at: as many as there are devices in use

  def touch(self, function, stream, address, peer=False):
    owner = next((of for a, (of, n, _) in self.memory.items() if a <= address < a + n), None)
    if owner is None:
      self.faults.append(f"{function.name} uses memory that has been freed")
    elif owner != stream.context and (stream.context, owner) not in self.enabled:
      self.faults.append(f"{function.name} reads device {owner} from device {stream.context}")

  # ---- devices

  def cuInit(self, flags):
    assert flags == 0

  def cuDeviceGetCount(self):
    return self.devices

  def cuDeviceGet(self, i):
    return i

  def cuDeviceGetPCIBusId(self, length, device):
    return f"{self.domain:08x}:{device:02x}:00.0\0".encode()[:length]

  def cuDevicePrimaryCtxRetain(self, device):
    return device

  def cuCtxSetCurrent(self, context):
    self.current = context

  def cuCtxPushCurrent(self, context):
    self.stack.append(self.current)
    self.current = context

  def cuCtxPopCurrent(self):
    self.current = self.stack.pop()

  def cuDriverGetVersion(self):
    return self.version

  def cuDeviceGetAttribute(self, kind, device):
    return {16: self.units, 97: self.shared, 75: self.capability[0], 76: self.capability[1]}[kind]

  def cuDeviceTotalMem(self, device):
    return self.capacity

  def cuDeviceCanAccessPeer(self, device, other):
    return int((device, other) in self.reach)

  def cuCtxEnablePeerAccess(self, other, flags):
    if (self.current, other) in self.enabled:
      return CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    self.enabled.add((self.current, other))
    return None

  # ---- memory

  def cuMemAlloc(self, nbytes):
    if nbytes <= 0:
      return CUresult.CUDA_ERROR_INVALID_VALUE
    if self.used[self.current] + nbytes > self.capacity:
      return CUresult.CUDA_ERROR_OUT_OF_MEMORY
    keep = (ctypes.c_ubyte * (nbytes + 256))()
    address = -(-ctypes.addressof(keep) // 256) * 256
    ctypes.memset(address, 0xCD, nbytes)
    self.memory[address] = (self.current, nbytes, keep)
    self.used[self.current] += nbytes
    return address

  def cuMemFree(self, address):
    context, nbytes, _ = self.memory.pop(address)
    ctypes.memset(address, 0xDD, nbytes)
    self.used[context] -= nbytes

  def cuMemHostAlloc(self, nbytes, flags):
    keep = (ctypes.c_ubyte * nbytes)()
    self.pinned = [*getattr(self, "pinned", []), keep]
    return ctypes.addressof(keep)

  def holds(self, address, at):
    return address <= at < address + self.memory[address][1]

  def inside(self, address, nbytes):
    return any(a <= address and address + nbytes <= a + n for a, (_, n, _) in self.memory.items())

  def cuMemcpyHtoDAsync(self, there, here, nbytes, stream):
    if not self.inside(there, nbytes):
      return CUresult.CUDA_ERROR_INVALID_VALUE
    self.add(Op(stream, lambda: ctypes.memmove(there, here, nbytes), what="in"))
    return None

  def cuMemcpyDtoHAsync(self, there, here, nbytes, stream):
    if not self.inside(here, nbytes):
      return CUresult.CUDA_ERROR_INVALID_VALUE
    self.add(Op(stream, lambda: ctypes.memmove(there, here, nbytes), what="out"))
    return None

  def cuMemcpyPeerAsync(self, there, to, here, of, nbytes, stream):
    if not all(self.memory[a][0] == c for p, c in ((there, to), (here, of)) for a in self.memory if self.holds(a, p)):
      return CUresult.CUDA_ERROR_INVALID_CONTEXT
    if not (self.inside(there, nbytes) and self.inside(here, nbytes)):
      return CUresult.CUDA_ERROR_INVALID_VALUE
    self.add(Op(stream, lambda: ctypes.memmove(there, here, nbytes), what="peer"))
    return None

  # ---- streams and events

  def cuStreamCreate(self, flags):
    self.streams.append(Stream(self.current))
    return self.streams[-1]

  def cuEventCreate(self, flags):
    return Event(self.current)

  def cuEventRecord(self, event, stream):
    if event.context != stream.context:
      return CUresult.CUDA_ERROR_INVALID_HANDLE
    event.record = self.add(Op(stream, what="record"))
    return None

  def cuStreamWaitEvent(self, stream, event, flags):
    if event.record is not None:
      self.add(Op(stream, waits=event.record, what="wait"))

  def cuStreamSynchronize(self, stream):
    if stream.ops:
      self.finish(stream.ops[-1])

  def cuEventSynchronize(self, event):
    if event.record is not None:
      self.finish(event.record)

  # ---- kernels

  def cuModuleLoadData(self, code):
    arch, _, source = code.decode().partition("\n")
    if (arch := arch.removeprefix("//")) in self.unknown:
      return CUresult.CUDA_ERROR_INVALID_IMAGE
    self.loaded.append(arch)
    return Function(self.current, source)

  def cuModuleGetFunction(self, module, name):
    assert module.name == name.decode()
    return module

  def cuFuncSetAttribute(self, function, kind, value):
    if kind != 8 or value > self.shared:
      return CUresult.CUDA_ERROR_INVALID_VALUE
    function.shared = value
    return None

  def words(self, function, params):
    """The arguments, copied as they are now."""
    pointers = (ctypes.c_void_p * len(function.parameters)).from_address(params)
    return [ctypes.c_int64(ctypes.c_int64.from_address(p).value) for p in pointers]

  def fits(self, grid, block):
    few = all(1 <= n <= most for n, most in zip((*grid, *block), (2**31 - 1, 65535, 65535, 1024, 1024, 64)))
    return few and block[0] * block[1] * block[2] <= 1024

  def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
    if function.context != stream.context or self.current != stream.context:
      return CUresult.CUDA_ERROR_INVALID_CONTEXT
    grid, block = (gx, gy, gz), (bx, by, bz)
    if not self.fits(grid, block) or shared > function.shared:
      return CUresult.CUDA_ERROR_INVALID_VALUE
    most = 8 if self.capability >= (9, 0) else 1  # groups of a cluster that every such device takes
    if any(n % c for n, c in zip(grid, function.cluster)) or math.prod(function.cluster) > most:
      return CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE
    words = self.words(function, params)
    self.add(Op(stream, lambda: self.kernel(stream, function, grid, block, words, shared), what=function.name))
    return None

  # ---- graphs

  def node(self, graph, before, n, params):
    if n != len(before) or len({id(x) for x in before}) != n or any(x not in graph for x in before):
      return CUresult.CUDA_ERROR_INVALID_VALUE
    graph.append(Node(before, params))
    return graph[-1]

  def cuGraphCreate(self, flags):
    return []

  def frozen(self, p):
    grid, block = (p.gridDimX, p.gridDimY, p.gridDimZ), (p.blockDimX, p.blockDimY, p.blockDimZ)
    return p.func, grid, block, self.words(p.func, p.kernelParams), p.sharedMemBytes

  def cuGraphAddKernelNode(self, graph, before, n, params):
    return self.node(graph, before, n, self.frozen(params))

  def cuGraphAddEmptyNode(self, graph, before, n):
    return self.node(graph, before, n, None)

  def cuGraphInstantiate(self, graph, flags):
    return SimpleNamespace(nodes=list(graph), params={id(x): x.params for x in graph})

  def cuGraphExecKernelNodeSetParams(self, executable, node, params):
    if node not in executable.nodes:
      return CUresult.CUDA_ERROR_INVALID_VALUE
    executable.params[id(node)] = self.frozen(params)
    return None

  def cuGraphLaunch(self, executable, stream):
    if self.current != stream.context:
      return CUresult.CUDA_ERROR_INVALID_CONTEXT
    params = dict(executable.params)

    def work():
      left, done = list(executable.nodes), set()
      while left:
        ready = [x for x in left if all(id(b) in done for b in x.before)]
        x = ready[-1] if self.order == "lazy" else self.random.choice(ready)
        if params[id(x)] is not None:
          function, *rest = params[id(x)]
          self.kernel(SimpleNamespace(context=function.context), function, *rest)
        left.remove(x)
        done.add(id(x))

    self.add(Op(stream, work, what="graph"))
    return None

  def cuGraphExecDestroy(self, executable):
    """Memory of the process."""

  def cuGraphDestroy(self, graph):
    """Memory of the process."""


def install(name="emulated", **settings):
  """Devices `EMULATED:i` over a driver of their own: the module of the backend, loaded once more, with its `driver`
  replaced. Returns the module."""
  from tinygrad.device import registry
  from tinygrad.runtime import cuda

  spec = importlib.util.spec_from_file_location(f"tinygrad.runtime.{name}", cuda.__file__)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  spec.loader.exec_module(module)
  module.driver = Driver(**settings)
  module.compile_source = lambda source, name, arch: f"//{arch}\n{source}".encode()
  module.toolchain = lambda: ((13, 0), (75, 80, 90, 100))
  if name.upper() not in (known := registry.backends()):
    registry.backends = lambda: (*known, name.upper())
  return module


installed = []  # as a plugin


def pytest_configure():
  """As a plugin: for every test."""
  installed.append(install())


def pytest_runtest_teardown(item):
  """What a test's kernels did that a GPU would not have told is its failure."""
  for driver in [m.driver for m in installed]:
    told, driver.faults = driver.faults, []
    assert told == [], item.name
