#include "device.cuh"

// sum_squares: partial[block] = sum of x^2 over 4096 elements in float64, in an order that only the index decides.
extern "C" __global__ void __launch_bounds__(256) sum_squares(const float *x, double *partial, int n) {
    __shared__ double warps[8];
    double s = 0;
    for (int j = threadIdx.x; j < 4096; j += 256) {
        long long i = (long long)blockIdx.x * 4096 + j;
        if (i < n) s = fma((double)x[i], (double)x[i], s);
    }
    s = block_sum(s, warps);
    if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

// adamw: g is multiplied by clip; m = b1*m + (1-b1)*g, v = b2*v + (1-b2)*g^2, p = p*(1 - lr*decay) - lr*(m*c1)/(sqrt(v*c2) + eps),
// where c1, c2 are 1/(1-b1^t), 1/(1-b2^t), taken in float64 by the caller.
extern "C" __global__ void adamw(float *p, const float *g, float *m, float *v, int n, float clip, float lr, float b1, float b2, float one1, float one2,
    float eps, float keep, float c1, float c2) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = g[i] * clip;
    float mm = fmaf(b1, m[i], one1 * x), vv = fmaf(b2, v[i], one2 * (x * x));
    m[i] = mm;
    v[i] = vv;
    p[i] = fmaf(-lr, __fdiv_rn(mm * c1, __fsqrt_rn(vv * c2) + eps), p[i] * keep);
}

// project_dot: partial [blocks, k] = sum over 4096 rows of q [d, k] * g in float64. One block a chunk, one column after another.
extern "C" __global__ void __launch_bounds__(256) project_dot(const float *q, const float *g, double *partial, int d, int k) {
    __shared__ double warps[8];
    for (int c = 0; c < k; c++) {
        double s = 0;
        for (int j = threadIdx.x; j < 4096; j += 256) {
            long long i = (long long)blockIdx.x * 4096 + j;
            if (i < d) s = fma((double)q[i * k + c], (double)g[i], s);
        }
        s = block_sum(s, warps);
        if (threadIdx.x == 0) partial[(size_t)blockIdx.x * k + c] = s;
    }
}

// sum_partials: c [k] = sum of partial [blocks, k] over the blocks in their order. One thread a column.
extern "C" __global__ void sum_partials(const double *partial, double *c, int blocks, int k) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= k) return;
    double s = 0;
    for (int b = 0; b < blocks; b++) s += partial[(size_t)b * k + j];
    c[j] = s;
}

// project_apply: g -= sum_k q_ik*c_k, the sum in float64, one rounding at the end.
extern "C" __global__ void project_apply(const float *q, const double *c, float *g, int d, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= d) return;
    double s = g[i];
    for (int j = 0; j < k; j++) s = fma(-(double)q[(size_t)i * k + j], c[j], s);
    g[i] = (float)s;
}
