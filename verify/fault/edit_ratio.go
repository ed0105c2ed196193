package fault

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A ratio of policies is x = f(a − b), f = exp, a = logp_new and b = logp_old; over a row it is f of the mean or of the sum of a − b. Its edits
// replace f, a or b in the policy term of any loss: the old log-probs with which the right formula gives the same x stand for them,
//
//	b' = a − ln x
//
// and the slope of the loss is multiplied by f'/f of the log-ratio, since it is L'(x)·f' where the right formula has L'(x)·x.
type ratioForm struct {
	id    string // "" is RATIO-FORM
	title string
	log   func(d float64) (y, slope float64) // ln f, and f'/f
	a, b  func(c *stage.Case) []float64      // nil: as they should be
}

// bounds that people write for a log-ratio.
var logBounds = []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 20}

func plainLog(d float64) (y, slope float64) { return d, 1 }

// soft is the gate 4/τ·σ(τ(ρ − 1)) of SAPO (Gao et al. 2025) in place of ρ.
func soft(tau float64) func(d float64) (y, slope float64) {
	return func(d float64) (float64, float64) {
		r := math.Exp(d)
		s := 1 / (1 + math.Exp(-tau*(r-1)))
		return math.Log(4 / tau * s), tau * (1 - s) * r
	}
}

// ofStored returns the case in which log-probs of the rollout that are the engine's stand for the engine's own where a ratio is taken to these: the
// policy loss is the same, and edits of it have one place to read. Weights between engine and trainer, and a KL that is corrected, read the trainer's.
func ofStored(c *stage.Case) *stage.Case {
	gen := c.B.Token("logp_gen")
	if gen == nil || c.Set.Value("ratio.old").String() != "engine" || weighsBesides(c) || c.EnumOr("kl.grad", "naive") != "naive" && numberOr(c, "kl.beta", 0) != 0 {
		return c
	}
	b, set, ok := both(perToken("logp_old", gen), option("ratio.old", "stored"))(c)
	if !ok {
		return c
	}
	return c.Of(b, set)
}

// ratioForms returns the forms that differ from the right one on this batch's log-ratios, the largest of which are least and most.
func ratioForms(least, most float64) []ratioForm {
	list := []ratioForm{
		{title: "1 + d, the first terms of e to the d", log: func(d float64) (float64, float64) { return math.Log1p(d), 1 / (1 + d) }},
		{title: "1 + d + d²/2, the first terms of e to the d", log: func(d float64) (float64, float64) { return math.Log(1 + d + d*d/2), (1 + d) / (1 + d + d*d/2) }},
		{title: "e to the −d: the quotient is inverted", log: func(d float64) (float64, float64) { return -d, -1 }},
		{title: "e to the |d|", log: func(d float64) (float64, float64) { return math.Abs(d), float64(compare(d, 0)) }},
		{title: "e to the −|d|", log: func(d float64) (float64, float64) { return -math.Abs(d), -float64(compare(d, 0)) }},
		{title: "e to the d without its fraction", log: func(d float64) (float64, float64) { return math.Trunc(d), 0 }},
	}
	for _, k := range []float64{0.1, 0.25, 0.5, 1.5, 2, 3, 4, 10} {
		list = append(list, ratioForm{title: fmt.Sprintf("e to the %g·d", k), log: func(d float64) (float64, float64) { return k * d, k }})
	}
	for _, tau := range []float64{1, 2} {
		list = append(list, ratioForm{title: fmt.Sprintf("%g·σ(%g·(e to the d − 1))", 4/tau, tau), log: soft(tau)})
	}
	if least < 0 && most > 0 {
		list = append(list,
			ratioForm{title: "e to the d of at most 0", log: func(d float64) (float64, float64) { return min(d, 0), math.Max(float64(compare(0, d)), 0) }},
			ratioForm{title: "e to the d of at least 0", log: func(d float64) (float64, float64) { return max(d, 0), math.Max(float64(compare(d, 0)), 0) }})
	}
	for _, b := range logBounds {
		held := func(lo, hi float64) func(d float64) (y, slope float64) {
			return func(d float64) (float64, float64) {
				if d < lo || d > hi {
					return min(max(d, lo), hi), 0
				}
				return d, 1
			}
		}
		above, below := most > b, least < -b
		if above && below {
			list = append(list, ratioForm{title: fmt.Sprintf("e to the d held within ±%g", b), log: held(-b, b)})
		}
		if above {
			list = append(list, ratioForm{title: fmt.Sprintf("e to the d of at most %g", b), log: held(math.Inf(-1), b)})
		}
		if below {
			list = append(list, ratioForm{title: fmt.Sprintf("e to the d of at least −%g", b), log: held(-b, math.Inf(1))})
		}
	}
	for i := range list {
		list[i].title = "the ratio is " + list[i].title + ", of d = logp_new − logp_old"
	}
	return list
}

