package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// engineMode is a way in which weights for the engine's log-probs, which were not dumped, may multiply a loss: the weight of a token that is
// kept, and the number that decides, both by their place in [lossCell.engine].
type engineMode struct {
	level, rule string
	kept, by    int
	gate        string // what decides where it is no weight
}

var engineModes = []engineMode{{"token", "", 0, 0, ""}, {"seq_sum", "", 1, 1, ""}, {"seq_geo", "", 2, 2, ""}, {"seq_geo", "seq_filter", 0, 2, ""},
	{"token", "", 0, 3, "binary_kl"}, {"token", "", 0, 4, "tv"}, {"seq_geo", "seq_filter", 0, 5, "binary_kl"}, {"seq_geo", "seq_filter", 0, 6, "tv"}}

// engineStats are what the log-probs of trainer and engine make of a token: exp(old − gen) of the token, of the sum and of the mean over its row; the
// divergences of the two probabilities of the token, see [rl.TISGate], binary KL and total variation, and their means over its row.
type engineStats [7]float64

// engineWeights returns the weights of a cell of every level.
func engineWeights(step Step, p *policy) func(i int) engineStats {
	b, none := step.B, engineStats{math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	old, gen := b.Token("logp_old"), b.Token("logp_gen")
	if old == nil || gen == nil || b.Tensors["is_weights"] != nil {
		return func(int) engineStats { return none }
	}
	return ofEngine(b, old, gen, p.mask)
}

// ofEngine returns what the log-probs make of a cell.
func ofEngine(b *dump.Batch, old, gen []float64, mask []bool) func(i int) engineStats {
	rows := make([]engineStats, b.Rows) // sums: of the log-ratio, of tokens, then of the divergences
	token := func(i int) (kl, tv float64) {
		p, q := max(min(math.Exp(gen[i]), 1-1e-6), 1e-6), max(min(math.Exp(old[i]), 1-1e-6), 1e-6)
		return p*math.Log(p/q) + (1-p)*math.Log((1-p)/(1-q)), math.Abs(p - q)
	}
	for i, m := range mask {
		if m {
			row := &rows[i/b.Cols]
			kl, tv := token(i)
			row[1], row[2], row[5], row[6] = row[1]+old[i]-gen[i], row[2]+1, row[5]+kl, row[6]+tv
		}
	}
	return func(i int) engineStats {
		row := rows[i/b.Cols]
		kl, tv := token(i)
		return engineStats{math.Exp(old[i] - gen[i]), math.Exp(row[1]), math.Exp(row[1] / row[2]), kl, tv, row[5] / row[2], row[6] / row[2]}
	}
}

// offDivergence is what a divergence of two probabilities may be off in float32: it is a sum of terms of up to 1, each of a logarithm that is a rounding
// or two of its argument off.
const offDivergence = 8 * tol.U32

// seenWeight is a weight x, known to e, and what the log-probs make of its token: the weight w if it is kept, and the number that decides.
type seenWeight struct{ x, e, w, by float64 }

// shows reads off weights what becomes of those outside bounds, and returns the options that say so and the weights that they make; nil where
// weights of this mode, or a rule for them, do not show.
func (m engineMode) shows(seen []seenWeight) (list []assign, made func(w, by float64) float64) {
	const least = 8 // weights that a rule is read from
	var plain, odd int
	zero := false                             // a divergence of 0 is below its bound
	below, above := math.Inf(-1), math.Inf(1) // of what decides: the largest left out below 1, the smallest above
	low, high := math.Inf(1), math.Inf(-1)    // the smallest and the largest kept
	var stopLow, stopLowE, stopHigh, stopHighE []float64
	for _, c := range seen {
		switch {
		case math.Abs(c.x-c.w) <= c.e:
			low, high = min(low, c.by), max(high, c.by)
			plain++
		case c.x == 0 && m.gate != "" && c.by <= offDivergence: // rounding has made it less than 0
			zero = true
		case c.x == 0 && c.by < 1 && m.gate == "":
			below = max(below, c.by)
		case c.x == 0:
			above = min(above, c.by)
		case c.x < c.w && m.kept == m.by:
			stopHigh, stopHighE = append(stopHigh, c.x), append(stopHighE, c.e)
		case m.kept == m.by:
			stopLow, stopLowE = append(stopLow, c.x), append(stopLowE, c.e)
		default:
			odd++
		}
	}
	stops := len(stopLow) + len(stopHigh)
	dropped := zero || !math.IsInf(below, 0) || !math.IsInf(above, 0)
	slack := 0.0
	if m.gate != "" {
		slack = offDivergence
	}
	split := odd+stops == 0 && dropped && plain >= least && below < low && high < above+slack // all are whole or 0, by what decides alone
	if len(seen) < least || 4*plain < len(seen) && !split || 20*odd > len(seen) || stops > 0 && dropped || m.gate != "" && !dropped {
		return nil, nil
	}
	list = []assign{word("tis.level", m.level)}
	if m.gate != "" {
		list = append(list, word("tis.gate", m.gate))
	}
	limit := func(option string, v interval) float64 {
		a := numbers(option, v)[0]
		list = append(list, a)
		if v.n == 0 {
			return math.NaN()
		}
		return a.value.Num()
	}
	between := func(lo, hi float64) interval {
		if m.gate != "" && lo >= hi && lo-hi <= offDivergence { // the program rounds what decides
			lo, hi = hi-offDivergence, lo+offDivergence
		}
		if math.IsInf(lo, 0) || math.IsInf(hi, 0) || !(lo < hi) {
			return interval{}
		}
		return interval{lo: lo, hi: hi, mid: (lo + hi) / 2, n: 1}
	}
	if m.rule != "" || stops == 0 {
		rule := m.rule
		if rule == "" {
			rule = "zero_outside"
		}
		list = append(list, word("tis.rule", rule))
		lower := math.NaN()
		if zero {
			list = append(list, amount("tis.low", 0))
		} else {
			lower = limit("tis.low", between(below, low))
		}
		upper := limit("tis.high", between(high, above))
		return list, func(w, by float64) float64 {
			if by < lower || by > upper {
				return 0
			}
			return w
		}
	}
	list = append(list, word("tis.rule", "clamp"))
	lower, upper := limit("tis.low", meet(stopLow, stopLowE)), limit("tis.high", meet(stopHigh, stopHighE))
	return list, func(w, by float64) float64 {
		switch {
		case by < lower:
			return lower
		case by > upper:
			return upper
		}
		return w
	}
}

// weigh reads off tokens whose ratio is 1, where the loss of a surrogate is −A·w, what becomes of weights, and returns the tokens with them and
// the options that say so; nil where [engineMode.shows] nothing. Of a loss with a KL term nothing is read.
func (m engineMode) weigh(cells []lossCell, place string) (weighted []lossCell, list []assign) {
	if place != "" || len(cells) == 0 || math.IsNaN(cells[0].engine[0]) {
		return nil, nil
	}
	var seen []seenWeight
	for i := range cells {
		c := &cells[i]
		if math.Abs(c.rho-1) > 8*tol.U32+c.rhoE || c.adv == 0 {
			continue
		}
		x, w := -c.loss/c.adv, c.engine[m.kept]
		seen = append(seen, seenWeight{x: x, e: 4*c.u*math.Abs(x) + 1e-5*w, w: w, by: c.engine[m.by]})
	}
	list, made := m.shows(seen)
	if list == nil {
		return nil, nil
	}
	weighted = slices.Clone(cells)
	for i := range weighted {
		c := &weighted[i]
		c.w = made(c.engine[m.kept], c.engine[m.by])
	}
	return weighted, list
}

// weightForms proposes how weights that were dumped are made of the log-probs of trainer and engine.
func weightForms(batches ...*dump.Batch) (lists [][]assign) {
	for _, m := range engineModes {
		var seen []seenWeight
		relative := 1e-5
		for _, b := range batches {
			gen, old, t := b.Token("logp_gen"), b.Token("logp_old"), b.Tensors["is_weights"]
			if old == nil {
				old = b.Token("logp_new")
			}
			if gen == nil || old == nil || t == nil {
				return nil
			}
			perRow, perToken := b.Row("is_weights"), b.Token("is_weights")
			if perRow == nil && perToken == nil {
				return nil
			}
			if perRow != nil && m.kept == 0 {
				seen = nil
				break
			}
			relative = max(relative, 4*Grid(t.Data))
			of := ofEngine(b, old, gen, b.Mask)
			row := -1
			for i, on := range b.Mask {
				if !on || perRow != nil && row == i/b.Cols {
					continue
				}
				row = i / b.Cols
				engine := of(i)
				s := seenWeight{w: engine[m.kept], by: engine[m.by]}
				if perRow != nil {
					s.x = perRow[row]
				} else {
					s.x = perToken[i]
				}
				seen = append(seen, s)
			}
		}
		for i := range seen {
			seen[i].e = relative * seen[i].w
		}
		k := scaleOf(seen, relative)
		for i := range seen {
			seen[i].x /= k
		}
		if list, _ := m.shows(seen); list != nil && k != 1 {
			lists = append(lists, append(list, word("tis.normalize", "true")))
		} else if list != nil {
			lists = append(lists, list)
		}
	}
	return lists
}

// NormalisedWeights reports whether the importance weights of a batch show that the mean of all weights divides them (tis.normalize).
func NormalisedWeights(b *dump.Batch) bool {
	return slices.ContainsFunc(weightForms(b), func(list []assign) bool { return slices.Contains(list, word("tis.normalize", "true")) })
}

// SolveWeights returns the options under which importance weights are right in all steps, where nobody declares them, by the bounds that the steps show
// together: of a bound between a weight that is kept and one that is not each step shows a part.
func SolveWeights(ch *Check, steps []Step) []Fit {
	if ch.ID != "ratio/is_weights" || len(steps) == 0 {
		return nil
	}
	s := &solver{ch: ch, steps: steps}
	var batches []*dump.Batch
	for _, step := range steps {
		batches = append(batches, step.B)
	}
	for _, list := range weightForms(batches...) {
		s.try(list)
	}
	return s.fits
}

// scaleOf returns the number that half of the weights are times what they would be, to a relative error, 1 where there is none, or it is 1: the mean of all
// weights divides them, after those outside the bounds were changed (verl 0.9.1, rollout_is_batch_normalize).
func scaleOf(seen []seenWeight, relative float64) float64 {
	var x []float64
	for _, c := range seen {
		if q := c.x / c.w; c.x > 0 && !math.IsNaN(q) && !math.IsInf(q, 0) {
			x = append(x, q)
		}
	}
	k, near := middle(slices.Clone(x), 4), 0
	for _, q := range x {
		if math.Abs(q-k) <= relative*k {
			near++
		}
	}
	if !(k > 0) || math.Abs(k-1) <= relative || 2*near < len(x) {
		return 1
	}
	return k
}
