package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// gradientWeights proposes what becomes of the weights for the engine's log-probs where neither they nor the losses of tokens were dumped: the gradient of
// a clipped surrogate is −s·w·A·ρ where no bound can hold the ratio, which is where it has not moved the way of its advantage, with w the weight of the
// token and s one number of a file, over the tokens of its row or not, as the aggregation has it. With the bounds of the ratio that it has beside them.
func gradientWeights(b *dump.Batch) (lists [][]assign) {
	const beyond = 1.2 // no dual clip is below
	lp, old, gen, g := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_gen"), b.Token("dlogp")
	c := NewCase(b, &convention.Set{}, 0)
	adv := c.Optional("advantages").X
	if lp == nil || gen == nil || g == nil || adv == nil || b.Tensors["is_weights"] != nil || b.Token("token_loss") != nil {
		return nil
	}
	if old == nil {
		old = lp
	}
	engine, n, relative := ofEngine(b, old, gen, b.Mask), c.tokensOfRows(), 1e-5+4*max(Grid(g), tol.U32)
	var near [][]assign // of divergences whose bound is within what they may be off
	for _, m := range engineModes {
		for _, perRow := range []bool{false, true} {
			var seen []seenWeight
			for _, file := range b.Files {
				at := len(seen)
				for i := file.Lo * b.Cols; i < file.Hi*b.Cols; i++ {
					rho := math.Exp(lp[i] - old[i])
					if !b.Mask[i] || adv[i] == 0 || adv[i] > 0 && rho > 1 || adv[i] < 0 && (rho < 1 || rho > beyond) {
						continue
					}
					x := -g[i] / (adv[i] * rho)
					if perRow {
						x *= n[i/b.Cols]
					}
					if of := engine(i); !math.IsNaN(x) && !math.IsInf(x, 0) {
						seen = append(seen, seenWeight{x: x, w: of[m.kept], by: of[m.by]})
					}
				}
				seen = append(seen[:at], ofCommonScale(seen[at:], relative)...)
			}
			list, made := m.shows(seen)
			if list == nil {
				continue
			}
			odd, telling := 0, false
			for _, s := range seen {
				x := made(s.w, s.by)
				telling = telling || math.Abs(x-1) > 16*relative
				if math.Abs(x-s.x) > s.e && (m.gate == "" || s.by > offDivergence) {
					odd++
				}
			}
			if !telling || 20*odd > len(seen) {
				continue
			}
			w := make([]float64, len(lp))
			for i := range b.Tokens() {
				of := engine(i)
				w[i] = made(of[m.kept], of[m.by])
			}
			list = append(list, word("tis.log_clamp", "none"), word("ratio.level", "token"), word("loss.kind", "ppo"))
			list = append(list, gradientClips(b, nil, w)...)
			of := &lists
			if kept, left := keptAndLeft(seen); m.gate != "" && kept > left-offDivergence {
				of = &near
			}
			if !slices.ContainsFunc(*of, func(other []assign) bool { return slices.Equal(other, list) }) {
				*of = append(*of, list)
			}
		}
	}
	return append(lists, near...)
}

// keptAndLeft returns the largest of the numbers that decide about tokens that are kept, and the smallest above 0 of those about tokens that are left out.
func keptAndLeft(seen []seenWeight) (kept, left float64) {
	left = math.Inf(1)
	for _, s := range seen {
		switch {
		case s.x != 0:
			kept = max(kept, s.by)
		case s.by > offDivergence:
			left = min(left, s.by)
		}
	}
	return kept, left
}

// ofCommonScale returns the weights of a file over the number that most of them are times what they would be if they were kept; none where there is no such number.
func ofCommonScale(seen []seenWeight, relative float64) []seenWeight {
	var list []float64
	for _, s := range seen {
		if q := s.x / s.w; q > 0 && !math.IsInf(q, 0) {
			list = append(list, q)
		}
	}
	slices.Sort(list)
	k, most, lo := math.NaN(), 0, 0
	for hi := range list {
		for list[hi]-list[lo] > relative*list[hi] {
			lo++
		}
		if hi-lo+1 > most {
			k, most = list[(lo+hi)/2], hi-lo+1
		}
	}
	if most < 3 {
		return nil
	}
	for i := range seen {
		seen[i].x /= k
		seen[i].e = relative * max(seen[i].w, math.Abs(seen[i].x))
	}
	return seen
}