// ratioOperands returns the forms that read another tensor, or another row, on one side of the log-ratio.
func ratioOperands(c *stage.Case) []ratioForm {
	type source struct {
		title string
		of    func(c *stage.Case) []float64
	}
	sources := []source{{"0", func(c *stage.Case) []float64 { return make([]float64, len(c.B.Mask)) }}}
	for _, name := range []string{"logp_new", "logp_old", "logp_gen", "logp_ref"} {
		if c.B.Token(name) == nil {
			continue
		}
		sources = append(sources, source{name, func(c *stage.Case) []float64 { return c.B.Token(name) }})
		if name != "logp_new" && name != "logp_old" {
			continue
		}
		for _, m := range rowMoves {
			sources = append(sources, source{name + " of " + m.title, func(c *stage.Case) []float64 { return ofMicroBatch(c, c.B.Token(name), m.from) }})
		}
	}
	var list []ratioForm
	for _, s := range sources {
		if s.title != "logp_new" {
			list = append(list, ratioForm{title: "the ratio reads " + s.title + " where logp_new should be", log: func(d float64) (float64, float64) { return d, 0 }, a: s.of})
		}
		if s.title != "logp_old" {
			id := ""
			if strings.HasPrefix(s.title, "logp_old of ") {
				id = "OLD-ROWS-ROLLED"
			}
			list = append(list, ratioForm{id: id, title: "the ratio reads " + s.title + " where logp_old should be", log: plainLog, b: s.of})
		}
	}
	if c.EnumOr("ratio.level", "token") == "token" {
		for _, t := range carriedRatios {
			list = append(list, ratioForm{title: "the ratio of a token is the product of those of " + t.title, log: plainLog, b: func(c *stage.Case) []float64 { return carried(c.B, t.back) }})
		}
	}
	return list
}

// carriedRatios are products of the ratios of tokens that stand for that of one.
var carriedRatios = []struct {
	title string
	back  bool
}{{"all tokens up to it", false}, {"all tokens from it on", true}}

// carried returns the old log-probs with which the ratio of every token is the product of those of the tokens up to it, or from it on: logp_new − Σ(logp_new −
// logp_old). It is nil without them.
func carried(b *dump.Batch, back bool) []float64 {
	lp, old := b.Token("logp_new"), b.Token("logp_old")
	if lp == nil || old == nil {
		return nil
	}
	x := slices.Clone(old)
	for r := range b.Rows {
		cells := slices.Collect(b.TokensOf(r))
		if back {
			slices.Reverse(cells)
		}
		d := 0.0
		for _, i := range cells {
			d += lp[i] - old[i]
			x[i] = lp[i] - d
		}
	}
	return x
}

// rowMoves are the ways in which the rows of a micro-batch are read in another order.
var rowMoves = []struct {
	title string
	from  func(r, n int) int
}{
	{"the row before", func(r, n int) int { return (r + n - 1) % n }},
	{"the row behind", func(r, n int) int { return (r + 1) % n }},
	{"the rows in reversed order", func(r, n int) int { return n - 1 - r }},
}

