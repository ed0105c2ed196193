package stage

import (
	"math"
	"slices"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// fileLoss returns the losses of the files.
func fileLoss(c *Case, rows []span) (x, e []float64) {
	in := c.perFile("loss")
	if !c.OK() {
		return nil, nil
	}
	e = make([]float64, len(rows))
	copy(e, in.Err)
	return slices.Clone(in.X), e
}

// perFile returns a number of every file, predicted if it was not dumped.
func (c *Case) perFile(name string) Input {
	if x := c.B.PerFile(name); x != nil {
		return Input{X: x, Err: c.rounding(name)}
	}
	return c.predicted(name)
}

// lossSize returns the size of the losses of the files.
func (c *Case) lossSize() float64 {
	in := c.perFile("loss")
	var s float64
	for _, x := range in.X {
		s += math.Abs(x)
	}
	return s
}

// maskedMean returns the metric Σ x·m / Σ m of a tensor.
func maskedMean(name string) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		in := c.Token(name)
		if !c.OK() {
			return nil, nil
		}
		m, e := c.means(rows, in.X, in.Err)
		for f := range e { // the sum and the division have the type of the terms
			e[f] += 2 * in.Half * math.Abs(m[f])
		}
		return m, e
	}
}

// anyMeans returns what the mean of a tensor may be of each file where no framework says what the name means: by any aggregation of its tokens, as
// OpenRLHF logs the KL of its loss, and the mean over the ranks of a micro-batch of any, as TRL did up to 1.8, or over the tokens of all ranks, as TRL
// does since, or over those of all that was sampled together, as its RLOOTrainer logs the KL of its rewards; of a step the mean over its files, or
// over its tokens.
func (c *Case) anyMeans(name string, step bool) (list [][]float64) {
	x := c.B.Token(name)
	of := c.aggregated(x)
	if of == nil {
		return nil
	}
	together := func(f, g int) bool { return step || c.B.Files[f].MicroBatch == c.B.Files[g].MicroBatch }
	for _, whole := range []bool{false, true} {
		pooled := make([]float64, len(of))
		for f := range pooled {
			var sum, n float64
			for i, m := range c.B.Mask {
				if m && (whole || together(f, c.B.File(i/c.B.Cols))) {
					sum, n = sum+x[i], n+1
				}
			}
			pooled[f] = sum / n
		}
		list = append(list, pooled)
	}
	for k := range aggregations {
		own, joined := make([]float64, len(of)), make([]float64, len(of))
		for f := range of {
			own[f] = of[f][k]
		}
		for f := range c.B.Files {
			var n float64
			for g := range c.B.Files {
				if together(f, g) {
					n, joined[f] = n+1, joined[f]+own[g]
				}
			}
			joined[f] /= n
		}
		if list = append(list, joined); !step {
			list = append(list, own, times(own, c.accumulation())) // a log is of before the division by the accumulation steps
		}
	}
	return list
}

// rowSums is the mean over rows of the sum of a tensor over the mask, as TRL's PPO logs it. Its error is that of the terms, fold(n) + 2u of
// their magnitudes for sums over at most n cells of at most as many rows, and one more for what is masked by a product.
func rowSums(name string) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		in := c.Token(name)
		if !c.OK() {
			return nil, nil
		}
		mask := c.lossMask()
		return perSpan(rows, func(r span) (x, e float64) {
			var size float64
			for i := r.lo * c.B.Cols; i < r.hi*c.B.Cols; i++ {
				if !mask[i] {
					continue
				}
				x += in.X[i]
				size += math.Abs(in.X[i])
				if in.Err != nil {
					e += in.Err[i]
				}
			}
			n := float64(r.hi - r.lo)
			u := c.Unit + tol.U64
			return x / n, (e + (foldError(c.B.Cols, c.Unit)+foldError(r.hi-r.lo, c.Unit)+3*u+2*in.Half)*size) / n
		})
	}
}

// means returns the means of x over the mask of ranges of rows, and their errors.
func (c *Case) means(rows []span, x, err []float64) (m, e []float64) {
	mask := c.lossMask()
	return perSpan(rows, func(r span) (m, e float64) { return c.meanOver(r, mask, x, err) })
}

// meanOver returns the mean of x over the mask of some rows, and its error: fold(n) + 2u of the sum of magnitudes. verl adds 1e-8
// to the count.
func (c *Case) meanOver(rows span, mask []bool, x, err []float64) (m, e float64) {
	var n, sum, size float64
	for i := rows.lo * c.B.Cols; i < rows.hi*c.B.Cols; i++ {
		if mask[i] {
			n++
			sum += x[i]
			size += math.Abs(x[i])
			if err != nil {
				e += err[i]
			}
		}
	}
	if n == 0 { // clamped to 1 by TRL, 0/0 elsewhere
		return c.emptyMean(), 0
	}
	slack := c.Default("mean.eps", 0) / n
	return sum / n, (e + (foldError(int(n), c.Unit)+2*(c.Unit+tol.U64)+slack)*size) / n
}

