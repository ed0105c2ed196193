package stage

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func logpChecks() []*Check {
	return []*Check{{
		ID: "logp/range", Stage: convention.LogP,
		Title:   "log-probabilities are at most 0",
		Formula: "logp ≤ 0, but for the rounding of a log-sum-exp of logits up to 128",
		Source:  "identity; TRL PPO's sentinel INVALID_LOGPROB = 1; V01",
		Fix:     "look for cells that hold a sentinel, an entropy or a probability instead",
		Assert:  assertLogpRange,
	}, {
		ID: "logp/entropy_range", Stage: convention.LogP,
		Title:   "entropies lie between 0 and ln V",
		Formula: "0 ≤ H ≤ ln V, but for the rounding of Σ p·ln p with logits up to 128; V from logits or vocab_size",
		Source:  "identity; TRL 2022, 2281, 6121: sentinel log-probs in the sum; V05",
		Fix:     "look for padding in the sum, and for a sum of log-probs of the sampled tokens in place of an entropy",
		Assert:  assertEntropyRange,
	}, {
		ID: "logp/sampled", Stage: convention.LogP, Output: "entropy",
		Title:   "log-probs of sampled tokens are their negative entropies on average",
		Formula: "Σ (logp_new + entropy) = 0 within 8·√(Σ(x² + 2v)/3), v the largest variance of ln p that the entropy allows, where tokens are drawn from what the entropies are of",
		Source:  "E[ln p(a)] = −H for a drawn from p; Delyon 2009 for sums of martingales; V05, V10",
		Fix:     "print logits, log-prob and entropy of one token: the same temperature, natural logarithms, no padding; then top-p, top-k and other processors of the engine",
		Assert:  sampledEntropy,
	}, {
		ID: "logp/new", Stage: convention.LogP, Output: "logp_new",
		Title:   "log-probability of the token that was sampled",
		Formula: "logp = z_id − ln Σ_j e^{z_j}, z = logits/(logp.temperature + logp.temp_eps)",
		Source:  "definition; TRL selective_log_softmax, verl logprobs_from_logits; V08, V09",
		Fix:     "compare with the row before and the row after (a shift by one token), and with the logits not divided by the temperature",
		Applies: hasLogits,
		Predict: func(c *Case) *Prediction { return predictLogits(c, false) },
	}, {
		ID: "logp/entropy", Stage: convention.LogP, Output: "entropy",
		Title:   "entropy of the distribution that each token was drawn from",
		Formula: "H = ln Σ_j e^{z_j} − Σ_j p_j·z_j, z the logits, divided by the temperature if entropy.logits is scaled",
		Source:  "definition; scaled in TRL, verl and open-instruct, unscaled in OpenRLHF; V05",
		Fix:     "look at whether the logits are those after the division by the temperature, and at the dtype of the sum",
		Applies: hasLogits,
		Predict: func(c *Case) *Prediction { return predictLogits(c, true) },
	}}
}

func hasLogits(c *Case) bool { return c.Has("logits") }

// The names of the tensors that hold log-probabilities.
var logpNames = []string{"logp_new", "logp_old", "logp_gen", "logp_ref"}

// most is how many violations of one kind are kept: enough to see a pattern.
const most = 64

// offsets of the range checks, in units of u.
const (
	logpSlack    = 128 // |log-sum-exp|
	entropySlack = 512 // the sums over the vocabulary, too
)

func assertLogpRange(c *Case) *Assertion {
	a := &Assertion{}
	limit := logpSlack * c.Unit
	for _, name := range logpNames {
		x := c.B.Token(name)
		if x == nil {
			continue
		}
		n := 0
		for i, v := range x {
			if !c.B.Mask[i] {
				continue
			}
			a.Checked++
			if v > limit { // NaN is found by masks/finite
				if n++; n <= most {
					a.Violations = append(a.Violations, Violation{
						Reason: fmt.Sprintf("%s is a log-probability above 0", name), Row: i / c.B.Cols, Col: i % c.B.Cols, Got: v})
				}
			}
		}
		if n > most {
			if a.Note != "" {
				a.Note += "; "
			}
			a.Note += fmt.Sprintf("%s: %d cells above 0", name, n)
		}
	}
	return a
}

// vocabulary returns the number of tokens that the model knows, NaN if it is not known.
func (c *Case) vocabulary() float64 {
	if t := c.B.Tensors["logits"]; t != nil && t.Width > 0 {
		return float64(t.Width)
	}
	return c.FactOr("vocab_size", math.NaN())
}