// ofMicroBatch returns x with the rows of every micro-batch in another order.
func ofMicroBatch(c *stage.Case, x []float64, from func(r, n int) int) []float64 {
	y := make([]float64, len(x))
	w := len(x) / max(c.B.Rows, 1)
	for _, f := range c.B.Files {
		for r := f.Lo; r < f.Hi; r++ {
			s := f.Lo + from(r-f.Lo, f.Hi-f.Lo)
			copy(y[r*w:(r+1)*w], x[s*w:(s+1)*w])
		}
	}
	return y
}

// ratioEdits returns the edits of the ratio in the policy term.
func ratioEdits(o *stage.Outcome) []edit {
	if !policyOutput(o) {
		return nil
	}
	c := ofStored(o.Case.Of(o.Case.B, o.Case.Set))
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	if lp == nil || old == nil || c.Optional("advantages").X == nil || c.B.Cols == 0 {
		return nil
	}
	if v := c.Set.Value("ratio.old"); v.Kind() == convention.Enum && v.Text() != "stored" {
		return nil
	}
	d, _ := logRatios(c, lp, old)
	var least, most float64
	for i := range c.B.Tokens() {
		least, most = min(least, d[i]), max(most, d[i])
	}
	var list []edit
	for _, f := range append(ratioForms(least, most), ratioOperands(c)...) {
		list = append(list, edit{id: cmp.Or(f.id, "RATIO-FORM"), title: f.title, changes: 1, predict: f.predict})
	}
	return list
}

// logRatios returns the log-ratio a − b of every token at the declared level, and the number of tokens that share it out: 1 but for a sum
// over the row.
func logRatios(c *stage.Case, a, b []float64) (d, share []float64) {
	d, share = make([]float64, len(a)), make([]float64, len(a))
	level := c.EnumOr("ratio.level", "token")
	for r := range c.B.Rows {
		var sum, n float64
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			d[i], share[i] = a[i]-b[i], 1
			if c.B.Mask[i] {
				sum, n = sum+d[i], n+1
			}
		}
		if level == "token" {
			continue
		}
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			if d[i] = sum / max(n, 1); level == "seq_sum" {
				d[i], share[i] = sum, max(n, 1)
			}
		}
	}
	return d, share
}

func (f ratioForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	c = ofStored(c)
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	if lp == nil || old == nil || c.B.Cols == 0 {
		return nil
	}
	a, b := lp, old
	if f.a != nil {
		a = f.a(c)
	}
	if f.b != nil {
		b = f.b(c)
	}
	if len(a) != len(lp) || len(b) != len(lp) {
		return nil
	}
	d, share := logRatios(c, a, b)
	right, _ := logRatios(c, lp, old)
	standIn, slope := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range lp {
		if standIn[i] = old[i]; !c.B.Mask[i] {
			continue
		}
		y, s := f.log(d[i])
		if math.IsNaN(y) || math.IsInf(y, 0) {
			return nil // no log-prob gives a ratio of 0 or less
		}
		standIn[i], slope[i] = old[i]+(right[i]-y)/share[i], s
	}
	return ofPolicyTerm(perToken("logp_old", standIn), slope, c, ch)
}

// ofPolicyTerm predicts an output of the loss under an input that is for its policy term alone; slope is what the gradient of a token is
// multiplied by.
func ofPolicyTerm(in input, slope []float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	var policy, others *stage.Prediction
	if off, any := otherTermsOff(c); any {
		policy = under(both(off, in), c, ch)
		others = combined(1, under(sameInput, c, ch), -1, under(off, c, ch))
	} else {
		policy = under(in, c, ch)
	}
	if policy == nil {
		return nil
	}
	if ch.Stage == convention.Gradient && slope != nil {
		if len(policy.Want) != len(slope) {
			return nil
		}
		policy = timesCells(policy, 8*c.Unit, func(i int) float64 { return slope[i] })
	}
	if others == nil {
		return policy
	}
	return combined(1, policy, 1, others)
}
