package golden

import (
	"math"

	"plumbline/reference/rl"
)

// LogProbEntropy judges log-probabilities and entropies of logits, and their gradients.
var LogProbEntropy = logProbEntropy.check()

var logProbEntropy = &section{
	name:  "logprob_entropy",
	title: "log-probabilities and entropies are those of the frameworks",
	doc: `Recomputes z_id − ln Σ exp(z), H = ln Σ exp(z) − Σ p·z and Σ p² for z = logits/temperature, and the gradients of their sums,
in float64 from the logits as they were stored. Compares within the roundings of the type that the framework computed in,
float64 included: a bound for each element, without the 1e-12.`,
	source: "options logp.*, entropy.*; reference/rl LogProbs, Entropy, SumPiSquared",
	functions: map[string]recompute{
		"verl logprobs_from_logits":                 logitAnswers,
		"verl logprobs_from_logits_naive":           logitAnswers,
		"openrlhf log_probs_from_logits":            logitAnswers,
		"trl selective_log_softmax":                 logitAnswers,
		"verl entropy_from_logits":                  logitAnswers,
		"verl entropy_from_logits_with_chunking":    logitAnswers,
		"openrlhf compute_entropy":                  logitAnswers,
		"trl entropy_from_logits":                   logitAnswers,
		"verl calculate_sum_pi_squared_from_logits": logitAnswers,
		"trl selective_log_softmax_and_entropy":     logitAnswers,
	},
	faults: logProbEntropyFaults,
}

// units are the unit roundoffs of the types that entries were computed in.
var units = map[string]float64{"float64": u64, "float32": u32, "bfloat16": u16}

// logits is the inputs of this section.
type logits struct {
	x           []float64
	ids         []int
	vocab       int
	keep        []bool // rows that are not selected away
	temperature float64
	u           float64 // unit roundoff of the type computed in
	rows        []logitRow
}

// logitRow is one row of logits with what the bounds need, in float64.
type logitRow struct {
	z              []float64 // logits over temperature
	p              []float64
	lse, h         float64
	largest, moved float64 // max |z| and Σ p·|z| over finite z
}

func readLogits(c *call) *logits {
	l := new(logits)
	v := c.tensor("logits")
	l.x = v.Data
	var lead []int
	if n := len(v.Shape); n > 0 {
		lead, l.vocab = v.Shape[:n-1], v.Shape[n-1]
	}
	l.ids = c.ints("ids", 0, l.vocab, lead...)
	l.keep = make([]bool, len(l.ids))
	for i := range l.keep {
		l.keep[i] = true
	}
	if c.flagOr("row_mask", false) {
		l.keep = c.mask("row_mask", lead...)
	}
	l.temperature = c.numOr("temperature", 1)
	c.within("temperature", l.temperature, l.temperature > 0, "more than 0")
	dtype := c.text("dtype")
	var ok bool
	if l.u, ok = units[dtype]; !ok {
		c.undetermined("dtype %q", short(dtype))
	}
	if c.ok() {
		l.scale()
	}
	return l
}

// scale computes the softmax of every row by its definition.
func (l *logits) scale() {
	l.rows = make([]logitRow, len(l.ids))
	for n := range l.rows {
		r := logitRow{z: make([]float64, l.vocab), p: make([]float64, l.vocab)}
		top, sum := math.Inf(-1), 0.0
		for j := range r.z {
			r.z[j] = l.x[n*l.vocab+j] / l.temperature
			top = max(top, r.z[j])
		}
		for _, z := range r.z {
			sum += math.Exp(z - top)
		}
		r.lse = top + math.Log(sum)
		for j, z := range r.z {
			r.p[j] = math.Exp(z-top) / sum
			if !math.IsInf(z, 0) {
				r.largest = max(r.largest, math.Abs(z))
				r.moved += float64(r.p[j] * math.Abs(z))
				r.h += float64(r.p[j] * (r.lse - z))
			}
		}
		l.rows[n] = r
	}
}

// The bounds are those of a framework that computes in a type of unit roundoff u: a sum of v terms carries v·u, exp and log
// 4u each, the division by a temperature u·|z|. With s = v·u + 8u + 2u·max|z| the relative error of Σ exp(z − max):
//
//	lp  = z_id − lse   s + u·(|z_id| + |lse| + |lp|)
//	H   = lse − Σ p·z  (lse as above) + Σ p·|z|·(s + u·(2 + v)) + u·|H|
//	p                  p·(s + u·(|lse| + 4))   since p = exp(z − lse)
//
// and gradients of H are p·(lse − z − H) with the errors of their factors.
func (r *logitRow) sumError(u float64) float64 {
	return u * (float64(len(r.z)) + 8 + float64(2*r.largest))
}

