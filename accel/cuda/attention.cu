#include "device.cuh"

// Attention over q, out [batch, tq, heads, size] and k, v [batch, tk, kv, size]: head h reads the keys of head h*kv/heads. Query t sees the
// keys s with real[b, s], and s <= t + offset where it is causal. A row that sees nothing gets 0, and lse +infinity, so that its
// probabilities are 0 in the backward pass, too.
//
// A warp makes one row. It takes 32 keys at a time: a lane has the score of its own key, and P of the size dimensions for the sums.
struct Shape { int batch, tq, tk, heads, kv, size, causal, offset; };

__device__ __forceinline__ bool visible(const uint8_t *real, const Shape &a, int b, int t, int s) {
    return s < a.tk && real[(size_t)b * a.tk + s] && !(a.causal && s > t + a.offset);
}

__device__ __forceinline__ float dot(const float *shared, const float *row, int size) {
    float x = 0.0f;
#pragma unroll 4
    for (int d = 0; d < size; d++) x = fmaf(shared[d], row[d], x);
    return x;
}

template <int P> __device__ __forceinline__ void forward(const float *q, const float *k, const float *v, const uint8_t *real, float *out, float *lse, Shape a, float scale) {
    __shared__ float query[4][P * 32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row = blockIdx.x * 4 + warp, rows = a.batch * a.tq * a.heads;
    bool live = row < rows;
    int h = row % a.heads, t = row / a.heads % a.tq, b = row / a.heads / a.tq, g = h * a.kv / a.heads;
    if (live)
        for (int d = lane; d < a.size; d += 32) query[warp][d] = q[(size_t)row * a.size + d];
    __syncwarp();
    if (!live) return;
    float acc[P] = {}, top = -__int_as_float(0x7f800000), sum = 0.0f;
    int end = a.causal ? min(a.tk, t + a.offset + 1) : a.tk;
    for (int s0 = 0; s0 < end; s0 += 32) {
        int s = s0 + lane;
        bool see = visible(real, a, b, t, s);
        float x = -__int_as_float(0x7f800000);
        if (see) x = scale * dot(query[warp], k + (((size_t)b * a.tk + s) * a.kv + g) * a.size, a.size);
        float next = warp_max(x);
        next = top > next ? top : next;
        if (next == -__int_as_float(0x7f800000)) continue; // nothing seen yet
        float keep = exponential(top - next), p = see ? exponential(x - next) : 0.0f;
        sum = fmaf(sum, keep, warp_sum(p));
#pragma unroll
        for (int i = 0; i < P; i++) acc[i] *= keep;
        int n = min(32, end - s0);
#pragma unroll 1
        for (int j = 0; j < n; j++) {
            float pj = __shfl_sync(FULL, p, j);
            if (pj == 0.0f) continue; // a value of padding may be NaN
            const float *vr = v + (((size_t)b * a.tk + s0 + j) * a.kv + g) * a.size;
#pragma unroll
            for (int i = 0; i < P; i++)
                if (lane + 32 * i < a.size) acc[i] = fmaf(pj, vr[lane + 32 * i], acc[i]);
        }
        top = next;
    }
#pragma unroll
    for (int i = 0; i < P; i++)
        if (lane + 32 * i < a.size) out[(size_t)row * a.size + lane + 32 * i] = sum > 0.0f || sum != sum ? __fdiv_rn(acc[i], sum) : 0.0f;
    if (lane == 0) lse[row] = sum > 0.0f || sum != sum ? top + logarithm(sum) : __int_as_float(0x7f800000);
}

// queries: dq and delta = sum_d dout*out of a row; ds = p*(dp - delta)*scale, p = exp(score - lse), dp = dout . v.
template <int P> __device__ __forceinline__ void queries(const float *q, const float *k, const float *v, const uint8_t *real, const float *out, const float *lse,
    const float *dout, float *dq, float *delta, Shape a, float scale) {
    __shared__ float query[4][P * 32], up[4][P * 32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row = blockIdx.x * 4 + warp;
    if (row >= a.batch * a.tq * a.heads) return;
    int h = row % a.heads, t = row / a.heads % a.tq, b = row / a.heads / a.tq, g = h * a.kv / a.heads;
    float del = 0.0f;
    for (int d = lane; d < a.size; d += 32) {
        size_t at = (size_t)row * a.size + d;
        query[warp][d] = q[at];
        up[warp][d] = dout[at];
        del = fmaf(dout[at], out[at], del);
    }
    __syncwarp();
    del = warp_sum(del);
    if (lane == 0) delta[row] = del;
    float acc[P] = {}, l = lse[row];
    int end = a.causal ? min(a.tk, t + a.offset + 1) : a.tk;
    for (int s0 = 0; s0 < end; s0 += 32) {
        int s = s0 + lane;
        float ds = 0.0f;
        if (visible(real, a, b, t, s)) {
            size_t at = (((size_t)b * a.tk + s) * a.kv + g) * a.size;
            float p = exponential(scale * dot(query[warp], k + at, a.size) - l);
            ds = (p * (dot(up[warp], v + at, a.size) - del)) * scale;
        }
        int n = min(32, end - s0);
#pragma unroll 1
        for (int j = 0; j < n; j++) {
            float dj = __shfl_sync(FULL, ds, j);
            if (dj == 0.0f) continue;
            const float *kr = k + (((size_t)b * a.tk + s0 + j) * a.kv + g) * a.size;
#pragma unroll
            for (int i = 0; i < P; i++)
                if (lane + 32 * i < a.size) acc[i] = fmaf(dj, kr[lane + 32 * i], acc[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < P; i++)
        if (lane + 32 * i < a.size) dq[(size_t)row * a.size + lane + 32 * i] = acc[i];
}

// keys: dk and dv of one key, over the queries of all heads that read it, in order.
template <int P> __device__ __forceinline__ void keys(const float *q, const float *k, const float *v, const uint8_t *real, const float *lse, const float *delta,
    const float *dout, float *dk, float *dv, Shape a, float scale) {
    __shared__ float key[4][P * 32], value[4][P * 32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row = blockIdx.x * 4 + warp;
    if (row >= a.batch * a.tk * a.kv) return;
    int g = row % a.kv, s = row / a.kv % a.tk, b = row / a.kv / a.tk, each = a.heads / a.kv;
    for (int d = lane; d < a.size; d += 32) {
        key[warp][d] = k[(size_t)row * a.size + d];
        value[warp][d] = v[(size_t)row * a.size + d];
    }
    __syncwarp();
    float ak[P] = {}, av[P] = {};
    int begin = a.causal ? max(0, s - a.offset) : 0;
    if (real[(size_t)b * a.tk + s])
        for (int h = g * each; h < (g + 1) * each; h++)
            for (int t0 = begin; t0 < a.tq; t0 += 32) {
                int t = t0 + lane;
                float p = 0.0f, ds = 0.0f;
                if (t < a.tq) {
                    size_t r = ((size_t)b * a.tq + t) * a.heads + h;
                    p = exponential(scale * dot(key[warp], q + r * a.size, a.size) - lse[r]);
                    ds = (p * (dot(value[warp], dout + r * a.size, a.size) - delta[r])) * scale;
                }
                int n = min(32, a.tq - t0);
#pragma unroll 1
                for (int j = 0; j < n; j++) {
                    float pj = __shfl_sync(FULL, p, j), dj = __shfl_sync(FULL, ds, j);
                    if (pj == 0.0f) continue;
                    size_t r = (((size_t)b * a.tq + t0 + j) * a.heads + h) * a.size;
#pragma unroll
                    for (int i = 0; i < P; i++)
                        if (lane + 32 * i < a.size) {
                            ak[i] = fmaf(dj, q[r + lane + 32 * i], ak[i]);
                            av[i] = fmaf(pj, dout[r + lane + 32 * i], av[i]);
                        }
                }
            }
#pragma unroll
    for (int i = 0; i < P; i++)
        if (lane + 32 * i < a.size) {
            dk[(size_t)row * a.size + lane + 32 * i] = ak[i];
            dv[(size_t)row * a.size + lane + 32 * i] = av[i];
        }
}

#define KERNELS(P, SIZE)                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(128) attention_forward_##SIZE(const float *q, const float *k, const float *v, const uint8_t *real, float *out, \
        float *lse, int batch, int tq, int tk, int heads, int kv, int size, int causal, int offset, float scale) {                              \
        forward<P>(q, k, v, real, out, lse, Shape{batch, tq, tk, heads, kv, size, causal, offset}, scale);                                      \
    }                                                                                                                                           \
    extern "C" __global__ void __launch_bounds__(128) attention_queries_##SIZE(const float *q, const float *k, const float *v, const uint8_t *real, \
        const float *out, const float *lse, const float *dout, float *dq, float *delta, int batch, int tq, int tk, int heads, int kv, int size, \
        int causal, int offset, float scale) {                                                                                                  \
        queries<P>(q, k, v, real, out, lse, dout, dq, delta, Shape{batch, tq, tk, heads, kv, size, causal, offset}, scale);                     \
    }                                                                                                                                           \
    extern "C" __global__ void __launch_bounds__(128) attention_keys_##SIZE(const float *q, const float *k, const float *v, const uint8_t *real, \
        const float *lse, const float *delta, const float *dout, float *dk, float *dv, int batch, int tq, int tk, int heads, int kv, int size,  \
        int causal, int offset, float scale) {                                                                                                  \
        keys<P>(q, k, v, real, lse, delta, dout, dk, dv, Shape{batch, tq, tk, heads, kv, size, causal, offset}, scale);                         \
    }

KERNELS(2, 64)
KERNELS(4, 128)
KERNELS(8, 256)
