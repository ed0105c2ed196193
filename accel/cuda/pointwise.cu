#include "device.cuh"

// rope rotates heads in place: x [tokens, heads, size], the first 2*pairs elements of each head, by the angles whose cosines and sines are
// cosine, sine [positions, pairs]. interleaved pairs 2i with 2i+1 (GPT-J), else i with i+pairs (Llama). sign -1 rotates back, which is
// the backward pass. One thread a pair.
extern "C" __global__ void rope(float *x, const float *cosine, const float *sine, const int *position, int tokens, int heads, int size, int pairs,
    int interleaved, float sign) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * heads * pairs) return;
    int p = i % pairs, head = i / pairs, t = head / heads;
    float *h = x + (size_t)head * size;
    float *u = h + (interleaved ? 2 * p : p), *v = h + (interleaved ? 2 * p + 1 : p + pairs);
    float c = cosine[(size_t)position[t] * pairs + p], s = sign * sine[(size_t)position[t] * pairs + p];
    float a = *u, b = *v;
    *u = fmaf(a, c, -(b * s));
    *v = fmaf(b, c, a * s);
}

// silu_mul_forward: y = g * sigmoid(g) * u.
extern "C" __global__ void silu_mul_forward(const float *g, const float *u, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = __fdiv_rn(g[i], 1.0f + exponential(-g[i])) * u[i];
}

// silu_mul_backward: du = g*sigma*dy, dg = u*sigma*(1 + g*(1 - sigma))*dy.
extern "C" __global__ void silu_mul_backward(const float *g, const float *u, const float *dy, float *dg, float *du, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float e = exponential(-g[i]), one = 1.0f + e, sigma = __frcp_rn(one);
    float rest = e > 3.0e38f ? 1.0f : __fdiv_rn(e, one); // 1 - sigma without cancellation
    du[i] = (g[i] * sigma) * dy[i];
    dg[i] = (u[i] * dy[i]) * (sigma * fmaf(g[i], rest, 1.0f));
}

constexpr float GELU_A = 0.7978845608028654f, GELU_B = 0.044715f; // sqrt(2/pi)

// gelu_forward: the tanh form, x/2*(1 + tanh z) = x*sigmoid(2z) with z = sqrt(2/pi)*(x + 0.044715 x^3).
extern "C" __global__ void gelu_forward(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], z = GELU_A * fmaf(GELU_B * (v * v), v, v);
    y[i] = __fdiv_rn(v, 1.0f + exponential(-2.0f * z));
}

// gelu_backward: dx = dy*(sigma + 2x*sigma*(1 - sigma)*dz/dx), sigma = sigmoid(2z).
extern "C" __global__ void gelu_backward(const float *x, const float *dy, float *dx, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], z = GELU_A * fmaf(GELU_B * (v * v), v, v), slope = GELU_A * fmaf(3.0f * GELU_B, v * v, 1.0f);
    float e = exponential(-2.0f * z), one = 1.0f + e, sigma = __frcp_rn(one);
    float rest = e > 3.0e38f ? 1.0f : __fdiv_rn(e, one);
    float both = sigma * rest; // where one factor is 0, an infinite v^2 must not make NaN of it
    dx[i] = dy[i] * (both == 0.0f ? sigma : fmaf((2.0f * v) * both, slope, sigma));
}

// add: y += a * x.
extern "C" __global__ void add(float *y, const float *x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(a, x[i], y[i]);
}

// embedding: y [tokens, c] = codes [vocab, ld] * scale of the row of each id (+ the row of position in wpe [positions, c] where given).
extern "C" __global__ void embedding(const int8_t *codes, const float *scale, const float *wpe, const int *ids, const int *position, float *y, int tokens, int c, int ld) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * c) return;
    int t = i / c, j = i % c;
    float v = (float)codes[(size_t)ids[t] * ld + j] * scale[ids[t]];
    if (wpe) v += wpe[(size_t)position[t] * c + j];
    y[i] = v;
}

// sum: z = x + y.
extern "C" __global__ void sum(const float *x, const float *y, float *z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}

// fill: y = a.
extern "C" __global__ void fill(float *y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a;
}

// gather: y [n, c] = the rows of x [., c] whose numbers are given.
extern "C" __global__ void gather(const float *x, const int *row, float *y, int n, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * c) y[i] = x[(size_t)row[i / c] * c + i % c];
}

// scatter: the rows of y [., c] whose numbers are given, each at most once, become x [n, c].
extern "C" __global__ void scatter(const float *x, const int *row, float *y, int n, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * c) y[(size_t)row[i / c] * c + i % c] = x[i];
}
