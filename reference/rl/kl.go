package rl

import (
	"fmt"
	"math"
)

// KLKind is an estimator of KL(π‖ref) from one token, with d = lp − ref. It is the option kl.kind.
type KLKind int

const (
	KLK1      KLKind = iota // d
	KLK2                    // ½d²
	KLK3                    // e^{−d} − 1 + d
	KLAbs                   // |d|
	KLRatioD                // ρ·d with ρ = exp(lp − old), open-instruct's index 3
	KLSeqProb               // of whole sequences, by [SequenceProbKL]; no function of one token takes it
)

var klKinds = enumeration[KLKind]("kl.kind", "k1", "k2", "k3", "abs", "ratio_d", "seq_prob")

func (k KLKind) String() string { return klKinds.text(k) }

// ParseKLKind returns the estimator of that name.
func ParseKLKind(s string) (KLKind, error) { return klKinds.parse(s) }

// KLIndexBase tells how a bare number names an estimator. It is the option kl.index_base.
type KLIndexBase int

const (
	KLSchulman1 KLIndexBase = iota // 1, 2, 3 are k1, k2, k3
	KLZero                         // 0, 1, 2, 3 are k1, k2, k3, ratio_d: open-instruct
)

var klIndexBases = enumeration[KLIndexBase]("kl.index_base", "schulman_1", "zero")

func (b KLIndexBase) String() string { return klIndexBases.text(b) }

// ParseKLIndexBase returns the base of that name.
func ParseKLIndexBase(s string) (KLIndexBase, error) { return klIndexBases.parse(s) }

// Kind returns the estimator that the number names. The metric objective/kl2_avg of open-instruct is thus k3.
func (b KLIndexBase) Kind(number int) (KLKind, error) {
	kinds := []KLKind{KLK1, KLK2, KLK3, KLRatioD}
	if b == KLSchulman1 {
		kinds, number = kinds[:3], number-1
	}
	if number < 0 || number >= len(kinds) {
		return 0, fmt.Errorf("rl: no KL estimator has that number counting by %v", b)
	}
	return kinds[number], nil
}

// KLGrad is how an estimator used as a loss is differentiated. It is the option kl.grad. With k the (clamped) estimator
// and k′ its derivative:
//
//	                     value   ∂/∂lp
//	naive                k       k′
//	score_function       k       k′ + k          k·exp(lp − sg lp): NeMo-RL since #2506
//	straight_through_k2  k       w·d             verl's trailing "+"; w of OpenRLHF, see [KLOptions.ISCap]
//	is_corrected         ρ·k     ρ·(k′ + k)      ρ = exp(lp − old): TRL use_bias_correction_kl
//
// In expectation over π, naive k1 has gradient 0, naive k2 and every row below the first have ∇KL(π‖ref), and naive k3
// has ∇KL(ref‖π), the other direction. The k of ratio_d is ρ·d, which is_corrected leaves.
type KLGrad int

const (
	KLNaive KLGrad = iota
	KLScoreFunction
	KLStraightThroughK2
	KLISCorrected
)

var klGrads = enumeration[KLGrad]("kl.grad", "naive", "score_function", "straight_through_k2", "is_corrected")

func (g KLGrad) String() string { return klGrads.text(g) }

// ParseKLGrad returns the kind of gradient of that name.
func ParseKLGrad(s string) (KLGrad, error) { return klGrads.parse(s) }

// KLOptions selects an estimator. The zero value is k1, unclamped, naive.
type KLOptions struct {
	Kind KLKind // kl.kind
	Grad KLGrad // kl.grad

	// ClampIn bounds d to [−ClampIn, ClampIn] nats before the estimator (kl.clamp_in); 0 means none.
	// verl and NeMo-RL have 20, open-instruct 40.
	ClampIn float64
	// ClampInBelow leaves out the upper bound of ClampIn: OpenRLHF 0.11.2 bounds only the exponent −d of k3, at 10.
	ClampInBelow bool
	// ClampOut bounds the estimator to [−ClampOut, ClampOut] (kl.clamp_out); 0 means none. verl, OpenRLHF and NeMo-RL have 10.
	ClampOut float64
	// ClampAll applies the clamps to every kind (kl.clamp_applies_to_k1: OpenRLHF, NeMo-RL, open-instruct); else they
	// act on k3 only (verl).
	ClampAll bool
	// ISCap is the cap of the detached weight w = min(exp(lp − old), ISCap) of straight_through_k2; 0 means w = 1.
	// OpenRLHF's unbiased_gradient has 10 when old log-probs are given.
	ISCap float64
}

