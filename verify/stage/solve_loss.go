package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// lossCell is a token of which a policy loss is known: ℓ = w·f(ρ, A, lp) + β·k.
type lossCell struct {
	loss, adv, rho, lp, d float64
	w, k                  float64     // 1 and 0 where there is none
	u, rhoE               float64     // relative rounding of the loss; error of ρ
	file, row             int         // micro-batch of a step; response
	engine                engineStats // NaN without an engine, or where weights were dumped
	h                     float64     // entropy, NaN where it was not dumped
	cov                   float64     // covariance by which kl_cov and clip_cov choose
	far                   float64     // mean of gen − lp over its row, without an engine of old − lp
}

// losses proposes the formulas of token losses: for each ratio and each place of a KL term, the numbers that make cells agree.
func (s *solver) losses() {
	b := s.steps[0].B
	if b.Tensors["token_loss"] == nil || b.Tensors["logp_new"] == nil {
		return
	}
	starts := [][]assign{nil}
	if b.Token("logp_old") == nil { // the ratio is taken to a detached copy, as TRL does where a rollout is of one update
		starts[0] = []assign{word("ratio.old", "stopgrad_new")}
	}
	if b.Token("logp_gen") != nil {
		starts = append(starts, []assign{word("ratio.old", "engine")})
	}
	if b.Tensors["is_weights"] != nil {
		starts = append(starts, []assign{word("tis.level", "none")}) // they were dumped, and may not be applied
	}
	for _, start := range starts {
		for _, place := range klPlaces(b) {
			s.tried = 0
			for _, level := range []string{"token", "seq_mean", "seq_sum"} {
				base := append([]assign{word("ratio.level", level)}, start...)
				for _, estimate := range s.likeliest(base, klEstimates(b, place), place) {
					s.from(append(slices.Clone(base), estimate...), level, place)
					if len(s.fits) > 0 {
						break // else the same numbers by another estimate
					}
				}
			}
			if len(s.fits) == 0 {
				s.geometric(place)
			}
			if len(s.fits) > 0 {
				return
			}
		}
	}
}

// from proposes all formulas of one ratio, one place of the KL term and one estimate of it, with the engine's weights as they were dumped or
// as they show.
func (s *solver) from(base []assign, level, place string) {
	cells := s.lossCells(base, place != "")
	if len(cells) == 0 {
		return
	}
	s.formulas(cells, base, level, place)
	for _, w := range engineModes {
		if weighted, more := w.weigh(cells, place); more != nil && len(s.fits) == 0 {
			s.formulas(weighted, append(slices.Clone(base), more...), level, place)
		}
	}
}

// klPlaces returns how a loss may hold the KL term: not at all, or beside the policy term, outside or inside what importance weights multiply.
// Where nobody says whether the losses hold it both are open.
func klPlaces(b *dump.Batch) (places []string) {
	has := b.Meta.TokenLossIncludesKL
	there := b.Token("kl") != nil || b.Token("logp_ref") != nil
	if there && (has == nil || *has) {
		places = append(places, "outside")
		if b.Tensors["is_weights"] != nil {
			places = append(places, "inside")
		}
	}
	switch {
	case has == nil || !*has:
		places = append([]string{""}, places...)
	case b.Token("kl") == nil: // who has no KL term may say that the losses hold it, too
		places = append(places, "")
	}
	return places
}

// klEstimates returns the options of the estimates that a loss may hold: those that were dumped need none.
func klEstimates(b *dump.Batch, place string) [][]assign {
	if place == "" {
		return [][]assign{nil}
	}
	base := []assign{word("kl.place", "loss"), word("kl.under_is_weight", place)}
	if b.Token("kl") != nil {
		return [][]assign{base}
	}
	var list [][]assign
	for _, kind := range []string{"k3", "k1", "k2", "abs"} {
		for _, grad := range []string{"naive", "is_corrected"} {
			list = append(list, append(slices.Clone(base), word("kl.kind", kind), word("kl.grad", grad), word("kl.clamp_in", "none"), word("kl.clamp_out", "none")))
		}
	}
	return list
}

// likeliest returns the two of several estimates under which most tokens have the policy term that a surrogate has where it does not clip, or a
// score function, with one coefficient for all.
func (s *solver) likeliest(base []assign, estimates [][]assign, place string) [][]assign {
	const most = 2
	if len(estimates) <= most {
		return estimates
	}
	agree := make([]int, len(estimates))
	order := make([]int, len(estimates))
	for n, estimate := range estimates {
		order[n] = n
		cells := s.lossCells(append(slices.Clone(base), estimate...), true)
		for _, f := range []func(*lossCell) float64{
			func(c *lossCell) float64 { return -c.adv * c.rho },
			func(c *lossCell) float64 { return -c.adv * c.lp },
			func(c *lossCell) float64 { return -c.adv * c.lp * c.rho },
		} {
			for _, beta := range s.betas(cells, place, f) {
				near := 0
				for i := range cells {
					c := &cells[i]
					if x, e := c.rest(beta, place); c.w != 0 && math.Abs(x-f(c)) <= e+2*c.u*math.Abs(f(c))+math.Abs(c.adv)*c.rhoE {
						near++
					}
				}
				agree[n] = max(agree[n], near)
			}
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return agree[j] - agree[i] })
	best := make([][]assign, most)
	for i := range best {
		best[i] = estimates[order[i]]
	}
	return best
}

