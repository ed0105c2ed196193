#include "device.cuh"

// Norms over rows of c channels, one block of 128 threads a row. The weights are frozen: backward gives dx alone.

// rmsnorm_forward: y = x * r * w, r = 1/sqrt(mean x^2 + eps) is kept for the backward pass.
extern "C" __global__ void __launch_bounds__(128) rmsnorm_forward(const float *x, const float *w, float *y, float *rstd, int c, float eps) {
    __shared__ float warps[4];
    const float *row = x + (size_t)blockIdx.x * c;
    float s = 0.0f;
    for (int j = threadIdx.x; j < c; j += 128) s = fmaf(row[j], row[j], s);
    s = block_sum(s, warps);
    float r = __frcp_rn(__fsqrt_rn(__fdiv_rn(s, (float)c) + eps));
    if (threadIdx.x == 0) rstd[blockIdx.x] = r;
    for (int j = threadIdx.x; j < c; j += 128) y[(size_t)blockIdx.x * c + j] = (row[j] * r) * w[j];
}

// rmsnorm_backward: dx (+)= r * (w*dy - n * mean(n * w*dy)) with n = x*r.
extern "C" __global__ void __launch_bounds__(128) rmsnorm_backward(const float *x, const float *w, const float *rstd, const float *dy, float *dx, int c, int add) {
    __shared__ float warps[4];
    size_t at = (size_t)blockIdx.x * c;
    float r = rstd[blockIdx.x], s = 0.0f;
    for (int j = threadIdx.x; j < c; j += 128) s = fmaf(x[at + j] * r, w[j] * dy[at + j], s);
    s = __fdiv_rn(block_sum(s, warps), (float)c);
    for (int j = threadIdx.x; j < c; j += 128) {
        float v = r * fmaf(-(x[at + j] * r), s, w[j] * dy[at + j]);
        dx[at + j] = add ? dx[at + j] + v : v;
    }
}

// layernorm_forward: y = (x - mu) * r * w + b in two passes; stats holds mu and r of each row.
extern "C" __global__ void __launch_bounds__(128) layernorm_forward(const float *x, const float *w, const float *b, float *y, float *stats, int c, float eps) {
    __shared__ float warps[4];
    const float *row = x + (size_t)blockIdx.x * c;
    float s = 0.0f;
    for (int j = threadIdx.x; j < c; j += 128) s += row[j];
    float mu = __fdiv_rn(block_sum(s, warps), (float)c), v = 0.0f;
    for (int j = threadIdx.x; j < c; j += 128) { float d = row[j] - mu; v = fmaf(d, d, v); }
    float r = __frcp_rn(__fsqrt_rn(__fdiv_rn(block_sum(v, warps), (float)c) + eps));
    if (threadIdx.x == 0) { stats[2 * blockIdx.x] = mu; stats[2 * blockIdx.x + 1] = r; }
    for (int j = threadIdx.x; j < c; j += 128) y[(size_t)blockIdx.x * c + j] = fmaf((row[j] - mu) * r, w[j], b[j]);
}

// layernorm_backward: dx (+)= r * (g - mean g - n * mean(n*g)) with g = w*dy, n = (x - mu)*r.
extern "C" __global__ void __launch_bounds__(128) layernorm_backward(const float *x, const float *w, const float *stats, const float *dy, float *dx, int c, int add) {
    __shared__ float warps[4];
    size_t at = (size_t)blockIdx.x * c;
    float mu = stats[2 * blockIdx.x], r = stats[2 * blockIdx.x + 1], s = 0.0f, t = 0.0f;
    for (int j = threadIdx.x; j < c; j += 128) {
        float g = w[j] * dy[at + j];
        s += g;
        t = fmaf((x[at + j] - mu) * r, g, t);
    }
    s = __fdiv_rn(block_sum(s, warps), (float)c);
    t = __fdiv_rn(block_sum(t, warps), (float)c);
    for (int j = threadIdx.x; j < c; j += 128) {
        float v = r * fmaf(-((x[at + j] - mu) * r), t, w[j] * dy[at + j] - s);
        dx[at + j] = add ? dx[at + j] + v : v;
    }
}