// emptyMean is the mean of no tokens.
func (c *Case) emptyMean() float64 {
	if c.inapplicable("mean.empty", "nan") == "zero" {
		return 0
	}
	return math.NaN()
}

// sign is which advantages a clip fraction counts.
type sign int

const (
	anySign sign = iota
	negative
	positive
)

// updateKL returns the mean of logp_old − logp_new over the mask.
func updateKL(c *Case, rows []span) ([]float64, []float64) {
	return c.meanKL(rows, rl.KLK1)
}

// verlUpdateKL returns the same, and the mean of |logp_old − logp_new| under kl_cov: verl 0.9.1's compute_policy_loss_kl_cov logs the
// absolute difference, which its penalty is made of, by the name that its other losses give the signed one.
func verlUpdateKL(c *Case, rows []span) ([]float64, []float64) {
	if c.Set.Value("loss.kind").String() == "kl_cov" {
		return c.meanKL(rows, rl.KLAbs)
	}
	return updateKL(c, rows)
}

// approxKL returns that of k3, or in TRL of k2; see alternative.
func approxKL(c *Case, rows []span) ([]float64, []float64) {
	if strings.EqualFold(c.B.Meta.Framework, "trl") {
		return c.meanKL(rows, rl.KLK2)
	}
	return c.meanKL(rows, rl.KLK3)
}

// meanKL returns the mean over the mask of an estimator of KL(old‖π).
func (c *Case) meanKL(rows []span, kind rl.KLKind) ([]float64, []float64) {
	lp, old := c.Token("logp_new"), c.trainersOld()
	clamp := c.NumOr("ratio.log_clamp", 0)
	if !c.OK() {
		return nil, nil
	}
	if old.X == nil {
		old = lp
	}
	n := len(lp.X)
	o := rl.KLOptions{Kind: kind, ClampIn: clamp, ClampAll: true}
	k, _ := rl.KL(nil, make([]float64, n), old.X, lp.X, nil, o)
	e := eachOf(n, func(i int) float64 { return klBound(o, old.X[i]-lp.X[i], lp.E(i)+old.E(i), c.Unit) })
	return c.means(rows, k, e)
}

// spinningUp makes the mean of logp_old − logp_new an alternative, which loops of nobody's framework log by this name, too: approx_kl of OpenAI's
// Spinning Up (ppo.py).
func (m *metric) spinningUp(c *Case, p *Prediction, rows []span, step bool) {
	x, e := updateKL(c, rows)
	if step {
		m.combine(c, x, e)
	}
	p.closest([][]float64{x})
	for f := range x {
		if p.Alt[f] == x[f] {
			p.Bound[f] = max(p.Bound[f], e[f])
		}
	}
}

// alternative returns approx_kl as the mean of k2, in TRL over all cells: its PPOTrainer fills both log-probs with one number where
// there is no token, and takes 0.5·(diff²).mean() (TRL 1.12.0).
func (m *metric) alternative(c *Case, rows []span, step bool) []float64 {
	x, e := c.meanKL(rows, rl.KLK2)
	if mask := c.lossMask(); strings.EqualFold(c.B.Meta.Framework, "trl") {
		for f, r := range rows {
			tokens, cells := 0, 0 // of the file's own width
			for i := r.lo * c.B.Cols; i < r.hi*c.B.Cols; i++ {
				if extent(c.B, i) {
					cells++
				}
				if mask[i] {
					tokens++
				}
			}
			x[f] *= float64(tokens) / float64(max(cells, 1))
		}
	}
	if step {
		m.combine(c, x, e)
	}
	return x
}

// lengths returns the mean, smallest or largest number of tokens of a row.
func lengths(how combine) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) (x, e []float64) {
		if v, ok := c.Set.Fact("mask_truncated_completions"); ok && v == true {
			note(&c.Absent, "the masks before truncated completions were masked")
			return nil, nil
		}
		n := c.tokensOfRows()
		return perSpan(rows, func(s span) (x, e float64) {
			if how != mean {
				return folded(how, n[s.lo:s.hi]), 0
			}
			for _, v := range n[s.lo:s.hi] {
				x += v
			}
			x /= float64(s.hi - s.lo)
			return x, 2 * (c.Unit + tol.U64) * x
		})
	}
}

// meanScore returns the mean of the scores.
func meanScore(c *Case, rows []span) (x, e []float64) {
	in := c.Row("scores")
	if !c.OK() {
		return nil, nil
	}
	return perSpan(rows, func(s span) (x, e float64) {
		var size float64
		n := float64(len(given(in.X[s.lo:s.hi])))
		if n == 0 {
			return math.NaN(), 0
		}
		for r := s.lo; r < s.hi; r++ {
			if math.IsNaN(in.X[r]) {
				continue
			}
			x += in.X[r] / n
			size += math.Abs(in.X[r]) / n
			e += in.E(r) / n
		}
		return x, e + (foldError(int(n), c.Unit)+2*(c.Unit+tol.U64))*size
	})
}

// given returns the scores of the rows that have one: of a row of which no function gave a reward it is NaN, and logged statistics leave it out
// (TRL 1.16, nanmean and nanstd).
func given(x []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(x), math.IsNaN)
}