func assertEntropyRange(c *Case) *Assertion {
	x := c.B.Token("entropy")
	if x == nil {
		return &Assertion{}
	}
	a := &Assertion{}
	slack := entropySlack * c.Unit
	top := math.Log(c.vocabulary())
	if math.IsNaN(top) {
		a.Note = "vocab_size is not known: only H ≥ 0 is asserted"
	}
	n, fault := 0, c.belowZero(x)
	for i, v := range x {
		if !c.B.Mask[i] {
			continue
		}
		a.Checked++
		reason, of := "", ""
		switch {
		case v < -slack:
			reason, of = cmp.Or(fault, "entropy below 0"), "ENTROPY-FORM"
		case v > top+slack: // false without a top
			reason = fmt.Sprintf("entropy above ln V = %.4g", top)
		default:
			continue
		}
		if n++; n <= most {
			a.Violations = append(a.Violations, Violation{Reason: reason, Row: i / c.B.Cols, Col: i % c.B.Cols, Got: v})
			if fault != "" {
				a.Violations[n-1].Fault = of
			}
		}
	}
	if n > most {
		if a.Note != "" {
			a.Note += "; "
		}
		a.Note += fmt.Sprintf("%d entropies out of range", n)
	}
	return a
}

// belowZero says what entropies below 0 are where they are too many and too far to be of rounding: H = −Σ p·ln p is at least 0 for any p. If all are
// below 0, and as large as the log-probs of sampled tokens are on average, E[−ln p] = H, the minus is missing. "" is for a few small ones.
func (c *Case) belowZero(x []float64) string {
	const least, far, share = 8, 0.05, 0.05
	var n, below, sum, logp float64
	lp := c.B.Token("logp_new")
	whole := len(lp) == len(x)
	for i, v := range x {
		if !c.B.Mask[i] {
			continue
		}
		n++
		if sum += v; v < -far {
			below++
		}
		if whole {
			logp += lp[i]
		}
	}
	switch {
	case below < least || below < share*n:
		return ""
	case below == n && whole && math.Abs(sum-logp) < math.Abs(sum)/4:
		return "entropy below 0, as all of them are, and as large as the log-probs: the minus is missing"
	}
	return "entropy below 0, which no distribution has"
}

// logitRows returns the rows that logits were dumped of, and logits as row k of them holds the tokens of row rows[k].
func (c *Case) logitRows() (rows []int, logits []float64, vocab int) {
	t := c.B.Tensors["logits"]
	if t == nil || t.Width < 1 {
		note(&c.Absent, "logits")
		return nil, nil, 0
	}
	switch {
	case t.Layout == dump.PerToken:
		for r := range c.B.Rows {
			rows = append(rows, r)
		}
	case t.Layout == dump.Slice:
		rows = t.Rows
	}
	if len(t.Data) != len(rows)*c.B.Cols*t.Width {
		note(&c.Absent, "logits of every cell of a row")
		return nil, nil, 0
	}
	return rows, t.Data, t.Width
}

// MeanLogps returns the mean over the vocabulary of the log-probs that the logits of each cell give, NaN where there are none; nil without logits, or where some are −∞.
func (c *Case) MeanLogps() []float64 {
	d := c.Of(c.B, c.Set)
	rows, logits, vocab := d.logitRows()
	if !d.OK() {
		return nil
	}
	t := c.NumOr("logp.temperature", 1)
	out := slices.Repeat([]float64{math.NaN()}, len(c.B.Mask))
	for k, r := range rows {
		for col := range c.B.Cols {
			if r >= c.B.Rows || !c.B.Mask[r*c.B.Cols+col] {
				continue
			}
			x := logits[(k*c.B.Cols+col)*vocab : (k*c.B.Cols+col+1)*vocab]
			top := slices.Max(x) / t
			var sum, mean float64
			for _, z := range x {
				sum, mean = sum+math.Exp(z/t-top), mean+z/t/float64(vocab)
			}
			if out[r*c.B.Cols+col] = mean - top - math.Log(sum); math.IsInf(mean, 0) || math.IsNaN(mean) {
				return nil
			}
		}
	}
	return out
}

