package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// klOfTokens are what programs put for the estimate of KL of a token where the reward of a response has its sum: of the log-probs of the policy that
// sampled and of the reference, x = logp_ref − logp_old.
var klOfTokens = []struct {
	kind, title string // the kind that it is
	of          func(x float64) float64
}{
	{"k1", "k1 = −x", func(x float64) float64 { return -x }},
	{"k2", "k2 = ½x²", func(x float64) float64 { return x * x / 2 }},
	{"k3", "k3 = eˣ − x − 1", func(x float64) float64 { return math.Expm1(x) - x }},
	{"abs", "|x|", math.Abs},
	{"", "x²", func(x float64) float64 { return x * x }},
	{"", "eˣ − x − 1 of the exchanged policies", func(x float64) float64 { return math.Expm1(-x) + x }},
	{"", "max(−x, 0)", func(x float64) float64 { return max(-x, 0) }},
}

// klOfRows are what they make of the estimates k of a response, where their sum should stand: of n tokens, in w columns.
var klOfRows = []struct {
	title string
	of    func(k []float64, w float64) float64
}{
	{"the magnitude of the sum", func(k []float64, _ float64) float64 { return math.Abs(total(k)) }},
	{"the sum of the magnitudes", func(k []float64, _ float64) float64 { return total(mapped(k, math.Abs)) }},
	{"the sum held at 0 from below", func(k []float64, _ float64) float64 { return max(total(k), 0) }},
	{"the square of the sum", func(k []float64, _ float64) float64 { return total(k) * total(k) }},
	{"the mean over the tokens", func(k []float64, _ float64) float64 { return total(k) / float64(len(k)) }},
	{"the mean over the columns, padding included", func(k []float64, w float64) float64 { return total(k) / w }},
	{"the estimate of the last token", func(k []float64, _ float64) float64 { return k[len(k)-1] }},
	{"the sum without the first token", func(k []float64, _ float64) float64 { return total(k[1:]) }},
	{"the sum without the last token", func(k []float64, _ float64) float64 { return total(k[:len(k)-1]) }},
	{"the sum without the last token of responses that do not fill their columns: their EOS is left out", func(k []float64, w float64) float64 {
		return total(k[:len(k)-boolToInt(float64(len(k)) < w)])
	}},
	{"the sum over the first half of the tokens", func(k []float64, _ float64) float64 { return total(k[:len(k)/2]) }},
	{"the sum over the second half of the tokens", func(k []float64, _ float64) float64 { return total(k[len(k)/2:]) }},
	{"the sum of the sums up to each token", func(k []float64, _ float64) (sum float64) {
		for t, x := range k {
			sum += float64(len(k)-t) * x
		}
		return sum
	}},
	{"the sum by the square root of the number of tokens", func(k []float64, _ float64) float64 { return total(k) / math.Sqrt(float64(len(k))) }},
	{"the sum times the number of tokens by that of columns", func(k []float64, w float64) float64 { return total(k) * float64(len(k)) / w }},
	{"the largest estimate", func(k []float64, _ float64) float64 { return slices.Max(k) }},
}

