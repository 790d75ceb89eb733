#include <metal_stdlib>
using namespace metal;
#define bits_of_float(x) as_type<uint>(x)
#define float_of_bits(x) as_type<float>(uint(x))
template <typename T> struct Peer { device T* at; };
static inline float float_of_half(ushort x) { return float(as_type<half>(x)); }
static inline ushort half_of_float(float x) { return as_type<ushort>(half(x)); }
[[max_total_threads_per_threadgroup(256)]] kernel void matmul(device float* p0 [[buffer(0)]], device float* p1 [[buffer(1)]], device float* p2 [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]], uint3 thread_ [[thread_position_in_threadgroup]]) {
  { const int r1 = group.x;
    int v2 = (r1 * 4);
    { const int r3 = thread_.x;
      float a4;
      a4 = (-0.0f);
      float a5;
      a5 = (-0.0f);
      float a6;
      a6 = (-0.0f);
      float a7;
      a7 = (-0.0f);
      int v8 = (r3 / 64);
      int v9 = (v2 + v8);
      int v10 = (v9 < 64 ? v9 : 64);
      int v11 = (v10 * 100);
      int v12 = (r3 % 64);
      int v13 = (v12 < 34 ? v12 : 34);
      int v14 = (v13 * 2);
      for (int r15 = 0; r15 < 50; r15++) {
        int v16 = (v11 + r15);
        float v17 = p1[v16];
        int v18 = (r15 * 70);
        int v19 = (v14 + v18);
        float2 w20 = *(device float2*)(p2 + v19);
        float v21_0 = w20.x; float v21_1 = w20.y;
        float v22 = (v17 * v21_0);
        float v23 = a4;
        float v24 = (v23 + v22);
        a4 = v24;
        float v25 = (v17 * v21_1);
        float v26 = a5;
        float v27 = (v26 + v25);
        a5 = v27;
        int v28 = (v16 + 50);
        float v29 = p1[v28];
        float v30 = (v29 * v21_0);
        float v31 = a6;
        float v32 = (v31 + v30);
        a6 = v32;
        float v33 = (v29 * v21_1);
        float v34 = a7;
        float v35 = (v34 + v33);
        a7 = v35;
      }
      float v36 = a4;
      float v37 = a5;
      float v38 = a6;
      float v39 = a7;
      bool v40 = (v9 < 65);
      bool v41 = (v12 < 35);
      bool v42 = (v40 & v41);
      int v43 = (v10 * 140);
      int v44 = (v43 + v14);
      if (v42) *(device float2*)(p0 + v44) = float2(v36, v37);
      int v45 = (v44 + 70);
      if (v42) *(device float2*)(p0 + v45) = float2(v38, v39);
    }
  }
}