func (r *logitRow) logProbError(u float64, id int) float64 {
	return r.sumError(u) + float64(u*(math.Abs(r.z[id])+math.Abs(r.lse)+math.Abs(r.z[id]-r.lse)))
}

func (r *logitRow) entropyError(u float64) float64 {
	s := r.sumError(u)
	return s + float64(u*math.Abs(r.lse)) + float64(r.moved*(s+float64(u*float64(2+len(r.z))))) + float64(u*math.Abs(r.h))
}

// probError bounds the error of p_j.
func (r *logitRow) probError(u float64, j int) float64 {
	return r.p[j] * (r.sumError(u) + float64(u*(math.Abs(r.lse)+4)))
}

// entropySlopeError bounds the error of ∂H/∂z_j; tiny is the smallest normal number of the type, below which p underflows.
func (r *logitRow) entropySlopeError(u, tiny float64, j int) float64 {
	p, z := r.p[j], r.z[j]
	if math.IsInf(z, 0) {
		return 0
	}
	ep := r.probError(u, j) + tiny
	p += tiny
	return float64(ep*math.Abs(r.lse-z-r.h)) + float64(p*(r.entropyError(u)+float64(u*(math.Abs(r.lse)+math.Abs(z))))) + float64(u*float64(p*math.Abs(z)))
}

// logitAnswers computes every output that an entry of this section has: functions differ by which.
func logitAnswers(c *call) []answer {
	l := readLogits(c)
	if !c.ok() {
		return nil
	}
	var out []answer
	lo := rl.LogProbOptions{Temperature: l.temperature}
	eo := rl.EntropyOptions{LogProbOptions: lo, ZeroTimesInf: true}
	_, hasLogProb := c.e.Out["logp"]
	if hasLogProb {
		got, bound := rl.LogProbs(nil, l.x, l.ids, l.vocab, lo), make([]float64, len(l.ids))
		for i := range got {
			if bound[i] = l.rows[i].logProbError(l.u, l.ids[i]); !l.keep[i] {
				got[i] = 0 // selected away
			}
		}
		out = append(out, bounded("logp", got, bound, LeakDType))
	}
	stored := l.u // of the entropy, which may be stored in less than it was computed in
	if v := c.e.Out["entropy"]; v != nil {
		if u, ok := units[v.Declared]; ok {
			stored = max(stored, u)
		}
		got, bound := rl.Entropy(nil, l.x, l.vocab, eo), make([]float64, len(l.ids))
		for i := range got {
			if bound[i] = l.rows[i].entropyError(stored); !l.keep[i] {
				got[i] = 0
			}
		}
		out = append(out, bounded("entropy", got, bound, LeakDType))
	}
	if c.e.Out["dsum_dlogits"] != nil {
		ones := make([]float64, len(l.ids))
		for i := range ones {
			ones[i] = 1
		}
		bound := make([]float64, len(l.x))
		if hasLogProb {
			for i := range bound {
				bound[i] = l.rows[i/l.vocab].probError(l.u, i%l.vocab) + l.u
			}
			out = append(out, bounded("dsum_dlogits", rl.LogProbsBackward(nil, ones, l.x, l.ids, l.vocab, lo), bound, LeakDType))
		} else {
			tiny := 0x1p-1022
			if stored > u64 {
				tiny = 0x1p-126 // of float32 and bfloat16
			}
			for i := range bound {
				bound[i] = l.rows[i/l.vocab].entropySlopeError(stored, tiny, i%l.vocab)
			}
			out = append(out, bounded("dsum_dlogits", rl.EntropyBackward(nil, ones, l.x, l.vocab, eo), bound, LeakDType))
		}
	}
	if c.e.Out["sum_pi_squared"] != nil {
		got := rl.SumPiSquared(nil, l.x, l.vocab, lo)
		bound := make([]float64, len(got))
		for i, g := range got {
			r := &l.rows[i]
			bound[i] = float64(g*(float64(2*r.sumError(l.u))+float64(l.u*(float64(2*math.Abs(r.lse))+float64(l.vocab)+8)))) + float64(l.u*g)
		}
		out = append(out, bounded("sum_pi_squared", got, bound, LeakDType))
	}
	return out
}
