// groups (1, 1, 1) of threads (128, 1, 1)
#include <metal_stdlib>
using namespace metal;
#define bits_of_float(x) as_type<uint>(x)
#define float_of_bits(x) as_type<float>(uint(x))
static inline float float_of_half(ushort x) { return float(as_type<half>(x)); }
static inline ushort half_of_float(float x) { return as_type<ushort>(half(x)); }
static inline ushort bfloat_of_float(float x) {
  uint b = bits_of_float(x);
  return x != x ? 0x7FC0 : (b + 0x7FFF + (b >> 16 & 1)) >> 16;
}
static inline int floordiv_int(int x, int y) {
  if (y == 0) return 0;
  if (y == -1) return (int)(0 - (uint)x);
  int q = x / y, r = x % y;
  return r != 0 && (r < 0) != (y < 0) ? q - 1 : q;
}
static inline int floormod_int(int x, int y) {
  if (y == 0) return 0;
  if (y == -1) return 0;
  int q = x / y, r = x % y;
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
kernel void integers(device char* p0 [[buffer(0)]], device int* p1 [[buffer(1)]], device int* p2 [[buffer(2)]], device uchar* p3 [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]], uint3 thread_ [[thread_position_in_threadgroup]]) {
  { const long r1 = thread_.x;
    long v2 = (r1 < 98L ? r1 : 98L);
    bool v3 = (p3[v2] != 0);
    int v4 = p2[v2];
    int v5 = p1[v2];
    int v6 = floordiv_int(v5, v4);
    int v7 = (int)((uint)v6 + (uint)v5);
    int v8 = floormod_int(v5, v4);
    bool v9 = (v8 != 0);
    int v10 = (int)v9;
    int v11 = (v3 ? v7 : v10);
    char v12 = (char)v11;
    bool v13 = (r1 < 99L);
    if (v13) p0[v2] = v12;
  }
}
