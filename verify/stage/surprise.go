package stage

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// sampledEntropy holds the log-probs of sampled tokens against the entropies of the distributions that they were drawn from.
//
// Given all tokens before, x = ln p(a) + H has mean 0 and the variance v of ln p if a is drawn from p, so that S = Σx is a martingale,
// whatever tokens and rows have in common. Since exp(t − t²/6) ≤ 1 + t + t²/3 for all t, E[exp(λx − λ²(x² + 2v)/6)] ≤ 1, and with
// y = Σ(x² + 2v)/3, P(|S| ≥ z·√y, y ≤ Y) ≤ 2·exp(−z²y/2Y) (Delyon 2009, Exponential inequalities for sums of weakly dependent
// variables). It takes no bound of x: v counts what unlikely tokens that did not come would have added. Over 400 values of Y, each 1.2
// times the one before, z = 8 is exceeded with a chance below 800·exp(−64/2.4) = 2e-9. For v see [mostVariance].
//
// Where the tokens come from a policy g that is not p, E[x] is Cov_g(D, ln p) up to terms of its size squared, D = ln g − ln p, and at
// most σ(D)·σ(ln p): twice that is allowed.
//
// Rows that are the same count as one that counts as often. Who filters groups by their rewards, as DAPO does, chooses among the tokens: what
// is below a tenth of the entropy is left alone. Nothing is said where sampling is not declared to be from all of the distribution at the
// temperature of the log-probs, where truncated rows were taken out, nor in 16 bits, whose sums over a vocabulary are off on one side.
func sampledEntropy(c *Case) *Assertion {
	h, lp := c.B.Token("entropy"), c.B.Token("logp_new")
	if h == nil || lp == nil || !c.samplesAll() || Grid(h) > tol.U32 || Grid(lp) > tol.U32 {
		return nil
	}
	name := c.sampler()
	if name == "" {
		return nil
	}
	var n, sum, spread, distance, lpSum, hSum float64
	most := mostVariance(c.logVocabulary())
	from := c.B.Token(name)
	copies := c.copies(lp)
	for i, m := range c.B.Mask {
		x, d := lp[i]+h[i], from[i]-lp[i]
		if !m || math.IsNaN(x+d) || math.IsInf(x+d, 0) || h[i] < 0 {
			continue
		}
		n, sum, distance = n+1, sum+x, distance+float64(d*d)
		spread += copies[i/c.B.Cols] * (float64(x*x) + 2*most(h[i])) / 3
		lpSum, hSum = lpSum+lp[i], hSum+h[i]
	}
	if n < tellingTokens {
		return nil
	}
	a := &Assertion{Checked: int(n), Note: fmt.Sprintf("mean logp_new %.3g, mean entropy %.3g", lpSum/n, hSum/n)}
	z := max(0, math.Abs(sum)-2*math.Sqrt(distance*spread)) / math.Sqrt(spread)
	if z < 8 || math.Abs(sum) < 0.1*hSum {
		return a
	}
	side := "less likely than tokens of these distributions are: it is that of other tokens, sampled at a higher temperature or not at all, or the entropies are too small"
	if sum > 0 {
		side = "more likely than tokens of these distributions are: sampling is truncated or sharper, or the entropies are too large"
		if r := lpSum / hSum; math.Abs(r+math.Ln2) < 0.05 {
			side += ", as bits are where the log-probs are in nats"
		}
	}
	a.Violations = []Violation{{Row: -1, Col: -1, Got: sum / n,
		Reason: fmt.Sprintf("the mean log-prob of %.0f sampled tokens is %.4g and their mean entropy %.4g, where the one is the negative of the other, %.3g of its errors away: they are %s", n, lpSum/n, hSum/n, z, side)}}
	return a
}

// samplesAll reports whether tokens are declared to be sampled from the distribution that the entropies are of: at its temperature, with
// top-p 1, and nothing that cuts off more.
func (c *Case) samplesAll() bool {
	T := c.Set.Value("logp.temperature")
	if T.Kind() != convention.Number || !(T.Num() > 0) {
		return false
	}
	switch c.EnumOr("entropy.logits", "") {
	case "scaled":
	case "unscaled":
		if T.Num() != 1 {
			return false
		}
	default:
		return false
	}
	if cut, _ := c.Set.Fact("mask_truncated_completions"); cut == true {
		return false
	}
	if p, known := c.Set.Fact("top_p"); !known || p != 1.0 {
		return false
	}
	for name := range keepsAll {
		if x, known := c.Set.Fact(name); known && keepsPart(name, x) {
			return false
		}
	}
	return !slices.ContainsFunc(c.B.Meta.Options, func(o dump.Option) bool { return shapesSampling(o) })
}

