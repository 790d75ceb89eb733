#include <metal_stdlib>
using namespace metal;
#define bits_of_float(x) as_type<uint>(x)
#define float_of_bits(x) as_type<float>(uint(x))
template <typename T> struct Peer { device T* at; };
static inline float float_of_half(ushort x) { return float(as_type<half>(x)); }
static inline ushort half_of_float(float x) { return as_type<ushort>(half(x)); }
[[max_total_threads_per_threadgroup(64)]] kernel void window(device float* p0 [[buffer(0)]], device float* p1 [[buffer(1)]], constant const long& v [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]], uint3 thread_ [[thread_position_in_threadgroup]]) {
  { const int r1 = thread_.x;
    int v2 = (((int)v) + r1);
    bool v3 = ((-1) < v2);
    bool v4 = (v2 < 64);
    bool v5 = (v3 & v4);
    float v6 = v5 ? p1[v2] : (0.0f);
    float v7 = (v5 ? v6 : float_of_bits(4286578688U));
    p0[r1] = v7;
  }
}
