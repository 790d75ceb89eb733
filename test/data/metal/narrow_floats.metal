#include <metal_stdlib>
using namespace metal;
#define bits_of_float(x) as_type<uint>(x)
#define float_of_bits(x) as_type<float>(uint(x))
template <typename T> struct Peer { device T* at; };
static inline float float_of_half(ushort x) { return float(as_type<half>(x)); }
static inline ushort half_of_float(float x) { return as_type<ushort>(half(x)); }
[[max_total_threads_per_threadgroup(256)]] kernel void narrow_floats(device ushort* p0 [[buffer(0)]], device ushort* p1 [[buffer(1)]], device ushort* p2 [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]], uint3 thread_ [[thread_position_in_threadgroup]]) {
  { const int r1 = group.x;
    int v2 = (r1 * 256);
    { const int r3 = thread_.x;
      int v4 = (v2 + r3);
      int v5 = (v4 < 999 ? v4 : 999);
      ushort v6 = p1[v5];
      float v7 = float_of_half(v6);
      ushort v8 = p2[v5];
      ushort v9 = (ushort)v8;
      uint v10 = (uint)v9;
      uint v11 = (v10 << 16U);
      float v12 = float_of_bits(v11);
      float v13 = (v7 * v12);
      ushort v14 = half_of_float(v13);
      bool v15 = (v4 < 1000);
      if (v15) p0[v5] = v14;
    }
  }
}
