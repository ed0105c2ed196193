package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// rewardToGo sums rewards from each token on, right to left, and bounds S_t = r_t + γS' by
//
//	e_t = γ·e'·(1+2u) + 2u·|γS'| + e_r + u·|S_t|
//
// with S' handed to the left, and with γ = 1 by n·u·Σ|r| of what is summed if that is more, since a cumulative sum may be
// taken in any order.
func (c *Case) rewardToGo(reward Input, gamma float64, hole rl.Hole) Input {
	b := c.B
	y := Input{X: rl.RewardToGo(nil, reward.X, b.Mask, b.Rows, b.Cols, gamma, hole), Err: make([]float64, len(b.Mask))}
	u := c.Unit + tol.U64
	product := 2 * u
	if gamma == 1 {
		product = 0
	}
	for r := range b.Rows {
		var sum, e, size, inputs float64
		n := 0
		for t := b.Cols - 1; t >= 0; t-- {
			i := r*b.Cols + t
			switch m := b.Mask[i]; {
			case m:
				e = math.Abs(gamma)*e*(1+2*u) + product*math.Abs(gamma*sum) + reward.E(i) + u*math.Abs(y.X[i])
				size += math.Abs(reward.X[i])
				inputs += reward.E(i)
				n++
			case hole == rl.HoleZeroStep:
				e = math.Abs(gamma)*e*(1+2*u) + product*math.Abs(gamma*sum)
			case hole == rl.HoleCutNext:
				e, size, inputs, n = 0, 0, 0, 0
			}
			sum = y.X[i]
			y.Err[i] = e
			if gamma == 1 {
				y.Err[i] = max(e, inputs+foldError(n, c.Unit)*size)
			}
		}
	}
	return y
}

// returnHole returns what a return takes from masked columns. Where the tokens of every row stand side by side and no reward stands behind them
// every rule gives the same, a loop over all columns, too, and nobody has to say one.
func (c *Case) returnHole() rl.Hole {
	side := c.sideBySide()
	if side && c.Set.Value("gae.hole").Kind() == convention.Unknown {
		note(&c.Read, "gae.hole")
		return rl.HoleCarry
	}
	switch h := c.inapplicable("gae.hole", "carry"); h {
	case "", "carry":
	case "zero_step":
		return rl.HoleZeroStep
	case "cut_next":
		return rl.HoleCutNext
	default:
		if !side || h != "none" {
			note(&c.Absent, "a return from each token on (gae.hole "+h+" is for GAE)")
		}
	}
	return rl.HoleCarry
}

// sideBySide reports whether no row has a hole in its mask, nor a reward behind its last token.
func (c *Case) sideBySide() bool {
	b, reward := c.B, c.B.Token("token_rewards")
	for r := range b.Rows {
		tokens, ended := 0, false
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			switch {
			case b.Mask[i] && ended:
				return false
			case b.Mask[i]:
				tokens++
			case tokens > 0:
				if ended = true; len(reward) == len(b.Mask) && reward[i] != 0 {
					return false
				}
			}
		}
	}
	return true
}

// returnsOfRewards returns the returns of REINFORCE++ or ReMax, and the rewards of the tokens.
func (c *Case) returnsOfRewards(kind string) (ret, reward Input) {
	b := c.B
	mode, gamma, hole := rl.ReturnToGo, 1.0, rl.HoleCarry
	if kind == "rfpp" {
		mode, _ = rl.ParseReinforceMode(c.Enum("rfpp.mode"))
		if c.OK() && mode == rl.ReturnToGo {
			gamma = c.NumOr("gae.gamma", 1)
			hole = c.returnHole()
		}
	}
	reward = c.Token("token_rewards")
	if c.OK() && len(reward.X) != len(b.Mask) {
		note(&c.Absent, "token_rewards per token")
	}
	if !c.OK() {
		return ret, reward
	}
	reward = c.settled(reward)
	if mode == rl.ReturnToGo {
		return c.rewardToGo(reward, gamma, hole), reward
	}
	sums := make([]float64, b.Rows)
	c.addSums(sums, reward, b.Mask, 1)
	return Input{X: rl.Broadcast(nil, rl.RowSums(nil, reward.X, b.Mask, b.Rows, b.Cols), b.Mask, b.Rows, b.Cols), Err: c.spread(sums)}, reward
}

