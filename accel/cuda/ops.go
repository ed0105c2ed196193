package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// Context holds the kernels of a device, loaded when they are first used. All tensors are row-major.
type Context struct {
	Device
	texts   map[string]string // PTX that stands in for a module's own
	modules map[string]Module
	kernels map[string]Kernel

	listed   bool     // launches are noted
	launched []string // in order, until [Host.Launched] asks for them
}

// NewContext returns a context over a device.
func NewContext(d Device) *Context {
	return &Context{Device: d, modules: map[string]Module{}, kernels: map[string]Kernel{}}
}

func (c *Context) launch(module, kernel string, grid, block [3]int, args ...any) error {
	k := c.kernels[kernel]
	if k == nil {
		m := c.modules[module]
		if m == nil {
			text, err := c.text(module)
			if err != nil {
				return err
			}
			if m, err = c.Load(text); err != nil {
				return fmt.Errorf("cuda: module %s: %w", module, err)
			}
			c.modules[module] = m
		}
		var err error
		if k, err = m.Kernel(kernel); err != nil {
			return err
		}
		c.kernels[kernel] = k
	}
	c.note(kernel)
	return k.Launch(grid, block, 0, args...)
}

// note keeps the names of kernels that a [Host] launched; a model launches without end and is not listed.
func (c *Context) note(kernel string) {
	if c.listed {
		c.launched = append(c.launched, kernel)
	}
}

func (c *Context) text(module string) (string, error) {
	if text, ok := c.texts[module]; ok {
		return text, nil
	}
	return PTX(module)
}

// Number is what a device holds.
type Number interface {
	~int8 | ~uint8 | ~int32 | ~float32 | ~float64
}

// NewBuffer allocates n numbers that hold nothing yet; none is the pointer 0.
func NewBuffer[T Number](d Device, n int) (Pointer, error) {
	if n == 0 {
		return 0, nil
	}
	return d.Alloc(int64(n) * int64(unsafe.Sizeof(*new(T))))
}

// ToDevice allocates memory for x and copies it there.
func ToDevice[T Number](d Device, x []T) (Pointer, error) {
	p, err := NewBuffer[T](d, len(x))
	if err != nil || p == 0 {
		return p, err
	}
	return p, d.Upload(p, raw(x))
}

// Write copies x to memory that was allocated before.
func Write[T Number](d Device, p Pointer, x []T) error { return d.Upload(p, raw(x)) }

// FromDevice copies len(x) numbers to the host.
func FromDevice[T Number](d Device, x []T, p Pointer) error { return d.Download(raw(x), p) }

// raw is x as bytes in the order of this machine, which is little-endian on every platform that has a CUDA driver.
func raw[T Number](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(x[0])))
}

var errShape = errors.New("cuda: sizes do not fit")

// sizes refuses what a kernel's int32 cannot hold.
func sizes(n ...int) error {
	for _, v := range n {
		if v < 0 || v > math.MaxInt32 {
			return fmt.Errorf("%w: %d", errShape, v)
		}
	}
	return nil
}

func blocks(n, of int) int { return (n + of - 1) / of }

// QuantizeRows writes codes [rows, ldc] int8 and absmax [rows] float32 of x [rows, ldx] float32, of which cols columns count; codes
// beyond them are 0. The arithmetic is reference/quant.Quantize's for float32.
func (c *Context) QuantizeRows(x, codes, absmax Pointer, rows, cols, ldx, ldc int) error {
	if err := sizes(rows, cols, ldx, ldc); err != nil || rows == 0 {
		return err
	}
	if cols > ldx || cols > ldc {
		return errShape
	}
	return c.launch("quantize", "quantize_rows", [3]int{rows, 1, 1}, [3]int{128, 1, 1}, x, codes, absmax, int32(cols), int32(ldx), int32(ldc))
}

// MaxK is the longest sum of products of codes in [−127, 127] that int32 holds.
const MaxK = 133144

