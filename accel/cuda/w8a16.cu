#include "device.cuh"

// A linear layer with int8 codes w [n, ldw] and a scale for each row. Codes are exact in bfloat16 and so are the products in float32;
// what rounds is the activation, to bfloat16, and the sum. A block of 128 threads makes 64 x 64 outputs in steps of 32.
constexpr int TILE = 64, STEP = 32, STRIDE = STEP + 8, WIDE = TILE + 8; // 16 bytes of padding, against bank conflicts of ldmatrix

__device__ __forceinline__ void mma_bf16(float *d, const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// activations stores x[row0.., k0..] in bfloat16, times scale[k] where there is one; outside the matrix it is 0.
__device__ __forceinline__ void activations(uint16_t *tile, const float *x, const float *scale, int row0, int rows, int k0, int k, int ld) {
    for (int i = threadIdx.x; i < TILE * STEP / 2; i += 128) {
        int r = i / (STEP / 2), c = i % (STEP / 2) * 2;
        float v[2] = {0.0f, 0.0f};
        for (int e = 0; e < 2; e++)
            if (row0 + r < rows && k0 + c + e < k) {
                v[e] = x[(size_t)(row0 + r) * ld + k0 + c + e];
                if (scale) v[e] *= scale[k0 + c + e];
            }
        *(u32 *)(tile + r * STRIDE + c) = bf16_pair(v[0], v[1]);
    }
}

// codes stores w[row0.., col0..], R rows of C codes, in bfloat16.
template <int R, int C> __device__ __forceinline__ void codes(uint16_t *tile, int stride, const int8_t *w, int row0, int rows, int col0, int cols, int ld) {
    for (int i = threadIdx.x; i < R * C / 4; i += 128) {
        int r = i / (C / 4), c = i % (C / 4) * 4;
        u32 four = row0 + r < rows && col0 + c < cols ? *(const u32 *)(w + (size_t)(row0 + r) * ld + col0 + c) : 0u;
        float v[4];
        for (int e = 0; e < 4; e++) v[e] = col0 + c + e < cols ? (float)(int8_t)(four >> (8 * e)) : 0.0f;
        *(u32 *)(tile + r * stride + c) = bf16_pair(v[0], v[1]);
        *(u32 *)(tile + r * stride + c + 2) = bf16_pair(v[2], v[3]);
    }
}

// w8a16_forward: y [m, ldy] = scale_j * sum_k bf16(x_ik) * w_jk (+ bias_j) (+ y_ij where add). ldw is a multiple of 4.
extern "C" __global__ void __launch_bounds__(128) w8a16_forward(const float *x, const int8_t *w, const float *scale, const float *bias, float *y,
    int m, int n, int k, int ldx, int ldw, int ldy, int add) {
    __shared__ __align__(16) uint16_t as[TILE * STRIDE], bs[TILE * STRIDE];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE, wr = (warp >> 1) * 32, wc = (warp & 1) * 32;
    float acc[2][4][4] = {};
    for (int k0 = 0; k0 < k; k0 += STEP) {
        activations(as, x, nullptr, row0, m, k0, k, ldx);
        codes<TILE, STEP>(bs, STRIDE, w, col0, n, k0, k, ldw);
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < STEP; kk += 16) {
            u32 fa[2][4], fb[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) load_matrices(fa[i], shared_address(as + (wr + i * 16 + (lane & 15)) * STRIDE + kk + (lane >> 4) * 8));
#pragma unroll
            for (int j = 0; j < 2; j++) load_matrices(fb[j], shared_address(bs + (wc + j * 16 + (lane & 15)) * STRIDE + kk + (lane >> 4) * 8));
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma_bf16(acc[i][j], fa[i], fb[j >> 1][j & 1], fb[j >> 1][(j & 1) + 2]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = row0 + wr + i * 16 + (lane >> 2) + (e >> 1) * 8, q = col0 + wc + j * 8 + (lane & 3) * 2 + (e & 1);
                if (r < m && q < n) {
                    float v = acc[i][j][e] * scale[q];
                    if (bias) v += bias[q];
                    float *out = y + (size_t)r * ldy + q;
                    *out = add ? *out + v : v;
                }
            }
}

// w8a16_backward: dx [m, lddx] (+)= sum_j bf16(dy_ij * scale_j) * w_jk: the scale goes into dy, so that w stays exact.
extern "C" __global__ void __launch_bounds__(128) w8a16_backward(const float *dy, const int8_t *w, const float *scale, float *dx,
    int m, int n, int k, int lddy, int ldw, int lddx, int add) {
    __shared__ __align__(16) uint16_t as[TILE * STRIDE], bs[STEP * WIDE];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE, wr = (warp >> 1) * 32, wc = (warp & 1) * 32;
    float acc[2][4][4] = {};
    for (int n0 = 0; n0 < n; n0 += STEP) {
        activations(as, dy, scale, row0, m, n0, n, lddy);
        codes<STEP, TILE>(bs, WIDE, w, n0, n, col0, k, ldw);
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < STEP; kk += 16) {
            u32 fa[2][4], fb[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) load_matrices(fa[i], shared_address(as + (wr + i * 16 + (lane & 15)) * STRIDE + kk + (lane >> 4) * 8));
#pragma unroll
            for (int j = 0; j < 2; j++) load_matrices_transposed(fb[j], shared_address(bs + (kk + (lane & 15)) * WIDE + wc + j * 16 + (lane >> 4) * 8));
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma_bf16(acc[i][j], fa[i], fb[j >> 1][(j & 1) * 2], fb[j >> 1][(j & 1) * 2 + 1]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = row0 + wr + i * 16 + (lane >> 2) + (e >> 1) * 8, q = col0 + wc + j * 8 + (lane & 3) * 2 + (e & 1);
                if (r < m && q < k) {
                    float *out = dx + (size_t)r * lddx + q;
                    *out = add ? *out + acc[i][j][e] : acc[i][j][e];
                }
            }
}