// predictLogits predicts log-probabilities or entropies where the logits are there.
//
// With z_j = x_j/t, e_z = 2u·|z_j| (0 for t = 1), d_j = z_j − max z and p_j = e^{d_j}/S, the sum S has the relative error
//
//	ρ = Σ_j p_j·(u·|d_j| + e_z,j) + e_exp + n·u
//	logp: ρ/(1 − ρ) + e_log·|ln S| + u·(|max| + |lse|) + e_z,id + u·(2|z_id| + |logp|)
//	H:    ρ/(1 − ρ) + e_log·|ln S| + u·(|max| + |lse| + |H|) + Σ_j p_j·(m_j·(r_j + (2 + n)·u) + e_z,j)
//
// where r_j = u·|d_j| + e_z,j + e_exp + ρ + 2u is the relative error of p_j and m_j the largest of |z_j|, |d_j| and |ln p_j|, which are
// what it multiplies in one form or another. To these comes what errors of the logits do, see [softmaxError.shift].
func predictLogits(c *Case, entropy bool) *Prediction {
	b := c.B
	output := "logp_new"
	if entropy {
		output = "entropy"
	}
	if perRow, ok := c.layout(output); !ok || perRow {
		return c.lacks(output + " per token")
	}
	var o rl.LogProbOptions
	scaled := true
	if entropy {
		which := ""
		if c.Set.Value("entropy.logits").Kind() != convention.Enum && c.undivided() { // both are the same
			which = c.EnumOr("entropy.logits", "unscaled")
		} else {
			which = c.Enum("entropy.logits")
		}
		switch which {
		case "":
			return nil
		case "unscaled":
			scaled = false
		case "monte_carlo":
			return c.lacks("an entropy per token (entropy.logits monte_carlo is a mean)")
		}
	}
	if scaled { // where there is no temperature, it divides nothing
		o = rl.LogProbOptions{Temperature: c.temperature(), TempEps: c.Default("logp.temp_eps", 0)}
	}
	rows, logits, vocab := c.logitRows()
	stored := c.rounding("logits")
	if !c.OK() {
		return nil
	}
	n := b.Rows * b.Cols
	of := knownEntropies{logits: logits, mask: b.Mask, rows: rows, cols: b.Cols, unit: c.Unit, o: o}
	if entropy && stored == nil {
		if p := c.entropies.get(of); p != nil {
			return p
		}
	}
	p := &Prediction{Want: make([]float64, n), Bound: make([]float64, n), Judge: make([]bool, n), Scale: 1}
	type term struct{ id, z, lse float64 }
	terms := make([]term, n)
	rounding := 2 * (c.Unit + tol.U64)
	t := o.Temperature + o.TempEps
	if !scaled || t == 1 {
		t, rounding = 1, 0
	}
	for k, r := range rows {
		for col := range b.Cols {
			i := r*b.Cols + col
			if r >= b.Rows || !b.Mask[i] {
				continue
			}
			x := logits[(k*b.Cols+col)*vocab : (k*b.Cols+col+1)*vocab]
			id := 0
			if !entropy {
				var ok bool
				if id, ok = b.TokenID(r, col); !ok {
					return c.lacks("response_ids")
				}
				if id < 0 || id >= vocab { // found by masks/ids, and no log-prob of it
					continue
				}
			}
			p.Judge[i] = true
			s := softmaxErrors(x, t, rounding, c.Unit)
			var e []float64
			if stored != nil {
				e = stored[(k*b.Cols+col)*vocab : (k*b.Cols+col+1)*vocab]
			}
			if entropy {
				rl.Entropy(p.Want[i:i+1], x, vocab, rl.EntropyOptions{LogProbOptions: o})
				p.Bound[i] = s.entropy(p.Want[i], c.Unit)
				if e != nil {
					_, shift := s.shift(x, e, t, 0, p.Want[i])
					p.Bound[i] += shift
				}
			} else {
				rl.LogProbs(p.Want[i:i+1], x, []int{id}, vocab, o)
				p.Bound[i] = s.logp(x[id]/t, p.Want[i], rounding, c.Unit)
				if e != nil {
					shift, _ := s.shift(x, e, t, id, 0)
					p.Bound[i] += shift
				}
			}
			p.settle(i, math.MaxFloat64)
			terms[i] = term{float64(id), x[id] / t, s.top + s.logS}
		}
	}
	p.Terms = func(i int) []Term {
		list := []Term{{"log-sum-exp", terms[i].lse}, {"divisor of the logits", t}}
		if !entropy {
			list = append(list, Term{"token id", terms[i].id}, Term{"its logit, divided", terms[i].z})
		}
		return list
	}
	if entropy && stored == nil {
		c.entropies.put(of, p)
	}
	return p
}

