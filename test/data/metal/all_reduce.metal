// groups (1, 1, 1) of threads (64, 1, 1)
#include <metal_stdlib>
using namespace metal;
#define bits_of_float(x) as_type<uint>(x)
#define float_of_bits(x) as_type<float>(uint(x))
static inline float float_of_half(ushort x) { return float(as_type<half>(x)); }
static inline ushort half_of_float(float x) { return as_type<ushort>(half(x)); }
kernel void all_reduce(device float* p0 [[buffer(0)]], device const ulong* p1 [[buffer(1)]], uint3 group [[threadgroup_position_in_grid]], uint3 thread_ [[thread_position_in_threadgroup]]) {
  { const long r1 = thread_.x;
    long v2 = (r1 < 39L ? r1 : 39L);
    float v3 = ((device float*)p1[0L])[v2];
    float v4 = ((device float*)p1[1L])[v2];
    float v5 = (v3 + v4);
    float v6 = ((device float*)p1[2L])[v2];
    float v7 = (v5 + v6);
    bool v8 = (r1 < 40L);
    if (v8) p0[v2] = v7;
  }
}