// KL stores in value the estimate of every cell, and in grad its derivative with respect to lp, as o says. All slices have
// the same length; nil ones are allocated. old is read for ratio_d, is_corrected and ISCap; nil stands for lp itself, a
// ratio of 1 that still has a gradient.
//
// k3 is expm1(−d) + d, which does not cancel at small d. On a bound of a clamp the derivative is 0, as in torch 2.15. The
// chain rule multiplies by it, as autograd does: where exp(−d) overflows behind an output clamp, the gradient is
// 0·∞ = NaN (OpenRLHF #1160).
//
// Source: Schulman, Approximating KL divergence, 2020; verl 0.9.1 kl_penalty, OpenRLHF 0.11.2 compute_approx_kl, Liger
// 0.8.5 k3_loss_fn, pinned by the golden section kl.
func KL(value, grad, lp, ref, old []float64, o KLOptions) (v, g []float64) {
	n := len(lp)
	need(len(ref) == n && (old == nil || len(old) == n), badLength)
	o.need()
	value, grad = output(value, n), output(grad, n)
	for i, x := range lp {
		w := 1.0
		if old != nil {
			w = math.Exp(x - old[i])
		}
		k, dk, dw := o.at(x-ref[i], w)
		value[i], grad[i] = k, dk+float64(dw*w)
	}
	return value, grad
}

// need panics unless the options are those of an estimator of one token.
func (o *KLOptions) need() {
	need(o.Kind >= 0 && o.Kind < KLSeqProb && klGrads.has(o.Grad), badOption)
}

// at returns the value at d and ρ = w, the derivative with respect to lp at constant ρ, and that with respect to ρ.
func (o *KLOptions) at(d, w float64) (k, dlp, dw float64) {
	x, pass := d, 1.0
	clamps := o.ClampAll || o.Kind == KLK3
	if clamps && o.ClampIn > 0 {
		if !(-o.ClampIn < x) || !o.ClampInBelow && !(x < o.ClampIn) {
			pass = 0
		}
		x = max(x, -o.ClampIn)
		if !o.ClampInBelow {
			x = min(x, o.ClampIn)
		}
	}
	var dk float64
	switch o.Kind {
	case KLK1, KLRatioD:
		k, dk = x, 1
	case KLK2:
		k, dk = float64(x*x)/2, x
	case KLK3:
		e := math.Expm1(-x)
		k, dk = e+x, -e
	case KLAbs:
		k, dk = math.Abs(x), x
		if x > 0 {
			dk = 1
		} else if x < 0 {
			dk = -1
		}
	}
	if clamps && o.ClampOut > 0 {
		if !(-o.ClampOut < k && k < o.ClampOut) {
			pass = 0
		}
		k = max(min(k, o.ClampOut), -o.ClampOut)
	}
	dk = float64(pass * dk)
	if o.Kind == KLRatioD || o.Grad == KLISCorrected { // ratio_d is corrected as it is
		k, dk, dw = float64(w*k), float64(w*dk), k
	}
	switch o.Grad {
	case KLScoreFunction:
		return k, dk + k, dw
	case KLStraightThroughK2:
		if o.ISCap > 0 {
			return k, float64(d * min(w, o.ISCap)), 0
		}
		return k, d, 0
	}
	return k, dk, dw
}

// SequenceProbKL stores in dst, of length rows, exp(O)·(O − N) with O and N the sums of old and lp over the true cells
// of a row, and in grad, rows×cols, its derivative −exp(O) with respect to the true cells of lp. It is kl.kind seq_prob,
// one term of Σ p·ln(p/q) over whole sequences, as system A's original takes against its old policy. Nil slices are allocated.
func SequenceProbKL(dst, grad, lp, old []float64, mask []bool, rows, cols int) (v, g []float64) {
	checkGrid(rows, cols, mask, lp, old)
	dst, grad = output(dst, rows), output(grad, rows*cols)
	for r := range rows {
		var o, n float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if mask == nil || mask[i] {
				o += old[i]
				n += lp[i]
			}
		}
		p := math.Exp(o)
		dst[r] = float64(p * (o - n))
		for i := r * cols; i < (r+1)*cols; i++ {
			grad[i] = 0
			if mask == nil || mask[i] {
				grad[i] = -p
			}
		}
	}
	return dst, grad
}

// checkGrid panics unless mask (or nil) and every x have rows·cols elements.
func checkGrid(rows, cols int, mask []bool, x ...[]float64) {
	need(rows >= 0 && cols >= 0 && (mask == nil || len(mask) == rows*cols), badLength)
	for _, v := range x {
		need(len(v) == rows*cols, badLength)
	}
}
