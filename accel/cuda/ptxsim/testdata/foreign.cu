// Kernels that the simulator was not written for: a reduction, a transpose, a stencil, a histogram and a scan.
#include <stdint.h>

extern "C" __global__ void reduce(const int *x, int *sum, int n) {
    extern __shared__ int part[];
    int s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
    part[threadIdx.x] = s;
    __syncthreads();
    for (int d = blockDim.x / 2; d > 0; d >>= 1) {
        if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
}

extern "C" __global__ void transpose(const double *x, double *y, int rows, int cols) {
    __shared__ double tile[16][17];
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r < rows && c < cols) tile[threadIdx.y][threadIdx.x] = x[r * cols + c];
    __syncthreads();
    c = blockIdx.y * 16 + threadIdx.x, r = blockIdx.x * 16 + threadIdx.y;
    if (r < cols && c < rows) y[r * rows + c] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void stencil(const float4 *x, float4 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 a = x[i > 0 ? i - 1 : n - 1], b = x[i], c = x[i + 1 < n ? i + 1 : 0];
    y[i] = make_float4(0.25f * a.x + 0.5f * b.x + 0.25f * c.x, a.y - c.y, fmaxf(a.z, fminf(b.z, c.z)), (float)(int)b.w + (float)__popc((unsigned)i));
}

extern "C" __global__ void histogram(const uint8_t *x, unsigned *bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

extern "C" __global__ void scan(const int64_t *x, int64_t *y, int n) {
    __shared__ int64_t warps[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t carry = 0;
    for (int from = 0; from < n; from += blockDim.x) {
        int i = from + threadIdx.x;
        int64_t v = i < n ? x[i] : 0;
        for (int d = 1; d < 32; d <<= 1) {
            int64_t o = __shfl_up_sync(0xffffffffu, v, d);
            if (lane >= d) v += o;
        }
        if (lane == 31) warps[warp] = v;
        __syncthreads();
        if (warp == 0) {
            int64_t w = lane < blockDim.x / 32 ? warps[lane] : 0;
            for (int d = 1; d < 32; d <<= 1) {
                int64_t o = __shfl_up_sync(0xffffffffu, w, d);
                if (lane >= d) w += o;
            }
            warps[lane] = w;
        }
        __syncthreads();
        int64_t before = carry + (warp > 0 ? warps[warp - 1] : 0);
        if (i < n) y[i] = before + v;
        carry += warps[blockDim.x / 32 - 1];
        __syncthreads();
    }
}

// collatz diverges: each lane takes its own number of turns, and some branch within.
extern "C" __global__ void collatz(const unsigned *x, int *steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = x[i];
    int s = 0;
    while (v != 1) {
        if (v & 1) v = 3 * v + 1;
        else v >>= 1;
        if (++s > 1000) break;
    }
    unsigned m = __ballot_sync(__activemask(), s & 1);
    steps[i] = s + (int)(m & 0);
}
