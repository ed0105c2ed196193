package stage

import (
	"math"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func ratioChecks() []*Check {
	return []*Check{{
		ID: "ratio/is_weights", Stage: convention.Ratio, Output: "is_weights",
		Title:   "weights for the mismatch between inference engine and trainer",
		Formula: "w = exp(logp_old − logp_gen) of the token, of the sum or of the mean over the row (tis.level), bounded as tis.rule says by tis.low and tis.high",
		Source:  "Yao et al. 2025, off-policy RL by engine mismatch; TRL 1.16 vllm_importance_sampling_mode, verl rollout_corr_helper, OpenRLHF PolicyLoss; V25",
		Fix:     "compare level, bounds and the sign of logp_old − logp_gen with the options; a sum over a row where a mean was meant is the most frequent mistake",
		Predict: predictISWeights,
	}}
}

// ratioOptions returns how log-probs become importance ratios.
func (c *Case) ratioOptions() rl.RatioOptions {
	var o rl.RatioOptions
	level := c.inapplicable("ratio.level", "token")
	if level == "" {
		return o
	}
	o.Level, _ = rl.ParseRatioLevel(level)
	o.LogClamp = c.NumOr("ratio.log_clamp", 0)
	if o.Level != rl.RatioToken {
		o.SeqLogMax = max(c.Default("ratio.seq_log_max", 0), 0)
		o.PerToken = c.EnumOr("ratio.grad", "row") == "token"
	}
	if o.Level == rl.RatioSeqMean {
		o.LenEps = c.Default("ratio.len_eps", 0)
	}
	return o
}

// oldLogp returns the log-probs in the denominator of the ratio; X is nil where they are a detached copy of logp_new. A dump
// that holds logp_old says with it what the denominator is, unless ratio.old is declared to be something else; one of TRL's
// GRPOTrainer without it, where every step is the first of its generation, was trained on a detached copy.
func (c *Case) oldLogp() Input {
	if c.toEngine() {
		return c.Token("logp_gen")
	}
	return c.trainersOld()
}

// toEngine reports whether the denominator of the ratio is the engine's.
func (c *Case) toEngine() bool {
	note(&c.Read, "ratio.old")
	return c.Set.Value("ratio.old").String() == "engine"
}

// trainersOld is oldLogp for what is never taken to the engine's log-probs: estimates of KL, and their weights.
func (c *Case) trainersOld() Input {
	if c.B.Token("logp_old") != nil {
		if c.EnumOr("ratio.old", "stored") == "stopgrad_new" {
			return Input{}
		}
		return c.Token("logp_old")
	}
	if c.onPolicyTRL() {
		note(&c.Read, "ratio.old")
		return Input{}
	}
	switch c.inapplicable("ratio.old", "stored") {
	case "stored", "engine":
		return c.Token("logp_old")
	}
	return Input{}
}

// onPolicyTRL reports whether GRPOTrainer computes no old log-probs and takes per_token_logps.detach() in their place: without vLLM,
// where gradient_accumulation_steps is a multiple of steps_per_generation·num_iterations, as it is by default
// (TRL 1.16, _generate_and_score_completions and _compute_loss).
func (c *Case) onPolicyTRL() bool {
	grpo := strings.HasPrefix(c.Set.Origin("adv.kind"), "trl-grpo@") || strings.EqualFold(c.B.Meta.Framework, "trl") && c.B.Meta.Algorithm == "grpo"
	if !grpo || c.Has("logp_gen") || c.Set.Value("ratio.old").Kind() != convention.Unknown {
		return false
	}
	accumulation := c.FactOr("gradient_accumulation_steps", float64(max(c.B.Meta.MicroBatches, 1)))
	per := c.FactOr("steps_per_generation", accumulation) * c.FactOr("num_iterations", 1)
	return per > 0 && math.Mod(accumulation, per) == 0
}

// ratios are importance ratios, their errors, and what was known of their logarithms.
type ratios struct {
	o     rl.RatioOptions
	x     []float64 // ρ of every cell
	err   []float64 // absolute
	log   []float64 // of a sequence level, by row: the log-ratio before ratio.seq_log_max; nil for tokens
	logE  []float64 // its error
	count []float64 // of a sequence level, by row: what the sum of the log-ratios is divided by
}

// ratios returns the ratios of lp to old, 1 where old is a detached copy of lp. The relative error of ρ = exp(s) is that of s
// and e_exp, and 0 at s = 0 from equal inputs. With d = lp − old
//
//	token     e_s = e_lp + e_old + u·|d|
//	seq_mean  e_s = (Σ(e + u·|d|) + fold(n)·Σ|d|)/n + 2u·|s|
//	seq_sum   e_s = Σe + fold(2n)·Σ(|lp| + |old|)      the sums may have been taken apart (TRL RLOO)
//
// where fold is the error of a sum, see [foldError]. Clamps do not enlarge errors.
func (c *Case) ratios(lp, old Input, mask []bool, o rl.RatioOptions) ratios {
	b, u := c.B, c.Unit+tol.U64
	n := b.Rows * b.Cols
	r := ratios{o: o, err: make([]float64, n)}
	r.x = rl.Ratio(nil, lp.X, old.X, mask, b.Rows, b.Cols, o)
	if old.X == nil {
		old = lp
		if o.Level == rl.RatioToken {
			return r
		}
		old.Err = nil
		lp.Err = nil
	}
	if o.Level == rl.RatioToken {
		for i, x := range r.x {
			if rel := expError(lp.E(i)+old.E(i)+u*math.Abs(lp.X[i]-old.X[i]), u); rel > 0 {
				r.err[i] = x*rel + expUnderflow(c.Unit)
			}
		}
		return r
	}
	r.log, r.logE, r.count = make([]float64, b.Rows), make([]float64, b.Rows), make([]float64, b.Rows)
	for row := range b.Rows {
		var s, size, separate, e, tokens float64
		for i := row * b.Cols; i < (row+1)*b.Cols; i++ {
			if mask != nil && !mask[i] {
				continue
			}
			d := lp.X[i] - old.X[i]
			if o.LogClamp > 0 {
				d = max(min(d, o.LogClamp), -o.LogClamp)
			}
			s += d
			size += math.Abs(d)
			separate += math.Abs(lp.X[i]) + math.Abs(old.X[i])
			e += lp.E(i) + old.E(i)
			tokens++
		}
		count := 1.0
		if o.Level == rl.RatioSeqMean {
			count = max(tokens, 1) + o.LenEps
			e = (e+u*size+foldError(int(tokens), c.Unit)*size)/count + 2*u*math.Abs(s/count)
		} else if size > 0 || e > 0 {
			e += foldError(2*int(tokens), c.Unit) * separate
		}
		r.log[row], r.logE[row], r.count[row] = s/count, e, count
		rel := expError(e, u)
		for i := row * b.Cols; i < (row+1)*b.Cols; i++ {
			if rel > 0 {
				r.err[i] = r.x[i]*rel + expUnderflow(c.Unit)
			}
		}
	}
	return r
}

// expError is the relative error of an exponential whose argument has the error e: 0 if the argument is exact, which is
// where it is a difference of equal numbers.
func expError(e, u float64) float64 {
	switch {
	case e == 0:
		return 0
	case e < 1:
		return e + e*e + elementary*u*(1+e) // e^e − 1 ≤ e + e²
	}
	return math.Expm1(e) + elementary*u*(1+e)
}

// foldError is the error of a sum of n terms relative to the sum of their magnitudes, see [sumError]. Sums of 16-bit numbers are
// accumulated in float32 and rounded once, in every library of tensors.
func foldError(n int, unit float64) float64 {
	if unit > tol.U32 {
		return sumError(n, tol.U32) + unit
	}
	return sumError(n, unit)
}

// tisOptions returns the weights for the mismatch between engine and trainer of a level other than none.
func (c *Case) tisOptions(level string) rl.TISOptions {
	var o rl.TISOptions
	o.Level, _ = rl.ParseTISLevel(level)
	o.Rule, _ = rl.ParseTISRule(c.Enum("tis.rule"))
	o.Gate, _ = rl.ParseTISGate(c.EnumOr("tis.gate", "ratio"))
	o.High = c.NumOr("tis.high", math.Inf(1))
	if o.Rule != rl.TISTruncateUpper {
		o.Low = c.Default("tis.low", 0)
	}
	o.LogClamp = c.Default("tis.log_clamp", 0)
	o.Normalize = c.BoolOr("tis.normalize", false)
	return o
}

// isWeights returns the weights that multiply the policy term, X nil where there are none. Weights that were used are in the
// dump. Without them they are predicted where tis.level is declared, or an engine of its own whose weights nobody switches off: that a profile has a
// level says only how the weights would come about if such an engine had sampled.
func (c *Case) isWeights() Input {
	level := c.EnumOr("tis.level", "")
	if level == "none" {
		return Input{}
	}
	if w := c.Optional("is_weights"); w.X != nil {
		return w
	}
	origin := c.Set.Origin("tis.level")
	if (origin == "search" || strings.Contains(origin, "/")) && !c.Has("logp_gen") { // what a profile says of a run without an engine, found here or by another check
		return Input{}
	}
	engine, _ := c.Set.Fact("use_vllm")
	if level == "" || convention.Named(origin) && engine != true {
		return Input{}
	}
	return c.decided(c.Token("is_weights"))
}

// LossWeights returns the importance weights that multiply the policy term of every token: those of the dump, else what their formula gives
// where it is declared; X nil where there are none.
func (c *Case) LossWeights() Input { return c.isWeights() }

func predictISWeights(c *Case) *Prediction {
	level := c.inapplicable("tis.level", "none")
	if level == "" {
		return nil
	}
	b, n := c.B, c.B.Rows*c.B.Cols
	perRow := b.Row("is_weights") != nil
	p := &Prediction{Want: make([]float64, n), Bound: make([]float64, n), Alt: make([]float64, n), Scale: 1}
	for i := range p.Alt {
		p.Alt[i] = math.NaN()
	}
	if level == "none" {
		for i := range p.Want {
			p.Want[i] = 1
		}
		return c.weightsByRow(p, perRow)
	}
	o := c.tisOptions(level)
	if o.Normalize {
		c.wholeBatch()
	}
	gen := c.Token("logp_gen")
	name := "logp_old"
	if b.Token(name) == nil {
		name = "logp_new"
	}
	old := c.Token(name)
	if !c.OK() {
		return nil
	}
	if perRow && (o.Level == rl.TISToken || o.Rule == rl.TISSeqFilter) {
		return c.lacks("is_weights per token, as tis.level and tis.rule make them")
	}
	mask := b.Mask
	switch {
	case !c.rejects() || perRow:
	case b.Token("is_weights") == nil: // the mask of the loss is smaller than that of the weights
		if o.Normalize || o.Level != rl.TISToken && c.rejectsTokens() {
			return c.lacks("is_weights, which were made before the rejection")
		}
	default:
		if mask = weighedCells(b); o.Level != rl.TISToken && o.Rule == rl.TISZeroOutside {
			old.X = zeroed(b, old.X, gen.X)
		}
	}
	rl.ISWeights(p.Want, old.X, gen.X, mask, b.Rows, b.Cols, o)
	c.weightErrors(p, old, gen, mask, o)
	p.Terms = func(i int) []Term {
		if perRow {
			return []Term{{"tis.low", o.Low}, {"tis.high", o.High}, {"weight", p.Want[i]}}
		}
		return []Term{{"logp_old", old.X[i]}, {"logp_gen", gen.X[i]}, {"tis.low", o.Low}, {"tis.high", o.High}, {"weight", p.Want[i]}}
	}
	return c.weightsByRow(p, perRow)
}

// weightErrors fills in the bounds of weights without the normalisation, and where a bound of the rule lies within the error
// of what it judges, the other decision; then what the normalisation adds:
//
//	w = exp(s)      |w|·(e^{e_s} − 1 + e_exp)      s as in ratios, summed as differences
//	w/mean(w)       relative e_w/|w| + e_mean/mean + 2u; at the level of sequences the mean of the rows' means
func (c *Case) weightErrors(p *Prediction, old, gen Input, mask []bool, o rl.TISOptions) {
	b, u := c.B, c.Unit+tol.U64
	raw := o
	raw.Normalize = false
	w := rl.ISWeights(nil, old.X, gen.X, mask, b.Rows, b.Cols, raw)
	free := raw
	free.Rule, free.Low, free.High, free.Gate = rl.TISClamp, 0, math.Inf(1), rl.TISRatio
	x := rl.ISWeights(nil, old.X, gen.X, mask, b.Rows, b.Cols, free) // before the rule
	var total, totalE, count float64
	at := func(i int) float64 { return old.E(i) + gen.E(i) + u*math.Abs(old.X[i]-gen.X[i]) }
	for r := range b.Rows {
		lo, hi := r*b.Cols, (r+1)*b.Cols
		var size, e, tokens, gate, gateE, own, ownE float64
		for i := lo; i < hi; i++ {
			if mask[i] {
				size += math.Abs(old.X[i] - gen.X[i])
				e += at(i)
				tokens++
				d, de := divergence(old, gen, i, o.Gate, u)
				gate += d
				gateE += de + foldError(1, c.Unit)*math.Abs(d)
			}
		}
		e += foldError(int(tokens), c.Unit) * size
		if o.Level == rl.TISSeqGeo {
			e = e/max(tokens, 1) + 2*u*size/max(tokens, 1)
		}
		gateE = (gateE + foldError(int(tokens), c.Unit)*math.Abs(gate)) / max(tokens, 1)
		gate /= max(tokens, 1)
		for i := lo; i < hi; i++ {
			if !mask[i] {
				continue
			}
			es := e
			if o.Level == rl.TISToken {
				es = at(i)
			}
			ex := x[i] * expError(es, u)
			stat, statE := x[i], ex
			switch {
			case o.Gate == rl.TISRatio:
			case o.Level == rl.TISToken:
				stat, statE = divergence(old, gen, i, o.Gate, u)
			default:
				stat, statE = gate, gateE
			}
			token := math.Exp(old.X[i] - gen.X[i])
			if o.LogClamp > 0 {
				token = math.Exp(max(min(old.X[i]-gen.X[i], o.LogClamp), -o.LogClamp))
			}
			tokenE := token * expError(at(i), u)
			near := statE > 0 && (onEdge(stat, statE, o.Low, u) || onEdge(stat, statE, o.High, u))
			switch o.Rule {
			case rl.TISTruncateUpper, rl.TISClamp:
				p.Bound[i] = statE
				if w[i] != stat && !near {
					p.Bound[i] = 2 * u * math.Abs(w[i]) // the bound itself
				}
			case rl.TISSeqFilter:
				if w[i] != 0 || near {
					p.Bound[i] = tokenE
				}
				if near {
					p.Alt[i] = token - w[i]
				}
			default:
				if w[i] != 0 || near {
					p.Bound[i] = ex
				}
				if near {
					p.Alt[i] = x[i] - w[i]
				}
			}
			own += w[i]
			ownE += p.Bound[i]
			if near && !math.IsNaN(p.Alt[i]) {
				ownE += math.Abs(p.Alt[i] - w[i])
			}
		}
		counts := tokens
		if o.Level != rl.TISToken && tokens > 0 {
			own, ownE, counts = own/tokens, ownE/tokens+(foldError(int(tokens), c.Unit)+u)*own/tokens, 1
		}
		total, totalE, count = total+own, totalE+ownE, count+counts
	}
	if !o.Normalize || total/count <= 1e-8 {
		return
	}
	rel := totalE/total + foldError(int(count), c.Unit) + u
	for i := range p.Want {
		if mask[i] {
			scale := count / total
			p.Bound[i] = p.Bound[i]*scale*(1+rel) + math.Abs(p.Want[i])*(rel+2*u)
			p.Alt[i] *= scale
		}
	}
}

// onEdge reports whether x lies on a limit within its error and the two roundings of the limit. No limit is infinite.
func onEdge(x, e, limit, u float64) bool {
	return !math.IsInf(limit, 0) && math.Abs(x-limit) <= e+2*u*math.Abs(limit)
}

// divergence is the statistic of the gates other than the ratio in cell i, and its error. p and q are clipped to [1e-6, 1 − 1e-6]; their
// complements have an absolute error of u besides. Equal log-probs have a divergence of 0 exactly.
func divergence(old, gen Input, i int, gate rl.TISGate, u float64) (d, e float64) {
	probability := func(x Input) (p, e float64) {
		p = max(min(math.Exp(x.X[i]), 1-1e-6), 1e-6)
		return p, p*(elementary*u+math.Expm1(x.E(i))) + u
	}
	p, ep := probability(gen)
	q, eq := probability(old)
	if old.X[i] == gen.X[i] && old.E(i) == 0 && gen.E(i) == 0 {
		return 0, 0 // the same operations on the same numbers
	}
	switch gate {
	case rl.TISTV:
		return math.Abs(p - q), ep + eq + u*math.Abs(p-q)
	case rl.TISBinaryKL:
		l, m := math.Log(p/q), math.Log((1-p)/(1-q))
		d = float64(p*l) + float64((1-p)*m)
		el := ofLog(ep/p) + ofLog(eq/q) + u + elementary*u*math.Abs(l)
		em := ofLog((ep+u)/(1-p)) + ofLog((eq+u)/(1-q)) + u + elementary*u*math.Abs(m)
		e = (p+ep)*el + ep*math.Abs(l) + (1-p+ep+u)*em + (ep+u)*math.Abs(m)
		return d, e + 3*u*(math.Abs(p*l)+math.Abs((1-p)*m))
	}
	return 0, 0
}

// ofLog returns how far a logarithm moves when its argument does by up to the relative error x.
func ofLog(x float64) float64 {
	if x >= 1 {
		return math.Inf(1)
	}
	return -math.Log1p(-x)
}

// weightsByRow reduces a prediction per token, equal within rows, to one per row where the dump has one per row.
func (c *Case) weightsByRow(p *Prediction, perRow bool) *Prediction {
	if !perRow {
		return p
	}
	b := c.B
	if t := b.Tensors["is_weights"]; t.Width != 1 {
		return c.lacks("one weight per row or token")
	}
	q := &Prediction{Want: make([]float64, b.Rows), Bound: make([]float64, b.Rows), Alt: make([]float64, b.Rows), Judge: make([]bool, b.Rows), Scale: p.Scale, Terms: p.Terms}
	for r := range b.Rows {
		q.Alt[r] = math.NaN()
		for i := range b.TokensOf(r) {
			q.Want[r], q.Bound[r], q.Alt[r], q.Judge[r] = p.Want[i], p.Bound[i], p.Alt[i], true
			break
		}
	}
	return q
}

// extent reports whether cell i of the grid is one of its file, not one that was filled up.
func extent(b *dump.Batch, i int) bool {
	n := b.Origin[i/b.Cols].Cols
	return n == 0 || i%b.Cols < n
}
