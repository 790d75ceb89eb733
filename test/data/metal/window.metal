#include <metal_stdlib>
using namespace metal;
#define bits_of_float(x) as_type<uint>(x)
#define float_of_bits(x) as_type<float>(uint(x))
template <typename T> struct Peer { device T* at; };
static inline float float_of_half(ushort x) { return float(as_type<half>(x)); }
static inline ushort half_of_float(float x) { return as_type<ushort>(half(x)); }
[[max_total_threads_per_threadgroup(64)]] kernel void window(device float* p0 [[buffer(0)]], device float* p1 [[buffer(1)]], constant const long& n0 [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]], uint3 thread_ [[thread_position_in_threadgroup]]) {
  int v1 = (int)n0;
  { const int r2 = thread_.x;
    int v3 = (v1 + r2);
    bool v4 = ((-1) < v3);
    bool v5 = (v3 < 64);
    bool v6 = (v4 & v5);
    float v7 = v6 ? p1[v3] : (0.0f);
    float v8 = (v6 ? v7 : float_of_bits(4286578688U));
    p0[r2] = v8;
  }
}