// sampler names the log-probs of the policy that the tokens were drawn from, "" if none is known.
func (c *Case) sampler() string {
	switch {
	case c.EnumOr("ratio.old", "stored") == "stopgrad_new" && c.B.Token("logp_gen") == nil && c.FactOr("num_iterations", 1) == 1:
		return "logp_new"
	case c.B.Token("logp_gen") != nil && !c.raw():
		return "logp_gen"
	case c.B.Token("logp_old") != nil:
		return "logp_old"
	}
	return ""
}

// logVocabulary returns ln V, or a bound of it.
func (c *Case) logVocabulary() float64 {
	if v := c.vocabulary(); v > 1 {
		return math.Log(v)
	}
	return logVocabulary
}

// mostVariance returns a function that bounds the variance of ln p by the entropy H of p, over e^lnV tokens. It is largest where one token
// has the probability 1 − ε and all others share ε: of the entries of a maximum, ln p solves one quadratic equation; two entries at its
// larger solution could be moved apart, and entries of 0 up, to a larger variance. Then
//
//	H = −(1 − ε)·ln(1 − ε) − ε·ln ε + ε·ln(V − 1),  v = ε·(1 − ε)·ln²((V − 1)·(1 − ε)/ε)
//
// and between two points of a table in steps of 5 % of ε, v is at most 2 % above the larger one of both.
func mostVariance(lnV float64) func(h float64) float64 {
	const points = 800
	others := math.Log(math.Expm1(lnV)) // ln(V − 1)
	hs, vs := make([]float64, points+1), make([]float64, points+1)
	last := math.Log(-math.Expm1(-lnV)) // ε = 1 − 1/V, all tokens alike
	for k := range points {
		lnE := last - 0.05*float64(points-1-k)
		e := math.Exp(lnE)
		rest := math.Log1p(-e)
		hs[k+1] = -(1-e)*rest - e*lnE + e*others
		vs[k+1] = e * (1 - e) * (others + rest - lnE) * (others + rest - lnE)
	}
	return func(h float64) float64 {
		k, _ := slices.BinarySearch(hs, h)
		if k > points {
			return 0
		}
		return 1.02 * max(vs[max(k-1, 0)], vs[k])
	}
}

// unshaped are the values under which options of generation leave the distribution as it is.
var unshaped = map[string][]any{
	"repetition_penalty": {1.0}, "presence_penalty": {0.0}, "frequency_penalty": {0.0}, "no_repeat_ngram_size": {0.0}, "min_new_tokens": {0.0}, "min_tokens": {0.0},
	"min_length": {0.0}, "typical_p": {1.0}, "do_sample": {true}, "num_beams": {1.0}, "ignore_eos": {false}, "logit_bias": {}, "bad_words": {}, "bad_words_ids": {}, "suppress_tokens": {},
	"forced_eos_token_id": {}, "guided_decoding": {}, "structured_outputs": {}, "vllm_structured_outputs_regex": {}, "vllm_guided_decoding_regex": {}, "generation_kwargs": {}, "logits_processor": {},
	"exponential_decay_length_penalty": {},
}

// keepsAll are the numbers with which the cuts of a distribution cut nothing.
var keepsAll = map[string]func(x float64) bool{
	"top_p": func(x float64) bool { return x == 1 }, "top_k": func(x float64) bool { return x <= 0 }, "min_p": func(x float64) bool { return x == 0 },
}

// keepsPart reports whether a number of an option leaves a part of the distribution alone to draw from; what is no number may.
func keepsPart(name string, x any) bool {
	all, known := keepsAll[name]
	k, number := x.(float64)
	return known && !(number && all(k))
}

// shapesSampling reports whether an option of generation changes the distribution that tokens are drawn from.
func shapesSampling(o dump.Option) bool {
	path := strings.Split(o.Name, ".")
	none, known := unshaped[path[len(path)-1]]
	if !known || o.Value == nil || slices.Contains(path, "val_kwargs") {
		return false
	}
	switch v := o.Value.(type) {
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	case string:
		return v != "" && v != "none"
	default:
		return !slices.Contains(none, v)
	}
}

// copies returns how often the row of each row is there, by its log-probs.
func (c *Case) copies(lp []float64) []float64 {
	keys, count := make([]uint64, c.B.Rows), map[uint64]float64{}
	for r := range keys {
		h := fnv.New64a()
		for i := range c.B.TokensOf(r) {
			binary.Write(h, binary.LittleEndian, lp[i])
		}
		keys[r] = h.Sum64()
		count[keys[r]]++
	}
	n := make([]float64, len(keys))
	for r, k := range keys {
		n[r] = count[k]
	}
	return n
}
