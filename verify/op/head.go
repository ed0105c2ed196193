package op

import (
	"math"
	"math/rand/v2"
)

// HeadFunc returns log-probability and entropy of a target under the logits z, which it takes in chunks of that size.
type HeadFunc = func(z []float32, chunk, target int) (logp, entropy float64)

// HeadBackwardFunc turns the logits z, taken in chunks, into the gradient of a loss by them, whose derivatives by log-probability and entropy are dlp
// and dh.
type HeadBackwardFunc = func(z []float32, chunk, target int, dlp, dh float64)

// rowOfLogits draws the logits of a case: some are −Inf, the target's and the first are not.
func rowOfLogits(c Case) (z []float32, chunk, target int) {
	n, v, hidden := c.Dims[0], value(c, 1), words(c, 2)
	target = c.Dims[2] % n
	z = make([]float32, n)
	for i := range z {
		z[i] = v(i)
		if c.Dims[3] == 1 && i != target && i > 0 && hidden(i)%3 == 0 {
			z[i] = float32(math.Inf(-1))
		}
	}
	return z, c.Dims[1], target
}

// distribution is what a row of logits says, from sums of float64, with the bounds of the errors that the contract allows.
type distribution struct {
	top, log, entropy float64
	eLog, eEntropy    float64
}

func distributionOf(z []float32, chunk int) (d distribution) {
	d.top = math.Inf(-1)
	for _, v := range z {
		d.top = max(d.top, float64(v))
	}
	sum, weighted := 0.0, 0.0
	for _, v := range z {
		if e := math.Exp(float64(v) - d.top); e > 0 {
			sum, weighted = sum+e, weighted+e*(float64(v)-d.top)
		}
	}
	d.log, d.entropy = math.Log(sum), math.Log(sum)-weighted/sum
	// An exponential for each element, and one for each chunk in which the maximum grows.
	parts := float64((len(z)+chunk-1)/chunk + 1)
	e := parts*0x1p-26 + float64(len(z)+8)*0x1p-51
	d.eLog = e + 0x1p-51*d.log
	d.eEntropy = d.eLog + 2*e*math.Abs(weighted/sum) + 0x1p-51*(1+math.Abs(weighted/sum))
	return d
}

func headDims(r *rand.Rand) []int {
	return []int{1 + r.IntN(60), 1 + r.IntN(25), r.IntN(1000), r.IntN(2)}
}

// Head is the head of a language model over logits in chunks, with a running maximum.
var Head = &Spec[HeadFunc]{
	Name:     "f32.Head",
	Doc:      "log p(target) = z_t − log Σ e^z and H = −Σ p·log p, of logits in chunks with a running maximum",
	Bound:    "(chunks + 1)·2⁻²⁶ + (V + 8)·2⁻⁵¹, the entropy also that times 2·|Σ p·(z − max z)|: an exponential for each element and chunk; sums are of float64",
	Source:   "reference/rl LogProbs, Entropy",
	Families: finite,
	Dims:     headDims,
	Run: func(f HeadFunc, c Case, t *Trial) {
		row, chunk, target := rowOfLogits(c)
		n := len(row)
		z := Input(t, 1, n, n, func(i int) float32 { return row[i] })
		d := distributionOf(row, chunk)
		lp, h := f(z.Data[:n], chunk, target)
		at := float64(row[target]) - d.top
		t.Within("log-probability", lp, at-d.log, d.eLog+0x1p-51*math.Abs(at), 0, target)
		t.Within("entropy", h, d.entropy, d.eEntropy, 0, 0)
	},
	Faults: []Fault[HeadFunc]{
		{"head-no-rescale", "what was summed is not rescaled when the maximum grows", func(z []float32, chunk, target int) (float64, float64) {
			return headWith(z, chunk, target, false, 0)
		}},
		{"head-last-chunk", "the last chunk is left out where there are several", func(z []float32, chunk, target int) (float64, float64) {
			return headWith(z[:max(min(len(z), chunk), (len(z)-1)/chunk*chunk)], chunk, target, true, 0)
		}},
		{"head-target-of-chunk", "the target is looked up within its chunk one place before", func(z []float32, chunk, target int) (float64, float64) {
			return headWith(z, chunk, target, true, 1)
		}},
		{"head-entropy-sign", "the entropy adds the weighted sum", func(z []float32, chunk, target int) (float64, float64) {
			lp, h := headWith(z, chunk, target, true, 0)
			d := distributionOf(z, chunk)
			return lp, 2*d.log - h
		}},
	},
}

