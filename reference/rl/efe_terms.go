package rl

import "math"

// distributions are those of the colours in the cells of a grid, in several steps, [T, cells, C] each.
type distributions struct {
	steps, cells, colors int
	log, p               []float64
}

func newDistributions(logits []float64, steps, cells, colors int) distributions {
	q := distributions{steps, cells, colors, make([]float64, len(logits)), make([]float64, len(logits))}
	for i := 0; i < len(logits); i += colors {
		top, sum := softmaxSum(logits[i:i+colors], 1)
		logSum := math.Log(sum)
		for j := i; j < i+colors; j++ {
			q.log[j] = (logits[j] - top) - logSum
			q.p[j] = math.Exp(q.log[j])
		}
	}
	return q
}

// at returns the part of x [T, cells, C] that belongs to a cell.
func (q distributions) at(x []float64, t, i int) []float64 {
	k := (t*q.cells + i) * q.colors
	return x[k : k+q.colors]
}

// throughSoftmax adds to the gradient by logits that which dp, the gradient by their softmax p, causes.
func throughSoftmax(dlogits, dp, p []float64) {
	var mean float64
	for c, g := range dp {
		mean += float64(p[c] * g)
	}
	for c, g := range dp {
		dlogits[c] += float64(p[c] * (g - mean))
	}
}

// uncertain returns the share of cells whose mean over the steps of max_c Q is at most 0.7.
func (q distributions) uncertain() float64 {
	n := 0
	for i := range q.cells {
		var mean float64
		for t := range q.steps {
			top := 0.0
			for _, p := range q.at(q.p, t, i) {
				top = max(top, p)
			}
			mean += top / float64(q.steps)
		}
		if mean <= sure {
			n++
		}
	}
	return float64(n) / float64(q.cells)
}

// risk returns the mean over steps and cells of −Σ_c C_c·ln Q_c and adds its gradient, times weight, by the logits of Q and of C.
func (q distributions) risk(logC []float64, weight float64, dq, dc []float64) (risk float64) {
	n := float64(q.steps * q.cells)
	w := weight / n
	dp := make([]float64, q.colors)
	for i := range q.cells {
		clear(dp)
		prefer := make([]float64, q.colors)
		for c := range prefer {
			prefer[c] = math.Exp(logC[i*q.colors+c])
		}
		for t := range q.steps {
			log, p, dx := q.at(q.log, t, i), q.at(q.p, t, i), q.at(dq, t, i)
			for c := range prefer {
				risk -= float64(prefer[c]*log[c]) / n
				dp[c] -= float64(w * log[c])
				dx[c] += float64(w * (p[c] - prefer[c]))
			}
		}
		throughSoftmax(dc[i*q.colors:(i+1)*q.colors], dp, prefer)
	}
	return risk
}

// ambiguity returns the mean over steps and cells of the entropy of Q and adds its gradient, times weight.
func (q distributions) ambiguity(weight float64, dq []float64) (mean float64) {
	n := float64(q.steps * q.cells)
	for t := range q.steps {
		for i := range q.cells {
			log, p, dx := q.at(q.log, t, i), q.at(q.p, t, i), q.at(dq, t, i)
			var h float64
			for c := range p {
				h -= float64(p[c] * log[c])
			}
			for c := range p {
				dx[c] -= float64(weight / n * float64(p[c]*(log[c]+h)))
			}
			mean += h / n
		}
	}
	return mean
}

// divergence returns the mean over steps and cells of how far Q_t is from Q_{T−1−t}, and adds its gradient, times weight. Every pair
// of steps occurs twice, so that the slope by Q_t is ln Q_t − ln M, or −ln M − 1 for the entropy of the mixture M.
func (q distributions) divergence(kind EFEKind, weight float64, dq []float64) (mean float64) {
	n := float64(q.steps * q.cells)
	dp := make([]float64, q.colors)
	for t := range q.steps {
		for i := range q.cells {
			log, p, other := q.at(q.log, t, i), q.at(q.p, t, i), q.at(q.log, q.steps-1-t, i)
			for c := range p {
				hi, lo := max(log[c], other[c]), min(log[c], other[c])
				mixed := hi + math.Log1p(math.Exp(lo-hi)) - math.Ln2
				if kind == MixtureEntropy {
					mean -= float64(p[c]*mixed) / n // over t and T−1−t this is −Σ M ln M
					dp[c] = float64(weight / n * (-mixed - 1))
				} else {
					mean += float64(p[c]*(log[c]-mixed)) / n
					dp[c] = float64(weight / n * (log[c] - mixed))
				}
			}
			throughSoftmax(q.at(dq, t, i), dp, p)
		}
	}
	return mean
}

// reversibility returns the mean over t of ‖f_t + b_t‖² and adds its gradient, times weight. One step moves nothing: 0.
func (q distributions) reversibility(h, w int, weight float64, dq []float64) (mean float64) {
	moves := q.steps - 1
	if moves == 0 {
		return 0
	}
	place := func(i int) [2]float64 {
		return [2]float64{(float64(i/w) + 0.5) / float64(h), (float64(i%w) + 0.5) / float64(w)}
	}
	center, mass := make([][2]float64, q.steps), make([]float64, q.steps)
	for t := range center {
		for i := range q.cells {
			var m float64
			for c, p := range q.at(q.p, t, i) {
				m += float64(float64(c) * p)
			}
			mass[t] += m
			for a, x := range place(i) {
				center[t][a] += float64(m * x)
			}
		}
		for a := range center[t] {
			if center[t][a] /= mass[t]; mass[t] == 0 {
				center[t][a] = 0.5
			}
		}
	}
	slope := make([][2]float64, q.steps)
	for t := range moves {
		for a := range 2 {
			d := (center[t+1][a] - center[t][a]) + (center[moves-1-t][a] - center[moves-t][a])
			mean += float64(d*d) / float64(moves)
			g := 2 * weight * d / float64(moves)
			slope[t+1][a] += g
			slope[t][a] -= g
			slope[moves-1-t][a] += g
			slope[moves-t][a] -= g
		}
	}
	dp := make([]float64, q.colors)
	for t := range slope {
		if mass[t] == 0 {
			continue
		}
		for i := range q.cells {
			var dm float64
			for a, x := range place(i) {
				dm += float64(slope[t][a]*(x-center[t][a])) / mass[t]
			}
			for c := range dp {
				dp[c] = float64(float64(c) * dm)
			}
			throughSoftmax(q.at(dq, t, i), dp, q.at(q.p, t, i))
		}
	}
	return mean
}
