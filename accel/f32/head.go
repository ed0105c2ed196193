package f32

import "math"

// Head gathers what a loss needs of one row of logits, [V] in chunks of any size, without the row ever being whole. The zero value has seen
// nothing. Chunks come in the order of the vocabulary; their size is part of what the last bits depend on.
type Head struct {
	// Top is the largest logit z so far, Sum is Σ e^{z − Top} and Weighted is Σ e^{z − Top}·(z − Top), over what was seen. Target is the
	// logit of the target.
	Top, Sum, Weighted, Target float64
	seen                       bool
}

// Add takes the logits of the tokens from first on; target is the row's token.
//
// When the maximum grows by d, Sum becomes e^{−d}·Sum and Weighted e^{−d}·(Weighted − d·Sum). A token with the logit −Inf has probability 0
// and adds nothing.
func (h *Head) Add(logits []float32, first, target int) {
	if first <= target && target < first+len(logits) {
		h.Target = float64(logits[target-first])
	}
	top := h.Top
	if !h.seen {
		top = math.Inf(-1)
	}
	if v := float64(topRow.Func()(logits)); v > top || v != v {
		top = v
	}
	if math.IsInf(top, -1) {
		return
	}
	if h.seen && top != h.Top {
		d := top - h.Top
		e := exp(-d)
		h.Weighted = float64(e * (h.Weighted - float64(d*h.Sum)))
		h.Sum = float64(e * h.Sum)
	}
	h.Top, h.seen = top, true
	var sum, weighted lanes
	headAdd.Func()(logits, top, &sum, &weighted)
	h.Sum, h.Weighted = h.Sum+sum.total(), h.Weighted+weighted.total()
}

// LogProb returns log p(target) = (z_target − Top) − ln Sum. Without a finite logit it is NaN.
func (h *Head) LogProb() float64 {
	if !h.seen {
		return math.NaN()
	}
	return (h.Target - h.Top) - math.Log(h.Sum)
}

// Entropy returns H = −Σ p·ln p = ln Sum − Weighted/Sum, in nats.
func (h *Head) Entropy() float64 {
	if !h.seen {
		return math.NaN()
	}
	return math.Log(h.Sum) - h.Weighted/h.Sum
}

// Slopes turns the logits of the tokens from first on into the gradient of a loss by them, in place, once the whole row was added: dlp and
// dh are its derivatives by log-probability and entropy.
//
//	∂L/∂z_j = dlp·(1[j = target] − p_j) − dh·p_j·(ln p_j + H),   p_j = e^{z_j − Top}/Sum
func (h *Head) Slopes(logits []float32, first, target int, dlp, dh float64) {
	log, inv := math.Log(h.Sum), 1/h.Sum
	entropy := h.Entropy()
	headBack.Func()(logits, slopes{top: h.Top, inv: inv, dlp: dlp, dh: dh, log: log, entropy: entropy})
	if first <= target && target < first+len(logits) {
		d := h.Target - h.Top
		p := float64(exp(d) * inv)
		g := float64(dlp * (1 - p)) // one rounding of the sum, not of −p and then of 1 − p
		if dh != 0 && p != 0 {
			g -= float64(float64(dh*p) * (d - log + entropy))
		}
		logits[target-first] = float32(g)
	}
}