// temperature returns what logits are divided by: 1 of a cross-entropy of labels, which nothing divides unless it is said (transformers
// ForCausalLMLoss, TRL SFTTrainer).
func (c *Case) temperature() float64 {
	if c.B.Meta.Algorithm == "sft" {
		return c.Default("logp.temperature", 1)
	}
	return c.NumOr("logp.temperature", 1)
}

// undivided reports whether the logits are known to be divided by 1, or by nothing.
func (c *Case) undivided() bool {
	t := c.Set.Value("logp.temperature")
	if t.Kind() == convention.Unknown {
		return false
	}
	note(&c.Read, "logp.temperature")
	return t.Kind() != convention.Number || t.Num()+c.Default("logp.temp_eps", 0) == 1
}

// softmaxError holds what the errors of one softmax need.
type softmaxError struct {
	top, logS, rho float64
	spread         float64 // Σ p·(m·(r + (2 + n)u) + e_z)
}

func softmaxErrors(x []float64, t, rounding, unit float64) (s softmaxError) {
	u := unit + tol.U64
	s.top = math.Inf(-1)
	for _, v := range x {
		s.top = max(s.top, v/t)
	}
	var sum, err float64
	for _, v := range x {
		z := v / t
		if d := z - s.top; !math.IsInf(d, -1) {
			e := math.Exp(d)
			sum += e
			err += e * (u*math.Abs(d) + rounding*math.Abs(z))
		}
	}
	n := foldError(len(x), unit)
	s.logS = math.Log(sum)
	s.rho = err/sum + elementaryError(unit) + n
	for _, v := range x {
		z := v / t
		if d := z - s.top; !math.IsInf(d, -1) {
			p, ez := math.Exp(d)/sum, rounding*math.Abs(z)
			m := max(math.Abs(z), math.Abs(d), math.Abs(d-s.logS))
			s.spread += p * (m*(u*math.Abs(d)+ez+elementaryError(unit)+s.rho+4*u+n) + ez)
		}
	}
	return s
}

// shift bounds what errors e of the logits do to the log-prob of a token and to the entropy H. With δ_j = e_j/t, q_j = |ln p_j + H| and
// s the largest δ, to first order and with a bound of the second derivatives on the way, where a probability is at most e^{2s} times
// what it is,
//
//	logp: (1 − p_id)·δ_id + Σ_{j≠id} p_j·δ_j + ½·e^{2s}·Σ p_j·δ_j²
//	H:    Σ p_j·q_j·δ_j + e^{8s}·Σ p_j·(1 + q_j)·(δ_j² + (Σ p·δ)²)
//
// since ∂ln Σeᶻ/∂z = p with the covariance of p as second derivative, and along δ dH = −Cov(z, δ), d²H = −Var(δ) − E[(z − Ez)(δ − Eδ)²];
// e^{8s} is more than p, (Σ p·δ)² and q can grow on the way together.
func (s *softmaxError) shift(x, e []float64, t float64, id int, h float64) (logp, entropy float64) {
	var first, square, entropic, most float64
	for j, v := range x {
		lnP := v/t - s.top - s.logS
		p, d := math.Exp(lnP), e[j]/t
		if p == 0 {
			continue
		}
		most = max(most, d)
		first += p * d
		square += p * d * d
		entropic += p * math.Abs(lnP+h) * d
	}
	p := math.Exp(x[id]/t - s.top - s.logS)
	d := e[id] / t
	logp = (1-2*p)*d + first + math.Exp(2*most)*square/2
	for j, v := range x {
		lnP := v/t - s.top - s.logS
		if p := math.Exp(lnP); p > 0 {
			d := e[j] / t
			entropy += p * (1 + math.Abs(lnP+h)) * (d*d + first*first)
		}
	}
	return logp, entropic + math.Exp(8*most)*entropy
}

// lse bounds the log-sum-exp.
func (s *softmaxError) lse(unit float64) float64 {
	if !(s.rho < 1) {
		return math.Inf(1)
	}
	return s.rho/(1-s.rho) + elementaryError(unit)*math.Abs(s.logS) + (unit+tol.U64)*(math.Abs(s.top)+math.Abs(s.top+s.logS))
}

func (s *softmaxError) logp(z, logp, rounding, unit float64) float64 {
	u := unit + tol.U64
	return s.lse(unit) + rounding*math.Abs(z) + u*(2*math.Abs(z)+math.Abs(logp))
}

func (s *softmaxError) entropy(h, unit float64) float64 {
	u := unit + tol.U64
	return s.lse(unit) + s.spread + u*math.Abs(h)
}
