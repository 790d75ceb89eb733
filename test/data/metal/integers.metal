#include <metal_stdlib>
using namespace metal;
#define bits_of_float(x) as_type<uint>(x)
#define float_of_bits(x) as_type<float>(uint(x))
template <typename T> struct Peer { device T* at; };
static inline float float_of_half(ushort x) { return float(as_type<half>(x)); }
static inline ushort half_of_float(float x) { return as_type<ushort>(half(x)); }
[[max_total_threads_per_threadgroup(128)]] kernel void integers(device char* p0 [[buffer(0)]], device int* p1 [[buffer(1)]], device int* p2 [[buffer(2)]], device uchar* p3 [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]], uint3 thread_ [[thread_position_in_threadgroup]]) {
  { const int r1 = thread_.x;
    int v2 = (r1 < 98 ? r1 : 98);
    bool v3 = (p3[v2] != 0);
    int v4 = p1[v2];
    int v5 = p2[v2];
    bool v6 = (v5 == 0);
    int v7 = (v6 ? 1 : v5);
    bool v8 = (v7 == (-1));
    int v9 = (v8 ? 1 : v7);
    int v10 = (v4 / v9);
    int v11 = (int)((uint)v10 * (uint)v9);
    int v12 = (int)((uint)v4 - (uint)v11);
    int v13 = (v12 ^ v9);
    bool v14 = (v13 < 0);
    bool v15 = (v12 != 0);
    bool v16 = (v14 & v15);
    int v17 = (int)((uint)v10 - (uint)1);
    int v18 = (v16 ? v17 : v10);
    int v19 = (int)((uint)0 - (uint)v4);
    int v20 = (v8 ? v19 : v18);
    int v21 = (v6 ? 0 : v20);
    int v22 = (int)((uint)v21 + (uint)v4);
    int v23 = (int)((uint)v12 + (uint)v9);
    int v24 = (v16 ? v23 : v12);
    int v25 = (v6 ? 0 : v24);
    bool v26 = (v25 != 0);
    int v27 = (int)v26;
    int v28 = (v3 ? v22 : v27);
    char v29 = (char)v28;
    bool v30 = (r1 < 99);
    if (v30) p0[v2] = v29;
  }
}