// formulas proposes all losses of a token for one ratio; those that a single number of degenerate data would fit come last.
func (s *solver) formulas(cells []lossCell, base []assign, level, place string) {
	s.surrogates(cells, base, level, place)
	if level == "token" && len(s.fits) == 0 {
		s.scoreFunctions(cells, base, place)
	}
	if len(s.fits) == 0 {
		s.cispo(cells, base, place)
	}
	if len(s.fits) == 0 {
		s.sapo(cells, base, place)
	}
}

// lossCells reads the tokens of all steps, with ratios as the options of base make them; nil where something is not there.
func (s *solver) lossCells(base []assign, withKL bool) []lossCell {
	var cells []lossCell
	files, rows := 0, 0
	for _, step := range s.steps {
		set := step.Set.With("loss.kind", word("loss.kind", "ppo").value, "search")
		for _, a := range append([]assign{word("kl.place", "none"), word("ratio.log_clamp", "none"), word("clip.low", "none"), word("clip.high", "none"),
			word("clip.dual", "none"), word("clip.delta", "none")}, base...) {
			if a.option != "kl.place" || a.value.Text() == "none" {
				set = set.With(a.option, a.value, "search")
			}
		}
		a := arithmeticOf(s.ch, step.B)
		c := NewCase(step.B, set, a.Unit)
		c.Promoted = a.Promoted
		p := c.policy(false)
		loss := step.B.Token("token_loss")
		if p == nil || loss == nil || p.ratio.x == nil {
			return nil
		}
		kl, h := step.B.Token("kl"), step.B.Token("entropy")
		if withKL && kl == nil {
			if kl = c.Of(step.B, set.With("kl.place", word("kl.place", "loss").value, "search")).tokenKL().X; kl == nil {
				return nil
			}
		}
		u, _ := step.B.Tensors["token_loss"].Type.Unit()
		u += a.Unit
		old := p.denominator()
		cov := make([]float64, len(loss))
		q := *p
		q.o.Cov.MeanEps = 1e-8
		q.covariance(step.B, func(lo, hi int, x, _ []float64) { copy(cov[lo:hi], x) })
		engine := engineWeights(step, p)
		far := step.B.Token("logp_gen")
		if far == nil {
			far = old.X
		}
		far = rowMeans(step.B, p.mask, far, p.lp.X)
		for f, file := range step.B.Files {
			at := files
			for g := range f {
				if step.B.Files[g].MicroBatch == file.MicroBatch {
					at = files - f + g
					break
				}
			}
			for i := file.Lo * step.B.Cols; i < file.Hi*step.B.Cols; i++ {
				if !p.mask[i] {
					continue
				}
				x := lossCell{loss: loss[i], adv: p.adv.X[i], rho: p.ratio.x[i], rhoE: p.ratio.err[i], lp: p.lp.X[i], d: p.lp.X[i] - old.X[i], w: 1, u: u, file: at, row: rows + i/step.B.Cols, h: math.NaN(), cov: cov[i], engine: engine(i), far: far[i/step.B.Cols]}
				if p.weight.X != nil {
					x.w = p.weight.X[i]
				}
				if withKL {
					x.k = kl[i]
				}
				if h != nil {
					x.h = h[i]
				}
				if !math.IsNaN(x.loss+x.adv+x.rho+x.lp+x.k+x.w) && !math.IsInf(x.loss+x.adv+x.rho+x.k, 0) {
					cells = append(cells, x)
				}
			}
			files++
		}
		rows += step.B.Rows
	}
	return cells
}

// rowMeans returns the mean of x − y over the tokens of every row.
func rowMeans(b *dump.Batch, mask []bool, x, y []float64) []float64 {
	means := make([]float64, b.Rows)
	for r := range means {
		var sum, n float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if mask[i] {
				sum, n = sum+x[i]-y[i], n+1
			}
		}
		means[r] = sum / n
	}
	return means
}

// betas returns what the coefficient of the KL term may be where most cells are f(cell), the policy term without its weight: what is declared,
// or the median of (ℓ − w·f)/k, each weighted by k, then the mean of what lies near it: k rounded to 16 bits is off to either side. It is 0
// where there is no KL term.
func (s *solver) betas(cells []lossCell, place string, f func(*lossCell) float64) []float64 {
	if place == "" {
		return []float64{0}
	}
	if v := s.steps[0].Set.Value("kl.beta"); v.Kind() == convention.Number {
		return []float64{v.Num()}
	}
	var x, w []float64
	for i := range cells {
		c := &cells[i]
		k := c.k
		if place == "inside" {
			k *= c.w
		}
		term := c.w * f(c)
		if math.Abs(k) > 0 {
			x, w = append(x, (c.loss-term)/k), append(w, math.Abs(k)/(c.u*(math.Abs(c.loss)+math.Abs(term))+math.Abs(k)*1e-9))
		}
	}
	return coefficients(x, w)
}

