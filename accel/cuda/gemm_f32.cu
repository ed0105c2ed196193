#include "device.cuh"

// gemm_f32: C [m, n] = alpha * sum_k A(i,k) * B(k,j) (+ C where add), with A(i,k) = a[i*ai + k*ak] and B(k,j) = b[k*bk + j*bj], so that
// any transpose is a choice of strides. The sum runs in the order of k by fmaf: a sequential loop gives the same bits. A block of
// 256 threads makes 64 x 64 outputs, a thread 4 x 4, in steps of 16.
constexpr int TILE = 64, STEP = 16;

extern "C" __global__ void __launch_bounds__(256) gemm_f32(const float *a, const float *b, float *c, int m, int n, int k,
    int ai, int ak, int bk, int bj, int ldc, float alpha, int add) {
    __shared__ float as[STEP][TILE + 1], bs[STEP][TILE + 1];
    int tx = threadIdx.x & 15, ty = threadIdx.x >> 4, row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    float acc[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += STEP) {
        for (int i = threadIdx.x; i < TILE * STEP; i += 256) {
            // Neighbouring threads read along the dimension that is contiguous.
            int kk = ak == 1 ? i % STEP : i / TILE, r = ak == 1 ? i / STEP : i % TILE;
            as[kk][r] = row0 + r < m && k0 + kk < k ? a[(size_t)(row0 + r) * ai + (size_t)(k0 + kk) * ak] : 0.0f;
            kk = bk == 1 ? i % STEP : i / TILE, r = bk == 1 ? i / STEP : i % TILE;
            bs[kk][r] = col0 + r < n && k0 + kk < k ? b[(size_t)(k0 + kk) * bk + (size_t)(col0 + r) * bj] : 0.0f;
        }
        __syncthreads();
        int last = min(STEP, k - k0); // a zero beyond k would turn an infinity into NaN
        for (int kk = 0; kk < last; kk++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] = fmaf(as[kk][ty + i * 16], bs[kk][tx + j * 16], acc[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int r = row0 + ty + i * 16, q = col0 + tx + j * 16;
            if (r < m && q < n) {
                float *out = c + (size_t)r * ldc + q;
                float v = alpha * acc[i][j];
                *out = add ? *out + v : v;
            }
        }
}
