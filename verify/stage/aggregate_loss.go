package stage

import (
	"math"
	"strconv"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// plain prints a count.
func plain(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// policyReduction is the reduction of a loss kind: gmpo is a mean over rows whatever agg.kind says, and over those of a micro-batch (verl 0.9.1,
// compute_policy_loss_geo_mean, torch.mean) unless a program that is not verl says agg.denominator itself.
func (c *Case) policyReduction() *reduction {
	if c.geometric() {
		o := rl.AggOptions{Kind: rl.AggSeqMeanTokenMean, EmptyRows: rl.AggCounted, Outside: rl.OutsideIgnore}
		if c.divides() {
			o.Steps = c.accumulation()
		}
		if !c.OK() {
			return nil
		}
		where := "micro"
		if p := c.Set.Profile(); (p == nil || p.Framework != "verl") && c.Set.Declares("agg.denominator") {
			where = c.Enum("agg.denominator")
		}
		return c.denominators(o, where, true)
	}
	return c.reduction()
}

// klPlace reads whether the loss has a KL term, and its coefficient.
func (c *Case) klPlace() *policy {
	p := &policy{}
	c.klTerm(p, false)
	return p
}

// policySums aggregates token_loss, with the KL term or without it.
func (c *Case) policySums(name string, withKL bool) (sums, *reduction) {
	includes := c.B.Meta.TokenLossIncludesKL
	red := c.policyReduction()
	token := c.Token("token_loss")
	p := &policy{}
	if known := !c.Has("token_loss") || includes != nil && *includes; !withKL || !known || red != nil && c.klReduction(red) != red {
		p = c.klPlace()
	}
	has := p.beta == 0 || !(withKL && c.termsApart(red)) && c.lossHasKL(p)
	if !c.OK() || red == nil {
		return sums{}, nil
	}
	s := red.apply(c, token, c.poisoned(name))
	if rows, ok := red.promotedMeans(c, token, c.B.PerFile("pg_loss")); ok {
		s = rows
	}
	c.withEmptySequences(&s, red)
	if p.beta == 0 {
		return s, red
	}
	by := c.klReduction(red)
	if by == nil || has && withKL && by == red {
		return s, red
	}
	if has { // as it is in token_loss
		kl, ok := c.klSums(p, red, name)
		if !ok {
			return sums{}, nil
		}
		s.add(-p.beta, kl, c.Unit+tol.U64)
	}
	if withKL {
		kl, ok := c.klSums(p, by, name)
		if !ok {
			return sums{}, nil
		}
		s.add(p.beta, kl, c.Unit+tol.U64)
	}
	return s, red
}

// termsApart reports whether token_loss is the policy term alone by the terms of the loss, where nobody says it: its aggregate is pg_loss, divided by
// the accumulation steps or not, of a program that has kl_loss beside it, and loss is not pg_loss. The options of the policy loss need not be known.
func (c *Case) termsApart(red *reduction) bool {
	b := c.B
	pg, kl, loss := b.PerFile("pg_loss"), b.PerFile("kl_loss"), b.PerFile("loss")
	if b.Meta.TokenLossIncludesKL != nil || red == nil || b.Token("token_loss") == nil || len(pg) == 0 || len(kl) == 0 || len(loss) == 0 {
		return false
	}
	d := c.Of(b, c.Set)
	s := red.apply(d, d.Token("token_loss"), d.poisoned("loss"))
	if !d.OK() {
		return false
	}
	u, eta := b.Tensors["pg_loss"].Type.Unit()
	apart := false
	for f, x := range s.x {
		whole, err := x*max(1, red.o[f].Steps), s.err[f]*max(1, red.o[f].Steps)
		if !(math.Abs(pg[f]-x) <= s.err[f]+tol.Storage(x, u, eta)) && !(math.Abs(pg[f]-whole) <= err+tol.Storage(whole, u, eta)) {
			return false
		}
		apart = apart || kl[f] != 0 && math.Abs(loss[f]-x) > s.err[f] && math.Abs(loss[f]-whole) > err
	}
	return apart
}

// klReduction is the reduction of the KL term, red itself where it is that of the policy loss. OpenRLHF takes the mean over tokens
// of its KL whatever its policy loss takes. verl's gmpo is a mean over the rows of a micro-batch; the KL beside it goes by the options.
func (c *Case) klReduction(red *reduction) *reduction {
	by := c.orTokenMean(red, "kl.agg")
	if by != nil && by == red && c.geometric() && c.EnumOr("kl.place", "none") == "loss" {
		return c.reduction()
	}
	return by
}

// orTokenMean is red, or a mean over tokens where an option says so and red is none.
func (c *Case) orTokenMean(red *reduction, option string) *reduction {
	if red == nil || red.kind() == rl.AggToken || c.EnumOr(option, "same") != "token" {
		return red
	}
	return c.tokenMean()
}

// geometric reports whether the policy loss is gmpo.
func (c *Case) geometric() bool {
	v := c.Set.Value("loss.kind")
	return v.Kind() == convention.Enum && v.Text() == "gmpo"
}

// tokenMean is the reduction of the policy loss with a mean over tokens in place of its kind.
func (c *Case) tokenMean() *reduction {
	o := rl.AggOptions{Outside: rl.OutsideIgnore}
	where := c.denominator()
	if c.divides() {
		o.Steps = c.accumulation()
	}
	if !c.OK() {
		return nil
	}
	return c.denominators(o, where, true)
}

// klSums aggregates the KL estimates, times the importance weights where these multiply the KL term too:
//
//	e = (|w| + e_w)·e_kl + |kl|·e_w + u·|w·kl|
//
// Estimates that are sums over rows are aggregated by the weight of their row: as its first token, or as each of its tokens where
// the mean over the row is taken.
func (c *Case) klSums(p *policy, red *reduction, name string) (sums, bool) {
	b := c.B
	var w Input
	if p.beta != 0 {
		if w = c.isWeights(); w.X != nil && (!c.underWeight() || c.Set.Value("loss.kind").String() == "vespo") {
			w = Input{}
		}
	}
	if row := b.Row("kl"); row != nil && len(row) == b.Rows {
		if red.kind() == rl.AggLUSPO || w.X != nil {
			note(&c.Absent, "kl per token")
			return sums{}, false
		}
		x := make([]float64, b.Rows*b.Cols)
		for r := range b.Rows {
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if red.mask[i] {
					x[i] = row[r]
					if red.kind() != rl.AggSeqMeanTokenMean {
						break
					}
				}
			}
		}
		in := Input{X: x}
		if e := c.Row("kl").Err; e != nil {
			in.Err = c.spread(e)
		}
		return red.apply(c, in, c.poisoned(name)), true
	}
	kl := c.Token("kl")
	if !c.OK() {
		return sums{}, false
	}
	if w.X != nil {
		y := Input{X: make([]float64, len(kl.X)), Err: make([]float64, len(kl.X))}
		for i, k := range kl.X {
			y.X[i] = float64(w.X[i] * k)
			y.Err[i] = (math.Abs(w.X[i])+w.E(i))*kl.E(i) + math.Abs(k)*w.E(i) + (c.Unit+tol.U64)*math.Abs(y.X[i])
		}
		kl = y
	}
	return red.apply(c, kl, c.poisoned(name)), true
}

func predictPolicyLoss(c *Case) *Prediction {
	s, red := c.policySums("pg_loss", false)
	if red == nil || !c.OK() {
		return nil
	}
	q := s.prediction(func(f int) []Term { return red.denominatorTerms(s, f) })
	q.Alt = c.beforeAccumulation(red, q.Want)
	return q
}

// beforeAccumulation returns the terms of a loss before the accelerator divides it by the accumulation steps, which is what TRL's PPOTrainer logs
// and a hook finds: a number as good, where the loss that was propagated or its gradient is there to tell whether the division is made.
func (c *Case) beforeAccumulation(red *reduction, want []float64) []float64 {
	if len(red.o) == 0 || red.o[0].Steps <= 1 || !c.Has("loss") && !c.Has("dlogp") {
		return nil
	}
	return times(want, red.o[0].Steps)
}

func predictKLLoss(c *Case) *Prediction {
	p := c.klPlace()
	red := c.klReduction(c.policyReduction())
	if red == nil || !c.OK() {
		return nil
	}
	s, ok := c.klSums(p, red, "kl_loss")
	if !ok || !c.OK() {
		return nil
	}
	q := s.prediction(func(f int) []Term { return red.denominatorTerms(s, f) })
	q.Alt = times(q.Want, p.beta)
	c.orBeforeAccumulation(red, q, "kl_loss")
	return q
}

// orBeforeAccumulation makes a term of the loss before its division the other value of a prediction where it is the nearer one.
func (c *Case) orBeforeAccumulation(red *reduction, p *Prediction, name string) {
	if whole := c.beforeAccumulation(red, p.Want); whole != nil && nearer(c.B.PerFile(name), whole, p) {
		p.Alt = whole
	}
}

// eachOf returns n numbers, each of its place.
func eachOf(n int, f func(i int) float64) []float64 {
	y := make([]float64, n)
	for i := range y {
		y[i] = f(i)
	}
	return y
}

// times returns factor·x, NaN where factor is 0.
func times(x []float64, factor float64) []float64 {
	if factor == 0 || math.IsNaN(factor) {
		return nil
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = factor * v
	}
	return y
}

func predictEntropyLoss(c *Case) *Prediction {
	red := c.entropyReduction()
	h := c.Token("entropy")
	if red == nil || !c.OK() {
		return nil
	}
	s := red.apply(c, h, c.poisoned("entropy_loss"))
	if !c.OK() {
		return nil
	}
	sign := 1.0
	for f, got := range c.B.PerFile("entropy_loss") {
		if got*s.x[f] < 0 {
			sign = -1
		}
	}
	t := c.newSums()
	t.add(sign, s, 0)
	p := t.prediction(func(f int) []Term { return red.denominatorTerms(s, f) })
	note(&c.Read, "entropy.coef") // either is legal, and which coefficient it is, is searched
	if v := c.Set.Value("entropy.coef"); v.Kind() == convention.Number {
		p.Alt = times(p.Want, math.Abs(v.Num()))
	}
	c.orBeforeAccumulation(red, p, "entropy_loss")
	return p
}

// entropyReduction is the reduction of the entropy term by entropy.agg. Whatever the aggregation of their policy loss, TRL takes the
// mean over the tokens of the micro-batch and always divides it by the accumulation steps, and OpenRLHF takes that over the tokens of
// its denominator. verl aggregates it as its KL. A dump of TRL or OpenRLHF without a profile is read as theirs.
func (c *Case) entropyReduction() *reduction {
	framework := map[string]string{"trl": "micro", "openrlhf": "token"}[strings.ToLower(c.B.Meta.Framework)]
	switch c.EnumOr("entropy.agg", framework) {
	case "token":
		return c.tokenMean()
	case "micro":
		o := rl.AggOptions{Outside: rl.OutsideIgnore, Steps: c.accumulation()}
		if !c.OK() {
			return nil
		}
		return c.ofHighEntropy(c.denominators(o, "micro", true))
	}
	return c.klReduction(c.reduction())
}

func predictLoss(c *Case) *Prediction {
	var s sums
	var red *reduction
	if c.Has("token_loss") || !c.Has("pg_loss") {
		s, red = c.policySums("loss", true)
	} else {
		s, red = c.lossFromTerms()
	}
	if red == nil || !c.OK() {
		return nil
	}
	u := c.Unit + tol.U64
	var value, entropy sums
	if coef := c.valueCoef(0); coef != 0 {
		if value = c.valueTerm(); !c.OK() {
			return nil
		}
		s.add(coef, value, u)
	}
	if coef := c.NumOr("entropy.coef", 0); coef != 0 {
		h := c.Token("entropy")
		by := c.entropyReduction()
		if !c.OK() || by == nil {
			return nil
		}
		entropy = by.apply(c, h, c.poisoned("loss"))
		s.add(-coef, entropy, u)
	}
	if !c.OK() {
		return nil
	}
	return s.prediction(func(f int) []Term {
		t := red.denominatorTerms(s, f)
		if value.x != nil {
			t = append(t, Term{"value loss", value.x[f]})
		}
		if entropy.x != nil {
			t = append(t, Term{"entropy", entropy.x[f]})
		}
		return t
	})
}

// hidesValueTerm reports whether a loss has a value term by its coefficient of which nothing was dumped: what the other terms make of it is right only where a
// hook dumps the loss of the policy alone.
func (c *Case) hidesValueTerm(ch *Check) bool {
	coef := c.Set.Value("value.coef")
	return ch.ID == "aggregate/loss" && coef.Kind() == convention.Number && coef.Num() != 0 && !c.Has("value_loss") && !c.Has("values_new")
}

// lossFromTerms starts the loss from a policy loss that was dumped in place of token losses.
func (c *Case) lossFromTerms() (sums, *reduction) {
	p := c.klPlace()
	red := c.policyReduction()
	if red == nil || !c.OK() {
		return sums{}, nil
	}
	s := c.scalar("pg_loss")
	if q := predictPolicyLoss(c.Of(c.B, c.Set)); q != nil && q.Alt != nil && nearer(s.x, q.Alt, &Prediction{Want: q.Want}) {
		s.divide(red.o[0].Steps, c.Unit+tol.U64)
	}
	if by := c.klReduction(red); p.beta != 0 && by != nil {
		kl, ok := c.klSums(p, by, "loss")
		if !ok {
			return sums{}, nil
		}
		s.add(p.beta, kl, c.Unit+tol.U64)
	}
	return s, red
}

// scalar returns a number per file that was dumped.
func (c *Case) scalar(name string) sums {
	s := c.newSums()
	in := c.perFile(name)
	for f, x := range in.X {
		s.x[f], s.size[f], s.err[f] = x, math.Abs(x), in.E(f)
	}
	return s
}