// betaOfRows returns the coefficient of the KL term where the policy terms of the tokens of a row are one number, as they are where the ratio is one of a
// row, or where most ratios of tokens are clipped: what the losses of two tokens differ by is β times what their estimates do.
func (s *solver) betaOfRows(cells []lossCell, place string) []float64 {
	const least = 4
	if place == "" || s.steps[0].Set.Value("kl.beta").Kind() == convention.Number {
		return nil
	}
	var x []float64
	for i := 1; i < len(cells); i++ {
		a, c := &cells[i-1], &cells[i]
		k := c.k - a.k
		if place == "inside" {
			k = c.k*c.w - a.k*a.w
		}
		if a.row == c.row && a.w == c.w && a.adv == c.adv && math.Abs(k) > 64*c.u*math.Abs(c.k) {
			x = append(x, (c.loss-a.loss)/k)
		}
	}
	beta, n := commonest(x)
	if n < least || 4*n < len(x) || !(beta > 0) {
		return nil
	}
	return []float64{written(beta, 1e-3)}
}

// coefficients returns numbers that most of x agree on: the decimals near the mean of what lies near the median, then these themselves.
func coefficients(x, w []float64) []float64 {
	m := weightedMedian(x, w)
	if math.IsNaN(m) {
		return nil
	}
	const near = 1.0 / 64 // several roundings of bfloat16
	var sum, total float64
	for i, v := range x {
		if w[i] > 0 && math.Abs(v-m) <= near*math.Abs(m) {
			sum, total = sum+w[i]*v, total+w[i]
		}
	}
	var list []float64
	for _, v := range []float64{written(m, 1e-5), written(sum/total, 4e-3), written(sum/total, 5e-4), sum / total, m} {
		if !slices.Contains(list, v) && !math.IsNaN(v) {
			list = append(list, v)
		}
	}
	return list
}

// rest returns the policy term of a cell, without weight and KL, and its error; NaN where the weight is 0.
func (c *lossCell) rest(beta float64, place string) (x, e float64) {
	k := beta * c.k
	if place == "inside" {
		k *= c.w
	}
	x = (c.loss - k) / c.w
	return x, (c.u*(math.Abs(c.loss)+3*math.Abs(k)) + 2*c.u*math.Abs(c.loss-k)) / math.Abs(c.w)
}

// withBeta adds the KL coefficient to a proposal.
func withBeta(list []assign, place string, beta float64) []assign {
	if place == "" {
		return list
	}
	return append(slices.Clone(list), amount("kl.beta", beta))
}

// shown are the bounds that the effective ratios x of cells stop at.
type shown struct {
	low, high, dual interval
	dropped, odd, n int // cells whose policy term is 0; that no clip explains; all
}

// bounds reads off the bounds of a ratio: x is the ratio that the loss has, in place of ρ. Where the sign of the advantage decides, a clip
// lowers ρ for A > 0 and raises it for A < 0, and there a lower x is the bound of the dual clip. A dual clip is a second one beyond the first: where
// ratios above it are not clipped for A > 0, what stops there is none.
func bounds(cells []lossCell, signed bool, effective func(*lossCell) (x, e float64)) shown {
	var low, lowE, high, highE, dual, dualE []float64
	var v shown
	free := 0.0 // the largest ratio that is not clipped for A > 0
	for i := range cells {
		c := &cells[i]
		if c.adv == 0 || c.w == 0 {
			continue
		}
		x, e := effective(c)
		if math.IsNaN(x) || math.IsInf(x, 0) || !(e < 0.05) {
			continue
		}
		v.n++
		switch e := e + c.rhoE + 1e-7*c.rho + 2*tol.U32; {
		case x == 0 || math.Abs(x) < e:
			v.dropped++
		case math.Abs(x-c.rho) <= e+c.u*c.rho:
			if c.adv > 0 {
				free = max(free, c.rho)
			}
		case x < c.rho && (!signed || c.adv > 0):
			high, highE = append(high, x), append(highE, e)
		case x > c.rho && (!signed || c.adv < 0):
			low, lowE = append(low, x), append(lowE, e)
		case x < c.rho && c.adv < 0:
			dual, dualE = append(dual, x), append(dualE, e)
		default:
			v.odd++
		}
	}
	if len(dual) > 0 && free > slices.Max(dual)+slices.Max(dualE) {
		v.odd, dual, dualE = v.odd+len(dual), nil, nil
	}
	v.low, v.high, v.dual = meet(low, lowE), meet(high, highE), meet(dual, dualE)
	return v
}

// numbers returns the values of an option that an interval leaves, none where nothing shows it.
func numbers(option string, v interval) []assign {
	if v.n == 0 {
		return []assign{word(option, "none")}
	}
	var list []assign
	for _, x := range v.candidates() {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			list = append(list, amount(option, x))
		}
	}
	return list
}