// GemmInt8 computes C = A·Bᵀ for codes a [m, lda] and b [n, ldb], of which k columns count: into c [m, ldc] int32 exactly, and into y
// [m, ldc] float32 as (C·sa_i)·sb_j. Either result may be 0. lda and ldb are multiples of 16; k is at most MaxK.
func (c *Context) GemmInt8(a, b, out, y, sa, sb Pointer, m, n, k, lda, ldb, ldc int) error {
	if err := sizes(m, n, k, lda, ldb, ldc); err != nil || m == 0 || n == 0 {
		return err
	}
	if k > lda || k > ldb || n > ldc || lda%16 != 0 || ldb%16 != 0 || k > MaxK {
		return fmt.Errorf("%w: int8 product of %d×%d and %d×%d, leading dimensions %d, %d, %d (multiples of 16; k at most %d)", errShape, m, k, n, k, lda, ldb, ldc, MaxK)
	}
	return c.launch("gemm_i8", "gemm_i8", [3]int{blocks(n, 64), blocks(m, 64), 1}, [3]int{128, 1, 1}, a, b, out, y, sa, sb, int32(m), int32(n), int32(k), int32(lda), int32(ldb), int32(ldc))
}

// LinearForward computes y [m, n] = scale_j·Σ_k bf16(x_ik)·w_jk + bias_j for x [m, k] float32 and codes w [n, ldw]; bias may be 0. With
// add it is added to y.
func (c *Context) LinearForward(x, w, scale, bias, y Pointer, m, n, k, ldw int, add bool) error {
	if err := sizes(m, n, k, ldw); err != nil || m == 0 || n == 0 {
		return err
	}
	if k > ldw || ldw%4 != 0 {
		return fmt.Errorf("%w: k %d, leading dimension %d of codes (a multiple of 4)", errShape, k, ldw)
	}
	return c.launch("w8a16", "w8a16_forward", [3]int{blocks(n, 64), blocks(m, 64), 1}, [3]int{128, 1, 1}, x, w, scale, bias, y, int32(m), int32(n), int32(k), int32(k), int32(ldw), int32(n), word(add))
}

// LinearBackward computes dx [m, k] = Σ_j bf16(dy_ij·scale_j)·w_jk for dy [m, n]. With add it is added to dx.
func (c *Context) LinearBackward(dy, w, scale, dx Pointer, m, n, k, ldw int, add bool) error {
	if err := sizes(m, n, k, ldw); err != nil || m == 0 || k == 0 {
		return err
	}
	if k > ldw || ldw%4 != 0 {
		return fmt.Errorf("%w: k %d, leading dimension %d of codes (a multiple of 4)", errShape, k, ldw)
	}
	return c.launch("w8a16", "w8a16_backward", [3]int{blocks(k, 64), blocks(m, 64), 1}, [3]int{128, 1, 1}, dy, w, scale, dx, int32(m), int32(n), int32(k), int32(n), int32(ldw), int32(k), word(add))
}

// Gemm computes C [m, n] = alpha·op(A)·op(B) in float32, added to C where add. A is [m, k], or [k, m] where ta; B is [k, n], or [n, k]
// where tb. The sum runs in the order of k with fused multiply-adds.
func (c *Context) Gemm(a, b, out Pointer, m, n, k int, ta, tb bool, alpha float32, add bool) error {
	if err := sizes(m, n, k); err != nil || m == 0 || n == 0 {
		return err
	}
	ai, ak, bk, bj := k, 1, n, 1
	if ta {
		ai, ak = 1, m
	}
	if tb {
		bk, bj = 1, k
	}
	return c.launch("gemm_f32", "gemm_f32", [3]int{blocks(n, 64), blocks(m, 64), 1}, [3]int{256, 1, 1}, a, b, out, int32(m), int32(n), int32(k), int32(ai), int32(ak), int32(bk), int32(bj), int32(n), alpha, word(add))
}

