// Arithmetic that the kernels share. Every product that may be fused into a sum is written as fmaf; -fmad=false keeps the compiler from
// fusing others, so that the simulator, the portable Go twins and a GPU round in the same places.
#pragma once
#include <stdint.h>

typedef unsigned int u32;

constexpr u32 FULL = 0xffffffffu;
constexpr float LOG2E = 1.44269502162933349609f;     // log2(e) rounded to float32
constexpr float LOG2E_LOW = 1.92596303e-8f;          // log2(e) - LOG2E
constexpr float LN2 = 0.693147182464599609375f;

__device__ __forceinline__ float ex2(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float lg2(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// exponential is e^x: the argument of ex2 is kept in two parts, so that the relative error is that of ex2.approx (2^-22) and 3u
// for any x. Below 2^-150 it is 0, and so it is of -infinity.
__device__ __forceinline__ float exponential(float x) {
    float t = x * LOG2E;
    if (t < -150.0f) return 0.0f;
    float low = fmaf(x, LOG2E_LOW, fmaf(x, LOG2E, -t));
    float y = ex2(t), z = fmaf(y, low * LN2, y);
    return z != z ? y : z; // infinity - infinity; of NaN y is NaN, too
}

// logarithm is ln x with an absolute error of 2^-22 near 1 and a relative one of 2^-22 elsewhere.
__device__ __forceinline__ float logarithm(float x) { return lg2(x) * LN2; }

// bf16_pair rounds two numbers to bfloat16, half to even, and packs them: low in the lower half.
__device__ __forceinline__ u32 bf16_pair(float low, float high) {
    u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}

__device__ __forceinline__ float warp_sum(float x) {
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL, x, d);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int d = 16; d > 0; d >>= 1) { float o = __shfl_xor_sync(FULL, x, d); x = o > x || o != o ? o : x; } // NaN stays
    return x;
}

__device__ __forceinline__ double warp_sum(double x) {
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL, x, d);
    return x;
}

// block_sum adds x over a block of at most 1024 threads, a multiple of 32: lanes as a butterfly, then warps. Every thread gets it. The barrier
// before the end lets the next call write the same words.
template <typename T> __device__ __forceinline__ T block_sum(T x, T *warps) {
    x = warp_sum(x);
    int lane = threadIdx.x & 31, n = blockDim.x >> 5;
    if (lane == 0) warps[threadIdx.x >> 5] = x;
    __syncthreads();
    x = warp_sum(lane < n ? warps[lane] : T(0));
    __syncthreads();
    return x;
}

__device__ __forceinline__ float block_max(float x, float *warps) {
    x = warp_max(x);
    int lane = threadIdx.x & 31, n = blockDim.x >> 5;
    if (lane == 0) warps[threadIdx.x >> 5] = x;
    __syncthreads();
    x = warp_max(lane < n ? warps[lane] : -__int_as_float(0x7f800000));
    __syncthreads();
    return x;
}

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// copy16 starts a copy of 16 bytes to shared memory, of which the first n come from memory and the others are 0.
__device__ __forceinline__ void copy16(void *shared, const void *global, int n) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(n) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// load_matrices fetches four 8x8 matrices of 16-bit elements; lane l names row l%8 of matrix l/8.
__device__ __forceinline__ void load_matrices(u32 *r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 *r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