// headWith is the running form, with or without the rescaling of what was summed, and with the target that many places before.
func headWith(z []float32, chunk, target int, rescale bool, before int) (logp, entropy float64) {
	top, sum, weighted := math.Inf(-1), 0.0, 0.0
	for first := 0; first < len(z); first += chunk {
		part := z[first:min(len(z), first+chunk)]
		t := max(top, float64(top32(part)))
		if rescale && !math.IsInf(top, -1) {
			weighted, sum = math.Exp(top-t)*(weighted+(top-t)*sum), math.Exp(top-t)*sum
		}
		for _, v := range part {
			if e := math.Exp(float64(v) - t); e > 0 {
				sum, weighted = sum+e, weighted+e*(float64(v)-t)
			}
		}
		top = t
	}
	at := float64(z[min(len(z)-1, max(0, target-before))])
	return at - top - math.Log(sum), math.Log(sum) - weighted/sum
}

// HeadBackward is the gradient of [Head] by the logits.
var HeadBackward = &Spec[HeadBackwardFunc]{
	Name:     "f32.HeadBackward",
	Doc:      "∂L/∂z_j = dlp·(1[j = target] − p_j) − dh·p_j·(log p_j + H)",
	Bound:    "u·|g| + p·(|dlp|·e + |dh|·(|log p + H|·e + e_log + e_H)), e = 2⁻²⁶ + e_log, with the bounds of f32.Head",
	Source:   "reference/rl LogProbs, Entropy",
	Families: finite,
	Dims:     headDims,
	Run: func(f HeadBackwardFunc, c Case, t *Trial) {
		row, chunk, target := rowOfLogits(c)
		n := len(row)
		v := value(Case{Family: Normal, Seed: c.Seed}, 3)
		dlp, dh := float64(v(0)), float64(v(1))*float64(c.Dims[2]%2)
		z := Output[float32](t, 1, n, n)
		copy(z.Data, row)
		f(z.Data[:n], chunk, target, dlp, dh)
		d := distributionOf(row, chunk)
		e := 0x1p-26 + 0x1p-50 + d.eLog
		for j := range n {
			at := float64(row[j]) - d.top
			p := math.Exp(at - d.log)
			g, bend := -dlp*p, 0.0
			if j == target {
				g = dlp * (1 - p)
			}
			if p > 0 {
				bend = at - d.log + d.entropy
				g -= dh * p * bend
			}
			bound := u32*math.Abs(g) + p*(math.Abs(dlp)*e+math.Abs(dh)*(math.Abs(bend)*e+d.eLog+d.eEntropy+0x1p-50*math.Abs(at))) + 0x1p-50*math.Abs(dlp) + eta32
			if math.IsInf(at, -1) {
				bound = eta32
			}
			t.Within("dz", float64(z.At(0, j)), g, bound, 0, j)
		}
		t.exact++
	},
	Faults: []Fault[HeadBackwardFunc]{
		{"head-backward-no-target", "the target has no 1", headBackWith(0, 1, 1)},
		{"head-backward-entropy-sign", "the gradient of the entropy has the other sign", headBackWith(1, -1, 1)},
		{"head-backward-entropy-mean", "log p takes the place of log p + H", headBackWith(1, 1, 0)},
	},
}

func headBackWith(one, sign, mean float64) HeadBackwardFunc {
	return func(z []float32, chunk, target int, dlp, dh float64) {
		d := distributionOf(z, chunk)
		for j, v := range z {
			lp := float64(v) - d.top - d.log
			p, g := math.Exp(lp), 0.0
			if j == target {
				g = one * dlp
			}
			g -= dlp * p
			if p > 0 {
				g -= sign * dh * p * (lp + mean*d.entropy)
			}
			z[j] = float32(g)
		}
	}
}
