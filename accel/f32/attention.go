package f32

import "math"

// Attention is scaled dot-product attention over one sequence:
//
//	y_t = Σ_s p_ts·v_s,   p_t = softmax over the visible s of Scale·⟨q_t, k_s⟩
//
// Vaswani et al. 2017, Equation 1. With fewer key-value heads than heads, G = Heads/KVHeads neighbouring heads share one: head h reads
// key-value head h/G (Ainslie et al. 2023). The T queries are the last of the S places: query t stands at place S − T + t, which is how
// new tokens meet those of a cache.
//
// Sequences of a batch are calls of their own, and so are key-value heads: no sum crosses two of them, so a caller may run them in any
// order and on any number of workers and gets the same bits. A batch without its padding is a list of sequences; where padding stays in,
// Real hides it.
type Attention struct {
	Heads, KVHeads, Dim int
	Scale               float32
	Causal              bool
	// Window, if positive, hides the keys that lie Window or more places before the query.
	Window int
	// Real [S] is false at keys that no query sees; nil: all are real. A query that sees no key gives 0 and has no gradient.
	Real []bool
}

// The queries of all heads that share a key-value head are taken together, so that keys and values are packed once for them: at most queryBlock
// of a head and about groupBlock of all, whose scores stay in the second-level cache.
const (
	queryBlock = 64
	groupBlock = 192
)

// Scratch is the memory of one worker between calls of attention.
type Scratch struct{ p, dp, q, dy, out []float32 }

// grow makes room for m rows of n scores and of dim channels.
func (w *Scratch) grow(m, n, dim int) {
	if len(w.p) < m*n {
		w.p, w.dp = make([]float32, m*n), make([]float32, m*n)
	}
	if len(w.q) < m*dim {
		w.q, w.dy, w.out = make([]float32, m*dim), make([]float32, m*dim), make([]float32, m*dim)
	}
}

// block returns how many queries of a head are taken at once.
func (a Attention) block(t int) int {
	return min(t, queryBlock, max(8, groupBlock*a.KVHeads/a.Heads))
}

// gather copies the queries [lo, hi) of the heads of a group, one head after the other; scatter copies them back.
func (a Attention) gather(dst, x []float32, kv, lo, hi int) {
	a.rows(kv, lo, hi, func(i, at int) { copy(dst[i:i+a.Dim], x[at:]) })
}

func (a Attention) scatter(x, src []float32, kv, lo, hi int) {
	a.rows(kv, lo, hi, func(i, at int) { copy(x[at:at+a.Dim], src[i:]) })
}

// rows calls f with the places of the rows of a group: in a list of its own, and among all heads.
func (a Attention) rows(kv, lo, hi int, f func(i, at int)) {
	g, i := a.Heads/a.KVHeads, 0
	for h := kv * g; h < (kv+1)*g; h++ {
		for t := lo; t < hi; t++ {
			f(i, (t*a.Heads+h)*a.Dim)
			i += a.Dim
		}
	}
}

// check panics unless the slices hold T queries and S keys.
func (a Attention) check(q, k, v []float32, kv int) (t, s int) {
	if a.Heads < 1 || a.KVHeads < 1 || a.Heads%a.KVHeads != 0 || a.Dim < 1 || kv < 0 || kv >= a.KVHeads || a.Window < 0 {
		panic("f32: attention: heads do not fit")
	}
	t, s = rows("attention", len(q), a.Heads*a.Dim), rows("attention", len(k), a.KVHeads*a.Dim)
	same("attention", len(v), len(k))
	if t > s {
		panic("f32: attention: more queries than keys")
	}
	if a.Real != nil {
		same("attention", len(a.Real), s)
	}
	return t, s
}

// span returns the keys [from, to) outside of which no query of [lo, hi) sees any.
func (a Attention) span(lo, hi, t, s int) (from, to int) {
	to = s
	if a.Causal {
		to = s - t + hi
	}
	if a.Window > 0 {
		from = max(0, s-t+lo-a.Window+1)
	}
	return from, to
}

