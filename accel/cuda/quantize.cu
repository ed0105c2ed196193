#include "device.cuh"

// quantize_rows writes the codes [rows, ldc] and the absmax [rows] of x [rows, ldx]: s = fl(fl(1/absmax)*127), code = rint(fl(x*s)),
// half to even. Codes beyond cols are 0 up to ldc. Where x*s is no finite number the code is 0. One block of 128 threads a row.
extern "C" __global__ void __launch_bounds__(128) quantize_rows(const float *x, int8_t *codes, float *absmax, int cols, int ldx, int ldc) {
    __shared__ float warps[4];
    const float *row = x + (size_t)blockIdx.x * ldx;
    float m = 0.0f;
    for (int j = threadIdx.x; j < cols; j += 128) { float a = fabsf(row[j]); m = a > m || a != a ? a : m; }
    m = block_max(m, warps);
    if (threadIdx.x == 0) absmax[blockIdx.x] = m;
    float s = __frcp_rn(m) * 127.0f;
    for (int j = threadIdx.x; j < ldc; j += 128) {
        float v = j < cols ? rintf(row[j] * s) : 0.0f;
        codes[(size_t)blockIdx.x * ldc + j] = fabsf(v) <= 127.0f ? (int8_t)(int)v : (int8_t)0;
    }
}