// predictReturnAdvantage predicts the advantages of REINFORCE++ and ReMax.
func predictReturnAdvantage(c *Case) *Prediction {
	b := c.B
	if perRow, ok := c.layout("advantages"); !ok || perRow {
		return c.lacks("advantages per token")
	}
	kind := c.Enum("adv.kind")
	ret, reward := c.returnsOfRewards(kind)
	var greedy Input
	if kind == "remax" {
		if c.Has("reward_baselines") || !c.OK() {
			greedy = c.Row("reward_baselines")
		} else {
			greedy = c.solvedBaselines(ret)
		}
		if c.OK() && len(greedy.X) != b.Rows {
			note(&c.Absent, "reward_baselines")
		}
	}
	if !c.OK() {
		return nil
	}
	y, whitening := ret, []Term(nil)
	if kind == "remax" {
		y.X, _ = rl.ReMaxAdvantage(nil, nil, reward.X, greedy.X, b.Mask, b.Rows, b.Cols)
		for i, a := range y.X {
			y.Err[i] += greedy.E(i/b.Cols) + (c.Unit+tol.U64)*math.Abs(a)
		}
	} else if y, whitening = c.whitenAdvantages(ret, false); !c.OK() {
		return nil
	}
	p := &Prediction{Want: y.X, Bound: y.Err, Judge: append([]bool(nil), b.Mask...)}
	p.Terms = func(i int) []Term {
		t := []Term{{"reward", reward.X[i]}, {"return", ret.X[i]}}
		if kind == "remax" {
			return append(t, Term{"greedy reward", greedy.X[i/b.Cols]})
		}
		return append(t, whitening...)
	}
	return p
}

// solvedBaselines returns the rewards of ReMax's greedy responses where they were not dumped. They are one number for every prompt, so
// that each is solved from the tokens of its first row as the mean of return − advantage, and holds for the other rows: what is judged
// then is that one number explains all of a group. X is nil where a prompt has one response only, which any number would explain.
func (c *Case) solvedBaselines(ret Input) Input {
	b := c.B
	groups := b.Row("group_id")
	adv := b.Token("advantages")
	if len(groups) != b.Rows || adv == nil {
		return Input{}
	}
	unit, _ := b.Tensors["advantages"].Type.Unit()
	in := Input{X: make([]float64, b.Rows), Err: make([]float64, b.Rows)}
	first, rows := map[float64]int{}, map[float64]int{}
	means := map[float64]float64{}
	for r, g := range groups {
		var sum, e, n, own float64
		for i := range b.TokensOf(r) {
			sum, own = sum+ret.X[i]-adv[i], own+ret.X[i]
			e = max(e, ret.E(i)+(unit+c.Unit)*math.Abs(adv[i]))
			n++
		}
		if n == 0 {
			continue
		}
		rows[g]++
		means[g] += own / n
		if _, ok := first[g]; !ok {
			first[g] = r
			in.X[r], in.Err[r] = sum/n, e
		}
	}
	if multiplesOfMeans(groups, in.X, first, rows, means) {
		return Input{}
	}
	for r, g := range groups {
		f, ok := first[g]
		if !ok {
			continue
		}
		if rows[g] < 2 {
			return Input{}
		}
		in.X[r], in.Err[r] = in.X[f], in.Err[f]
	}
	return in
}

// multiplesOfMeans reports whether the baselines of three groups and more are their mean returns times one number: they were made of these, and are of no
// response.
func multiplesOfMeans(groups, baseline []float64, first, rows map[float64]int, sums map[float64]float64) bool {
	const least, near = 3, 1e-5
	k, largest := math.NaN(), 0.0
	for _, g := range groups {
		if m := sums[g] / float64(rows[g]); math.Abs(m) > largest {
			k, largest = baseline[first[g]]/m, math.Abs(m)
		}
	}
	for g, sum := range sums {
		if m := sum / float64(rows[g]); !(math.Abs(baseline[first[g]]-k*m) <= near*largest) {
			return false
		}
	}
	return len(sums) >= least && math.Abs(k) > near
}
