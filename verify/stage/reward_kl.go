package stage

import (
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// rewardMultiples are what the KL term of a token's reward may be by mistake, as multiples of −kl.beta·kl_t.
var rewardMultiples = []float64{1, 2, -1, 0.5}

// rewardForms are what it may be by mistake of the estimates of a row at its tokens, at the t-th of them.
var rewardForms = []func(kl []float64, t int) float64{
	func(kl []float64, t int) float64 { return sumOf(kl[:t+1]) },
	func(kl []float64, t int) float64 { return sumOf(kl[t:]) },
	func(kl []float64, _ int) float64 { return sumOf(kl) },
	func(kl []float64, _ int) float64 { return sumOf(kl) / float64(len(kl)) },
	func(kl []float64, t int) float64 { return kl[max(t-1, 0)] },
	func(kl []float64, t int) float64 { return kl[min(t+1, len(kl)-1)] },
}

// unheld returns a case of KL that is in no clamp where nobody says whether it is: cells that one holds agree with nothing.
func (c *Case) unheld() *Case {
	set := c.Set
	for _, name := range []string{"kl.clamp_in", "kl.clamp_out"} {
		if set.Value(name).Kind() == convention.Unknown && !c.Has("kl") {
			set = set.With(name, word(name, "none").value, "search")
		}
	}
	return c.Of(c.B, set)
}

// rewardsOfKL predicts the rewards of tokens r_t = −kl.beta·kl_t where the scores are not dumped, so that nobody says which tokens have one: of the tokens that
// are not the last before a gap or the end of their row. It does where rewards are sparse, which the numbers show: four fifths of these are one multiple of
// kl.beta·kl_t. A reward of each token leaves none. The bound is that of [predictTokenRewards].
func (c *Case) rewardsOfKL() *Prediction {
	const least = 16 // tokens whose KL is not 0
	b, place, beta := c.B, c.Set.Value("kl.place"), c.Set.Value("kl.beta")
	r := b.Token("token_rewards")
	if place.Kind() != convention.Enum || place.Text() != "token_reward" || beta.Kind() != convention.Number || beta.Num() == 0 || c.Set.Value("kl.adaptive").Kind() == convention.Tuple ||
		c.whitensRewards() || b.Cols == 0 || len(r) != len(b.Mask) || !c.Has("kl") && !(c.Has("logp_ref") && c.Has("logp_old") && c.Set.Value("kl.kind").Kind() == convention.Enum) {
		return nil
	}
	d := c.unheld()
	kl := d.Token("kl")
	if !d.OK() {
		c.Unknown, c.Absent = append(c.Unknown, d.Unknown...), append(c.Absent, d.Absent...)
		return nil
	}
	if len(kl.X) != len(r) {
		return nil
	}
	u := c.Unit + tol.U64
	p := &Prediction{Want: make([]float64, len(r)), Bound: make([]float64, len(r)), Judge: make([]bool, len(r)), Scale: 1}
	seen, of := 0, make([]int, len(rewardMultiples)+len(rewardForms))
	rows := make([][]float64, b.Rows) // the estimates of every row at its tokens
	for i := range b.Tokens() {
		rows[i/b.Cols] = append(rows[i/b.Cols], kl.X[i])
	}
	at := -1
	matched := make([]int, len(r))
	for i, in := range b.Mask {
		matched[i] = -1
		if i%b.Cols == 0 {
			at = -1
		}
		if in {
			at++
		}
		if !in {
			continue
		}
		p.Want[i] = -beta.Num() * kl.X[i]
		p.Bound[i] = math.Abs(beta.Num())*kl.E(i) + (2*u+kl.Half)*math.Abs(p.Want[i])
		if (i+1)%b.Cols == 0 || !b.Mask[i+1] { // a score may stand there
			continue
		}
		if math.Abs(p.Want[i]) <= 8*p.Bound[i] {
			continue
		}
		seen++
		for k, times := range rewardMultiples {
			if math.Abs(r[i]-times*p.Want[i]) <= 4*math.Abs(times)*p.Bound[i] {
				of[k]++
				matched[i] = k
				break
			}
		}
		for k, form := range rewardForms {
			row, e := rows[i/b.Cols], 0.0
			for _, x := range row {
				e += math.Abs(x)
			}
			e = 4*p.Bound[i] + float64(len(row)+4)*math.Abs(beta.Num())*(kl.E(i)+u*e)
			if matched[i] < 0 && math.Abs(r[i]+beta.Num()*form(row, at)) <= e {
				of[len(rewardMultiples)+k]++
				matched[i] = len(rewardMultiples) + k
			}
		}
	}
	for k, n := range of {
		if seen < least || 5*n < 4*seen {
			continue
		}
		for i := range p.Judge {
			p.Judge[i] = matched[i] == k
		}
		note(&c.Read, "kl.place")
		note(&c.Read, "kl.beta")
		return p
	}
	return nil
}
