package f32

import (
	"math"

	"plumbline/accel"
)

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
// Real hides it. Every variant returns the same numbers, of finite ones; a NaN or an infinity among keys and values that a query does not see
// may reach it or not.
type Attention struct {
	Heads, KVHeads, Dim int
	Scale               float32 // above 0
	Causal              bool
	// Window, if positive, hides the keys that lie Window or more places before the query.
	Window int
	// Real [S] is false at keys that no query sees; nil: all are real. A query that sees no key gives 0 and has no gradient.
	Real []bool
}

// AttentionFunc is the type of the forward pass of [Attention], AttentionBackFunc that of the backward one.
type (
	AttentionFunc     = func(a Attention, y, q, k, v []float32, kv int, w *Scratch)
	AttentionBackFunc = func(a Attention, dq, dk, dv, dy, q, k, v []float32, kv int, w *Scratch)
)

// The passes of attention. Their variants return the same numbers.
var (
	attend     = accel.New("f32.Attention", attendGeneric, testAttend)
	attendBack = accel.New("f32.AttentionBackward", attendBackGeneric, testAttendBack)
)

// AttentionBatch computes both passes of a batch whose padding stays in, sequence by sequence: y, dq, q and dout [batch, tq, heads, size], dk, dv,
// k and v [batch, tk, kv, size], real [batch, tk]. It is what the specification of attention is held against.
func AttentionBatch(y, dq, dk, dv, q, k, v, dout []float32, real []bool, batch, tq, tk, heads, kv, size int, causal bool, scale float32) {
	clear(dk)
	clear(dv)
	var w Scratch
	nq, nk := tq*heads*size, tk*kv*size
	for b := range batch {
		a := Attention{Heads: heads, KVHeads: kv, Dim: size, Scale: scale, Causal: causal, Real: real[b*tk : (b+1)*tk]}
		of := func(x []float32, n int) []float32 { return x[b*n : (b+1)*n] }
		for h := range kv {
			a.Forward(of(y, nq), of(q, nq), of(k, nk), of(v, nk), h, &w)
			a.Backward(of(dq, nq), of(dk, nk), of(dv, nk), of(dout, nq), of(q, nq), of(k, nk), of(v, nk), h, &w)
		}
	}
}

// Scratch is the memory of one worker between calls of attention.
type Scratch struct {
	p, dp, q, dy, out, turned, keys, values, keyRows, valueRows, queryRows, slopeRows, dk, dv []float32
}

// check panics unless the slices hold T queries and S keys.
func (a Attention) check(q, k, v []float32, kv int) (t, s int) {
	if a.Heads < 1 || a.KVHeads < 1 || a.Heads%a.KVHeads != 0 || a.Dim < 1 || kv < 0 || kv >= a.KVHeads || a.Window < 0 {
		panic("f32: attention: heads do not fit")
	}
	if !(a.Scale > 0) {
		panic("f32: attention: the scale is not positive")
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

// sees returns the keys [from, to) outside of which a query at a place sees none; within, Real decides.
func (a Attention) sees(at, s int) (from, to int) {
	to = s
	if a.Causal {
		to = at + 1
	}
	if a.Window > 0 {
		from = max(0, at-a.Window+1)
	}
	return from, to
}

// first is where the row of a query that sees nothing before from begins: a multiple of 8, so that what a key is added to in a sum of eight
// parts does not depend on how queries are taken together.
func first(from int) int { return from &^ 7 }

// hide puts −Inf where a query that sees no key before from does not: x are the scores of the keys from start on.
func (a Attention) hide(x []float32, from, start int) {
	inf := float32(math.Inf(-1))
	for j := range x[:from-start] {
		x[j] = inf
	}
	if a.Real != nil {
		for j := range x {
			if !a.Real[start+j] {
				x[j] = inf
			}
		}
	}
}

// Forward stores in y [T, Heads·Dim] the outputs of the heads that read key-value head kv; the others stay. q is [T, Heads·Dim], k and v
// are [S, KVHeads·Dim]. A score is one chain of fused multiply-adds in the order of the channels, an output one in the order of the keys that
// starts with +0. It panics if the shapes do not fit.
func (a Attention) Forward(y, q, k, v []float32, kv int, w *Scratch) {
	a.check(q, k, v, kv)
	same("attention", len(y), len(q))
	attend.Func()(a, y, q, k, v, kv, w)
}

// Backward stores in dq [T, Heads·Dim], and adds to dk and dv [S, KVHeads·Dim], the gradients of the heads that read key-value head kv,
// from dy. The probabilities are computed once more:
//
//	dv += pᵀ·dy,   dp = dy·vᵀ,   ds = Scale·p∘(dp − Σ_s p·dp),   dq = ds·k,   dk += dsᵀ·q
//
// What is added to an element of dk or dv is one chain of fused multiply-adds that starts with +0, head after head, each in the order of the
// queries. dq may be dy.
func (a Attention) Backward(dq, dk, dv, dy, q, k, v []float32, kv int, w *Scratch) {
	a.check(q, k, v, kv)
	same("attention", len(dy), len(q))
	same("attention", len(dq), len(q))
	same("attention", len(dk), len(k))
	same("attention", len(dv), len(k))
	attendBack.Func()(a, dq, dk, dv, dy, q, k, v, kv, w)
}

// testSequence is attention of two heads that share one over eleven keys, of which one is not real.
func testSequence() (a Attention, q, k, v, dy []float32) {
	a = Attention{Heads: 2, KVHeads: 1, Dim: 5, Scale: 0.4, Causal: true, Real: make([]bool, 11)}
	x := make([]float32, 2*11*10+2*11*5)
	for i := range x {
		x[i] = float32(i*7919%1009-504) / 331
	}
	for i := range a.Real {
		a.Real[i] = i != 3
	}
	return a, x[:110], x[110:165], x[165:220], x[220:]
}

func testAttend(f AttentionFunc) error {
	a, q, k, v, _ := testSequence()
	want, got := make([]float32, len(q)), make([]float32, len(q))
	var w Scratch
	attendGeneric(a, want, q, k, v, 0, &w)
	f(a, got, q, k, v, 0, &w)
	return equalRows(got, want)
}

func testAttendBack(f AttentionBackFunc) error {
	a, q, k, v, dy := testSequence()
	want, got := make([]float32, 2*len(q)), make([]float32, 2*len(q))
	var w Scratch
	attendBackGeneric(a, want[:110], want[110:165], want[165:], dy, q, k, v, 0, &w)
	f(a, got[:110], got[110:165], got[165:], dy, q, k, v, 0, &w)
	return equalRows(got, want)
}