func word(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// RMSNormForward computes y = x·r·w with r = 1/√(mean x² + eps) over rows of n channels, and keeps r [rows].
func (c *Context) RMSNormForward(x, w, y, rstd Pointer, rows, n int, eps float32) error {
	return c.rows("norm", "rmsnorm_forward", 128, rows, n, x, w, y, rstd, int32(n), eps)
}

// RMSNormBackward computes dx = r·(w·dy − x·r·mean(x·r·w·dy)), added to dx where add.
func (c *Context) RMSNormBackward(x, w, rstd, dy, dx Pointer, rows, n int, add bool) error {
	return c.rows("norm", "rmsnorm_backward", 128, rows, n, x, w, rstd, dy, dx, int32(n), word(add))
}

// LayerNormForward computes y = (x − μ)·r·w + b and keeps μ and r in stats [rows, 2].
func (c *Context) LayerNormForward(x, w, b, y, stats Pointer, rows, n int, eps float32) error {
	return c.rows("norm", "layernorm_forward", 128, rows, n, x, w, b, y, stats, int32(n), eps)
}

// LayerNormBackward computes dx = r·(g − mean g − n·mean(n·g)), g = w·dy, n = (x − μ)·r, added to dx where add.
func (c *Context) LayerNormBackward(x, w, stats, dy, dx Pointer, rows, n int, add bool) error {
	return c.rows("norm", "layernorm_backward", 128, rows, n, x, w, stats, dy, dx, int32(n), word(add))
}

func (c *Context) rows(module, kernel string, threads, rows, n int, args ...any) error {
	if err := sizes(rows, n); err != nil || rows == 0 {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%w: rows without columns", errShape)
	}
	return c.launch(module, kernel, [3]int{rows, 1, 1}, [3]int{threads, 1, 1}, args...)
}

// each launches one thread for each of n elements.
func (c *Context) each(module, kernel string, n int, args ...any) error {
	if err := sizes(n); err != nil || n == 0 {
		return err
	}
	return c.launch(module, kernel, [3]int{blocks(n, 256), 1, 1}, [3]int{256, 1, 1}, args...)
}

// RoPE rotates x [tokens, heads, size] in place: pairs of each head's first 2·pairs elements by the angles whose cosine and sine [positions,
// pairs] are given. interleaved pairs 2i with 2i+1, else i with i+pairs. inverse rotates back: the backward pass.
func (c *Context) RoPE(x, cosine, sine, position Pointer, tokens, heads, size, pairs int, interleaved, inverse bool) error {
	if 2*pairs > size {
		return fmt.Errorf("%w: %d pairs in heads of %d", errShape, pairs, size)
	}
	sign := float32(1)
	if inverse {
		sign = -1
	}
	return c.each("pointwise", "rope", tokens*heads*pairs, x, cosine, sine, position, int32(tokens), int32(heads), int32(size), int32(pairs), word(interleaved), sign)
}

// SiLUMulForward computes y = g·σ(g)·u of n elements.
func (c *Context) SiLUMulForward(g, u, y Pointer, n int) error {
	return c.each("pointwise", "silu_mul_forward", n, g, u, y, int32(n))
}

// SiLUMulBackward computes du = g·σ·dy and dg = u·σ·(1 + g·(1 − σ))·dy.
func (c *Context) SiLUMulBackward(g, u, dy, dg, du Pointer, n int) error {
	return c.each("pointwise", "silu_mul_backward", n, g, u, dy, dg, du, int32(n))
}

// GELUForward computes y = x/2·(1 + tanh(√(2/π)·(x + 0.044715x³))).
func (c *Context) GELUForward(x, y Pointer, n int) error {
	return c.each("pointwise", "gelu_forward", n, x, y, int32(n))
}

// GELUBackward computes dx = dy·GELU'(x).
func (c *Context) GELUBackward(x, dy, dx Pointer, n int) error {
	return c.each("pointwise", "gelu_backward", n, x, dy, dx, int32(n))
}

// Add computes y += a·x.
func (c *Context) Add(y, x Pointer, a float32, n int) error {
	return c.each("pointwise", "add", n, y, x, a, int32(n))
}

// Sum computes z = x + y.
func (c *Context) Sum(x, y, z Pointer, n int) error {
	return c.each("pointwise", "sum", n, x, y, z, int32(n))
}

// Fill sets n numbers of y to a.
func (c *Context) Fill(y Pointer, a float32, n int) error {
	return c.each("pointwise", "fill", n, y, a, int32(n))
}

// Gather stores in y [n, width] the rows of x whose numbers are given.
func (c *Context) Gather(x, rows, y Pointer, n, width int) error {
	return c.each("pointwise", "gather", n*width, x, rows, y, int32(n), int32(width))
}

// Scatter stores x [n, width] in the rows of y whose numbers are given, each at most once.
func (c *Context) Scatter(x, rows, y Pointer, n, width int) error {
	return c.each("pointwise", "scatter", n*width, x, rows, y, int32(n), int32(width))
}

// Embedding computes y [tokens, n] = codes[id]·scale[id], plus wpe[position] where wpe is not 0. codes are [vocabulary, ld].
func (c *Context) Embedding(codes, scale, wpe, ids, position, y Pointer, tokens, n, ld int) error {
	return c.each("pointwise", "embedding", tokens*n, codes, scale, wpe, ids, position, y, int32(tokens), int32(n), int32(ld))
}

// Attention says what attends to what: q [Batch, TQ, Heads, Size], k and v [Batch, TK, KV, Size], and real [Batch, TK] uint8, 0 at padding. A
// causal query t sees the keys up to t + Offset.
type Attention struct {
	Batch, TQ, TK, Heads, KV, Size int
	Causal                         bool
	Offset                         int
	Scale                          float32
}

func (a Attention) check() (suffix string, err error) {
	if err := sizes(a.Batch, a.TQ, a.TK, a.Heads, a.KV, a.Size, a.Batch*a.TQ*a.Heads, a.Batch*a.TK*a.KV); err != nil {
		return "", err
	}
	if a.KV < 1 || a.Heads%max(a.KV, 1) != 0 || a.Size < 1 || a.Size > 256 || a.Offset < 0 {
		return "", fmt.Errorf("%w: attention %+v (heads a multiple of KV, size at most 256)", errShape, a)
	}
	for _, s := range []int{64, 128} {
		if a.Size <= s {
			return fmt.Sprint(s), nil
		}
	}
	return "256", nil
}

func (a Attention) tail() []any {
	return []any{int32(a.Batch), int32(a.TQ), int32(a.TK), int32(a.Heads), int32(a.KV), int32(a.Size), word(a.Causal), int32(a.Offset), a.Scale}
}

// AttentionForward computes out [Batch, TQ, Heads, Size] and lse [Batch, TQ, Heads], the logarithm of each row's sum; +Inf where a row
// sees nothing and out is 0.
func (c *Context) AttentionForward(q, k, v, real, out, lse Pointer, a Attention) error {
	size, err := a.check()
	if err != nil || a.Batch*a.TQ*a.Heads == 0 {
		return err
	}
	return c.launch("attention", "attention_forward_"+size, [3]int{blocks(a.Batch*a.TQ*a.Heads, 4), 1, 1}, [3]int{128, 1, 1}, append([]any{q, k, v, real, out, lse}, a.tail()...)...)
}

// AttentionBackward computes dq, dk and dv from dout; delta [Batch, TQ, Heads] is scratch.
func (c *Context) AttentionBackward(q, k, v, real, out, lse, dout, dq, dk, dv, delta Pointer, a Attention) error {
	size, err := a.check()
	if err != nil || a.Batch*a.TQ*a.Heads == 0 {
		return err
	}
	if err := c.launch("attention", "attention_queries_"+size, [3]int{blocks(a.Batch*a.TQ*a.Heads, 4), 1, 1}, [3]int{128, 1, 1}, append([]any{q, k, v, real, out, lse, dout, dq, delta}, a.tail()...)...); err != nil {
		return err
	}
	return c.launch("attention", "attention_keys_"+size, [3]int{blocks(a.Batch*a.TK*a.KV, 4), 1, 1}, [3]int{128, 1, 1}, append([]any{q, k, v, real, lse, delta, dout, dk, dv}, a.tail()...)...)
}

// HeadForward computes, for logits [rows, vocab] at a temperature, logp of ids, the entropy and the logarithm of the sum, [rows] each.
func (c *Context) HeadForward(logits, ids, logp, entropy, lse Pointer, rows, vocab int, temperature float32) error {
	return c.rows("head", "head_forward", 256, rows, vocab, logits, ids, logp, entropy, lse, int32(vocab), 1/temperature)
}

// HeadBackward replaces logits by their gradient from dlogp and dentropy [rows]; dentropy may be 0.
func (c *Context) HeadBackward(logits, ids, lse, entropy, dlogp, dentropy Pointer, rows, vocab int, temperature float32) error {
	return c.rows("head", "head_backward", 256, rows, vocab, logits, ids, lse, entropy, dlogp, dentropy, int32(vocab), 1/temperature)
}

// PolicyLoss computes loss and its slope by logp of n tokens: w·(−min(A·r, A·clip(r, low, high)) + beta·k3), r = exp(logp − old), k3 =
// exp(ref − logp) − (ref − logp) − 1. ref may be 0 where beta is.
func (c *Context) PolicyLoss(logp, old, ref, advantage, w, loss, slope Pointer, n int, low, high, beta float32) error {
	return c.each("head", "policy_loss", n, logp, old, ref, advantage, w, loss, slope, int32(n), low, high, beta)
}

// chunk is how many elements a block sums in float64.
const chunk = 4096

// SumSquares returns Σ x² of n elements, summed in float64.
func (c *Context) SumSquares(x Pointer, n int) (float64, error) {
	if err := sizes(n); err != nil || n == 0 {
		return 0, err
	}
	parts := make([]float64, blocks(n, chunk))
	p, err := NewBuffer[float64](c, len(parts))
	if err != nil {
		return 0, err
	}
	defer c.Free(p)
	if err := c.launch("optim", "sum_squares", [3]int{len(parts), 1, 1}, [3]int{256, 1, 1}, x, p, int32(n)); err != nil {
		return 0, err
	}
	if err := FromDevice(c, parts, p); err != nil {
		return 0, err
	}
	s := 0.0
	for _, v := range parts {
		s += v
	}
	return s, nil
}

// AdamW are the numbers of a step: Clip multiplies the gradient, Step counts from 1.
type AdamW struct {
	LR, Beta1, Beta2, Eps, Decay, Clip float64
	Step                               int
}

// AdamWStep updates p, m and v [n] from g: decoupled weight decay first, bias corrections taken in float64.
func (c *Context) AdamWStep(p, g, m, v Pointer, n int, o AdamW) error {
	c1, c2 := 1/(1-math.Pow(o.Beta1, float64(o.Step))), 1/(1-math.Pow(o.Beta2, float64(o.Step)))
	return c.each("optim", "adamw", n, p, g, m, v, int32(n), float32(o.Clip), float32(o.LR), float32(o.Beta1), float32(o.Beta2), float32(1-o.Beta1), float32(1-o.Beta2),
		float32(o.Eps), float32(1-o.LR*o.Decay), float32(c1), float32(c2))
}

// Project replaces g [d] by g − Q(Qᵀg) for q [d, k] float32. Sums run in float64; the result is rounded once.
func (c *Context) Project(q, g Pointer, d, k int) error {
	if err := sizes(d, k); err != nil || d == 0 || k == 0 {
		return err
	}
	n := blocks(d, chunk)
	partial, err := NewBuffer[float64](c, n*k)
	if err != nil {
		return err
	}
	defer c.Free(partial)
	coef, err := NewBuffer[float64](c, k)
	if err != nil {
		return err
	}
	defer c.Free(coef)
	if err := c.launch("optim", "project_dot", [3]int{n, 1, 1}, [3]int{256, 1, 1}, q, g, partial, int32(d), int32(k)); err != nil {
		return err
	}
	if err := c.each("optim", "sum_partials", k, partial, coef, int32(n), int32(k)); err != nil {
		return err
	}
	return c.each("optim", "project_apply", d, q, coef, g, int32(d), int32(k))
}