// rewardKLEdits returns edits of the KL that is subtracted from the scores of responses before their baseline (TRL 1.16, rloo_trainer.py).
func rewardKLEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if place := c.Set.Value("kl.place").String(); o.Check.ID != "advantage/group" || place != "sequence_reward_before_baseline" && place != "token_reward" || numberOr(c, "kl.beta", 0) == 0 {
		return nil
	}
	var list []edit
	for _, f := range klOfTokens {
		if f.kind != "" && c.Set.Value("kl.kind").String() == f.kind {
			continue
		}
		list = append(list, edit{id: "KL-FORMULA", title: "the rewards have another estimate of KL: " + f.title + ", x = logp_ref − logp_old", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return rewardedBy(f.of, false, c, ch) }})
	}
	list = append(list, edit{id: "KL-REWARD-PADS", title: "the rewards have the sum of KL over all columns of a response, padding included", changes: 1,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			of := map[string]func(x float64) float64{}
			for _, f := range klOfTokens {
				of[f.kind] = f.of
			}
			return rewardedBy(of[c.Set.Value("kl.kind").String()], true, c, ch)
		}})
	for _, f := range klOfRows {
		list = append(list, edit{id: "KL-FORMULA", title: "the KL of a response in its reward is " + f.title + ", where the sum over its tokens is right", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				kl := c.Token("kl")
				if !c.OK() || len(kl.X) != len(c.B.Mask) || c.B.Cols == 0 {
					return nil
				}
				return underRowKL(c, ch, func(r int) (sum, e float64) {
					var k []float64
					for i := range c.B.TokensOf(r) {
						k = append(k, kl.X[i])
						e += kl.E(i) + 8*c.Unit*math.Abs(kl.X[i])
					}
					if len(k) == 0 {
						return 0, 0
					}
					sum = f.of(k, float64(width(c.B, r)))
					return sum, e * (1 + math.Abs(sum))
				})
			}})
	}
	list = append(list, edit{id: "KL-FORMULA", title: "the KL of a response in its reward is the sum without the token that ends responses, its EOS", changes: 1,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			kl := c.Token("kl")
			end, known := endOfResponses(c.B)
			if !c.OK() || !known || len(kl.X) != len(c.B.Mask) {
				return nil
			}
			return underRowKL(c, ch, func(r int) (sum, e float64) {
				for t := range c.B.Cols {
					i := r*c.B.Cols + t
					if id, ok := c.B.TokenID(r, t); c.B.Mask[i] && !(ok && id == end) {
						sum, e = sum+kl.X[i], e+kl.E(i)+8*c.Unit*math.Abs(kl.X[i])
					}
				}
				return sum, e
			})
		}})
	for _, by := range []int{-1, 1} {
		title := "the reward of a response has the KL of the row " + map[int]string{-1: "before", 1: "behind"}[by] + " it in its micro-batch"
		list = append(list, edit{id: "KL-POLICY-ROWS", title: title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				kl := c.Token("kl")
				if !c.OK() || len(kl.X) != len(c.B.Mask) || c.B.Cols == 0 {
					return nil
				}
				return underRowKL(c, ch, func(r int) (sum, e float64) {
					f := c.B.Files[c.B.File(r)]
					n := f.Hi - f.Lo
					r = f.Lo + ((r-f.Lo+by)%n+n)%n
					for i := range c.B.TokensOf(r) {
						sum, e = sum+kl.X[i], e+kl.E(i)+8*c.Unit*math.Abs(kl.X[i])
					}
					return sum, e
				})
			}})
	}
	return list
}

// endOfResponses returns the token that ends all responses that do not fill their columns.
func endOfResponses(b *dump.Batch) (id int, known bool) {
	for r := range b.Rows {
		_, last := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
		if last < 0 || last+1 >= int(width(b, r)) {
			continue
		}
		at, ok := b.TokenID(r, last)
		if !ok || known && at != id {
			return 0, false
		}
		id, known = at, true
	}
	return id, known
}

// rewardedBy predicts the advantages of rewards whose KL is the sum of another estimate, over the mask or over all columns of the file.
func rewardedBy(of func(x float64) float64, all bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	lp, ref := c.B.Token("logp_old"), c.B.Token("logp_ref")
	if lp == nil || ref == nil || of == nil || c.B.Cols == 0 {
		return nil
	}
	return underRowKL(c, ch, func(r int) (sum, e float64) {
		for t := range c.B.Cols {
			i := r*c.B.Cols + t
			if !c.B.Mask[i] && (!all || t >= width(c.B, r) || math.IsNaN(lp[i]-ref[i])) {
				continue
			}
			x := ref[i] - lp[i]
			sum += of(x)
			e += 8 * c.Unit * (1 + math.Abs(lp[i]) + math.Abs(ref[i])) * (1 + math.Exp(math.Abs(x)) + x*x)
		}
		return sum, e
	})
}

// underRowKL predicts an output where each response has another KL, as one number at its last token, which is off by e. What that makes of an advantage
// is at most twice the largest of them times what the advantages are wider than the rewards.
func underRowKL(c *stage.Case, ch *stage.Check, of func(r int) (sum, e float64)) *stage.Prediction {
	y := make([]float64, len(c.B.Mask))
	var most float64
	for r := range c.B.Rows {
		sum, e := of(r)
		if i := lastOf(c.B, r); i >= 0 {
			y[i], most = sum, max(most, e)
		}
	}
	in := perToken("kl", y)
	p, raw := under(in, c, ch), under(both(in, option("adv.kind", "raw")), c, ch)
	if p == nil || raw == nil || math.IsNaN(most) || c.Set.Value("adv.kind").Kind() != convention.Enum {
		return nil
	}
	var size, low, high float64
	for i, x := range raw.Want {
		if i == 0 {
			low, high = x, x
		}
		low, high = min(low, x), max(high, x)
	}
	for _, x := range p.Want {
		size = max(size, math.Abs(x))
	}
	if !(high > low) {
		return nil
	}
	q := *p
	q.Bound = make([]float64, len(p.Bound))
	for i, e := range p.Bound {
		q.Bound[i] = 2*e + 2*numberOr(c, "kl.beta", 0)*most*max(1, 2*size/(high-low))
	}
	return &q
}