// hide puts −Inf where the query at place at does not see the key: x are the scores of the keys from on.
func (a Attention) hide(x []float32, at, from int) {
	inf := float32(math.Inf(-1))
	if a.Causal {
		for j := max(0, at+1-from); j < len(x); j++ {
			x[j] = inf
		}
	}
	if a.Window > 0 {
		for j := 0; j < min(len(x), at-a.Window+1-from); j++ {
			x[j] = inf
		}
	}
	if a.Real != nil {
		for j := range x {
			if !a.Real[from+j] {
				x[j] = inf
			}
		}
	}
}

// weights stores in p the probabilities of the keys [from, to) for the gathered queries [lo, hi) of a group.
func (a Attention) weights(p, q, k []float32, kv, lo, hi, from, to, t, s int) {
	ks, n, m := a.KVHeads*a.Dim, to-from, a.Heads/a.KVHeads*(hi-lo)
	Gemm(p, n, q, a.Dim, k[from*ks+kv*a.Dim:], ks, m, n, a.Dim, false, true, false)
	scale, softmax := scaleBy.Func(), softmax.Func()
	for i := range m {
		row := p[i*n : (i+1)*n]
		scale(row, a.Scale)
		a.hide(row, s-t+lo+i%(hi-lo), from)
		softmax(row)
	}
}

// Forward stores in y [T, Heads·Dim] the outputs of the heads that read key-value head kv; the others stay. q is [T, Heads·Dim], k and v
// are [S, KVHeads·Dim]. It panics if the shapes do not fit.
func (a Attention) Forward(y, q, k, v []float32, kv int, w *Scratch) {
	t, s := a.check(q, k, v, kv)
	same("attention", len(y), len(q))
	ks, g, step := a.KVHeads*a.Dim, a.Heads/a.KVHeads, a.block(t)
	w.grow(g*step, s, a.Dim)
	for lo := 0; lo < t; lo += step {
		hi := min(lo+step, t)
		from, to := a.span(lo, hi, t, s)
		a.gather(w.q, q, kv, lo, hi)
		a.weights(w.p, w.q, k, kv, lo, hi, from, to, t, s)
		Gemm(w.out, a.Dim, w.p, to-from, v[from*ks+kv*a.Dim:], ks, g*(hi-lo), a.Dim, to-from, false, false, false)
		a.scatter(y, w.out, kv, lo, hi)
	}
}

// Backward stores in dq [T, Heads·Dim], and adds to dk and dv [S, KVHeads·Dim], the gradients of the heads that read key-value head kv,
// from dy. The probabilities are computed once more:
//
//	dv += pᵀ·dy,   dp = dy·vᵀ,   ds = Scale·p∘(dp − Σ_s p·dp),   dq = ds·k,   dk += dsᵀ·q
//
// dq may be dy.
func (a Attention) Backward(dq, dk, dv, dy, q, k, v []float32, kv int, w *Scratch) {
	t, s := a.check(q, k, v, kv)
	same("attention", len(dy), len(q))
	same("attention", len(dq), len(q))
	same("attention", len(dk), len(k))
	same("attention", len(dv), len(k))
	ks, g, step := a.KVHeads*a.Dim, a.Heads/a.KVHeads, a.block(t)
	w.grow(g*step, s, a.Dim)
	for lo := 0; lo < t; lo += step {
		hi := min(lo+step, t)
		from, to := a.span(lo, hi, t, s)
		m, n, at := g*(hi-lo), to-from, from*ks+kv*a.Dim
		a.gather(w.q, q, kv, lo, hi)
		a.gather(w.dy, dy, kv, lo, hi)
		a.weights(w.p, w.q, k, kv, lo, hi, from, to, t, s)
		Gemm(dv[at:], ks, w.p, n, w.dy, a.Dim, n, a.Dim, m, true, false, true)
		Gemm(w.dp, n, w.dy, a.Dim, v[at:], ks, m, n, a.Dim, false, true, false)
		for i := range m {
			row := w.dp[i*n : (i+1)*n]
			softmaxBackward(row, row, w.p[i*n:(i+1)*n], a.Scale)
		}
		Gemm(dk[at:], ks, w.dp, n, w.q, a.Dim, n, a.Dim, m, true, false, true)
		Gemm(w.out, a.Dim, w.dp, n, k[at:], ks, m, a.Dim, n, false, false, false)
		a.scatter(dq, w.out, kv, lo, hi)
	}
}
