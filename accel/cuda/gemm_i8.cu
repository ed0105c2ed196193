#include "device.cuh"

// gemm_i8 computes C [m, n] = A [m, lda] * B [n, ldb]^T in int32, exactly for k <= 133,144 codes of [-127, 127]; lda and ldb are multiples of 16.
// With scales, y = (C * sa_i) * sb_j goes to y and C may be null. A block of 128 threads makes 64 x 64 outputs, a warp 32 x 32,
// from tiles of 64 bytes of k in two stages of asynchronous copies.
constexpr int TILE = 64, STRIDE = 80; // 16 bytes of padding: the eight rows that ldmatrix reads at once lie in different banks

__device__ __forceinline__ void mma_s8(int *d, const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void fetch(int8_t *tile, const int8_t *x, int row0, int rows, int k0, int k, int ld) {
    for (int i = threadIdx.x; i < TILE * 4; i += 128) {
        int r = i >> 2, c = (i & 3) * 16;
        int left = row0 + r < rows ? min(max(k - k0 - c, 0), 16) : 0;
        copy16(tile + r * STRIDE + c, left > 0 ? x + (size_t)(row0 + r) * ld + k0 + c : x, left);
    }
}

extern "C" __global__ void __launch_bounds__(128) gemm_i8(const int8_t *a, const int8_t *b, int *c, float *y, const float *sa, const float *sb,
    int m, int n, int k, int lda, int ldb, int ldc) {
    __shared__ __align__(16) int8_t as[2][TILE * STRIDE], bs[2][TILE * STRIDE];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE, wr = (warp >> 1) * 32, wc = (warp & 1) * 32;
    int acc[2][4][4] = {};
    int steps = (k + TILE - 1) / TILE;
    fetch(as[0], a, row0, m, 0, k, lda);
    fetch(bs[0], b, col0, n, 0, k, ldb);
    copy_commit();
    for (int s = 0; s < steps; s++) {
        if (s + 1 < steps) {
            fetch(as[(s + 1) & 1], a, row0, m, (s + 1) * TILE, k, lda);
            fetch(bs[(s + 1) & 1], b, col0, n, (s + 1) * TILE, k, ldb);
        }
        copy_commit(); // an empty group in the last step keeps the count
        copy_wait<1>();
        __syncthreads();
        const int8_t *at = as[s & 1], *bt = bs[s & 1];
#pragma unroll
        for (int kk = 0; kk < TILE; kk += 32) {
            u32 fa[2][4], fb[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) load_matrices(fa[i], shared_address(at + (wr + i * 16 + (lane & 15)) * STRIDE + kk + (lane >> 4) * 16));
#pragma unroll
            for (int j = 0; j < 2; j++) load_matrices(fb[j], shared_address(bt + (wc + j * 16 + (lane & 15)) * STRIDE + kk + (lane >> 4) * 16));
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma_s8(acc[i][j], fa[i], fb[j >> 1][j & 1], fb[j >> 1][(j & 1) + 2]);
        }
        __syncthreads(); // the next step's copies write the tile that was just read
    }
    copy_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = row0 + wr + i * 16 + (lane >> 2) + (e >> 1) * 8, q = col0 + wc + j * 8 + (lane & 3) * 2 + (e & 1);
                if (r < m && q < n) {
                    if (c) c[(size_t)r * ldc + q] = acc[i][j][e];
                    if (y) y[(size_t)r * ldc + q] = ((float)acc[i][j][e] * sa[r]) * sb[q];
                }
            }
}
