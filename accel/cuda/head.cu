#include "device.cuh"

// The end of a language model over a chunk of rows: logits [rows, vocab] come from the linear layer of the head, and are never there for
// all tokens at once.

// head_forward: with x = logits*inverse (1/temperature) of a row, m = max x and S = sum exp(x - m): lse = m + ln S, logp = x_id - m - ln S,
// entropy = ln S - sum exp(x - m)*(x - m)/S. One block of 256 threads a row. An id outside the vocabulary leaves logp 0.
extern "C" __global__ void __launch_bounds__(256) head_forward(const float *logits, const int *ids, float *logp, float *entropy, float *lse, int vocab, float inverse) {
    __shared__ float warps[8];
    const float *row = logits + (size_t)blockIdx.x * vocab;
    float m = -__int_as_float(0x7f800000);
    for (int j = threadIdx.x; j < vocab; j += 256) { float x = row[j] * inverse; m = x > m || x != x ? x : m; }
    m = block_max(m, warps);
    float s = 0.0f, w = 0.0f;
    for (int j = threadIdx.x; j < vocab; j += 256) {
        float d = row[j] * inverse - m, e = exponential(d);
        s += e;
        if (e != 0.0f) w = fmaf(e, d, w); // 0 * -infinity of a forbidden token is no part of the sum
    }
    s = block_sum(s, warps);
    w = block_sum(w, warps);
    if (threadIdx.x == 0) {
        float l = logarithm(s);
        int id = ids[blockIdx.x];
        logp[blockIdx.x] = id >= 0 && id < vocab ? (row[id] * inverse - m) - l : 0.0f;
        entropy[blockIdx.x] = l - __fdiv_rn(w, s);
        lse[blockIdx.x] = m + l;
    }
}

// head_backward turns logits into their gradient in place: with p = exp(x - lse),
// d = (dlogp*([j = id] - p) - dentropy*p*(x - lse + entropy)) * inverse.
extern "C" __global__ void __launch_bounds__(256) head_backward(float *logits, const int *ids, const float *lse, const float *entropy, const float *dlogp,
    const float *dentropy, int vocab, float inverse) {
    float *row = logits + (size_t)blockIdx.x * vocab;
    float l = lse[blockIdx.x], h = entropy[blockIdx.x], a = dlogp[blockIdx.x], b = dentropy ? dentropy[blockIdx.x] : 0.0f;
    int id = ids[blockIdx.x];
    for (int j = threadIdx.x; j < vocab; j += 256) {
        float lp = row[j] * inverse - l, p = exponential(lp);
        float d = (j == id ? a : 0.0f) - a * p;
        if (p != 0.0f) d = fmaf(-(b * p), lp + h, d);
        row[j] = d * inverse;
    }
}

// policy_loss: of every token with its weight w (mask and aggregation in one number), with r = exp(new - old):
// loss = -min(A*r, A*clip(r, low, high)) + beta*(exp(ref - new) - (ref - new) - 1), times w; slope is its derivative by new.
// The tie of min takes the unclipped branch. ref may be null where beta is 0. A token of weight 0 gives 0 whatever it holds.
extern "C" __global__ void policy_loss(const float *logp, const float *old, const float *ref, const float *advantage, const float *w, float *loss, float *slope,
    int n, float low, float high, float beta) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (w[i] == 0.0f) { loss[i] = 0.0f; slope[i] = 0.0f; return; }
    float r = exponential(logp[i] - old[i]), clipped = fminf(fmaxf(r, low), high), a = advantage[i];
    float free = a * r, bound = a * clipped;
    bool inside = !(bound < free);
    float v = inside ? -free : -bound, d = inside ? -free : 0.0f;
    if (beta != 0.0f) {
        float u = ref[i] - logp[i], e = exponential(u);
        // e - 1 - u cancels near 0: there the series u^2/2 + u^3/6 + u^4/24 + u^5/120 has an error below u^6/720.
        float k = fabsf(u) < 0.125f ? (u * u) * fmaf(u, fmaf(u, fmaf(u, 0.0083333333f, 0.041666668f), 0.16666667f), 0.5f) : (e - 1.0f) - u;
        float slopeK = fabsf(u) < 0.125f ? -u * fmaf(u, fmaf(u, fmaf(u, 0.041666668f, 0.16666667f), 0.5f), 1.0f) : 1.0f - e;
        v = fmaf(beta, k, v);
        d = fmaf(beta, slopeK, d);
    }
    loss[i] = w[i] * v;
    slope[i] = w[i] * d;
}
