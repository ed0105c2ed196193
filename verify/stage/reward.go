package stage

import (
	"fmt"
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func rewardChecks() []*Check {
	return []*Check{{
		ID: "reward/scores", Stage: convention.Reward, Output: "scores",
		Title:   "score of a response from its reward functions",
		Formula: "score = Σ_f reward_weights_f·reward_f over the functions that scored the response; NaN if none did",
		Source:  "TRL GRPOTrainer, rewards_per_func; V24",
		Fix:     "look for weights that are applied twice or not at all, for functions in another order, and for 0.0 taken as missing",
		Applies: func(c *Case) bool { return c.Has("rewards_per_func") },
		Predict: predictScores,
	}, {
		ID: "reward/token", Stage: convention.Reward, Output: "token_rewards",
		Title:   "reward of each token from score and KL",
		Formula: "r_t = −kl.beta·kl_t (kl.place token_reward, or after the baseline), plus the score at the token that score.index names; the score within reward.clip_range, changed by eos.rule where the response has no EOS",
		Source:  "TRL 1.12 PPOTrainer, OpenRLHF compute_reward, verl apply_kl_penalty; V24",
		Fix:     "look at where the one jump of a row sits, at the sign of the KL term, and at what happens to responses without EOS",
		Predict: predictTokenRewards,
	}, outsideCheck()}
}

// rewardWeights returns the weights of n reward functions. A list that the trainer says is null means ones.
func (c *Case) rewardWeights(n int) []float64 {
	w := c.FactList("reward_weights")
	if w == nil {
		for _, o := range c.B.Meta.Options {
			if o.Name == "reward_weights" && o.Value == nil {
				w = make([]float64, n)
				for i := range w {
					w[i] = 1
				}
				return w
			}
		}
		note(&c.Absent, "reward_weights")
		return nil
	}
	if len(w) != n {
		note(&c.Absent, fmt.Sprintf("reward_weights of %d functions (there are %d)", n, len(w)))
		return nil
	}
	return w
}

// rewardsPerFunc returns the rewards of every function, rows×functions, and their weights.
func (c *Case) rewardsPerFunc() (rewards Input, weights []float64) {
	t := c.B.Tensors["rewards_per_func"]
	if t == nil || c.B.Row("rewards_per_func") == nil || t.Width < 1 || len(t.Data) != c.B.Rows*t.Width {
		note(&c.Absent, "rewards_per_func")
		return rewards, nil
	}
	return Input{X: t.Data, Err: c.rounding("rewards_per_func")}, c.rewardWeights(t.Width)
}

// predictScores bounds the weighted sum by (F + 1)·u·Σ|w·r| + Σ|w|·e: F roundings of the sum, one of the weight and one of the
// product, less the first addition, which is exact.
func predictScores(c *Case) *Prediction {
	r, w := c.rewardsPerFunc()
	if !c.OK() {
		return nil
	}
	b, f := c.B, len(w)
	p := &Prediction{Want: rl.WeightedReward(nil, r.X, w, b.Rows), Bound: make([]float64, b.Rows)}
	for i := range b.Rows {
		var size, err float64
		for k, v := range r.X[i*f : (i+1)*f] {
			if !math.IsNaN(v) {
				size += math.Abs(v * w[k])
				err += math.Abs(w[k]) * r.E(i*f+k)
			}
		}
		p.Bound[i] = float64(f+1)*(c.Unit+tol.U64)*size + err
		p.settle(i, overflow(c.Unit))
	}
	p.Terms = func(i int) []Term {
		var t []Term
		for k := range min(f, 3) {
			t = append(t, Term{fmt.Sprintf("reward of function %d", k), r.X[i*f+k]}, Term{fmt.Sprintf("its weight %d", k), w[k]})
		}
		return t
	}
	return p
}

// clipRange returns the bounds of reward.clip if scores are clipped at that time.
func (c *Case) clipRange(at ...string) (lo, hi float64, ok bool) {
	when := c.EnumOr("reward.clip", "none")
	for _, a := range at {
		ok = ok || when == a
	}
	if !ok {
		return 0, 0, false
	}
	note(&c.Read, "reward.clip_range")
	switch v := c.Set.Value("reward.clip_range"); v.Kind() {
	case convention.Tuple:
		n := v.Nums()
		return n[0], n[1], true
	case convention.Unknown:
		note(&c.Unknown, "reward.clip_range")
	}
	return 0, 0, false
}

// shapedScores returns the scores of responses as eos.rule leaves them, and clipped if that is done at one of the times. What the dump
// says is shaped already has no other penalty; whether it was clipped, too, is one.
// Their error is that of the score; with p, the penalty, rounded as a constant of the format, s − p is off by u·(|p| + |s − p|) more, p by
// u·|p| alone, and s·p by e_s·|p| + 2u·|s·p|.
func (c *Case) shapedScores(at ...string) Input {
	b := c.B
	s := c.Row("scores")
	if s.X == nil || len(s.X) != b.Rows {
		note(&c.Absent, "scores")
		return Input{}
	}
	shaped := c.B.Meta.ScoresShaped
	if shaped == nil || !*shaped {
		if s = c.penalised(s); !c.OK() {
			return Input{}
		}
	}
	if lo, hi, ok := c.clipRange(at...); ok { // what is clipped already stays as it is
		s = c.bounded(s, lo, hi)
	}
	return s
}

// penalised returns scores as the penalties for long responses and for those without an end leave them, with their errors as [Case.shapedScores] says.
func (c *Case) penalised(s Input) Input {
	b := c.B
	if s = c.overlong(s); !c.OK() {
		return Input{}
	}
	rule, _ := rl.ParseEOSRule(c.EnumOr("eos.rule", "none"))
	if rule != rl.EOSNone {
		if penalty := c.NumOr("eos.penalty", math.NaN()); !math.IsNaN(penalty) {
			finished := c.finished()
			if !c.OK() {
				return Input{}
			}
			y := Input{X: rl.MissingEOS(nil, s.X, finished, rule, penalty), Err: make([]float64, b.Rows)}
			for i, v := range y.X {
				y.Err[i] = s.E(i)
				if finished[i] {
					continue
				}
				u, p := c.Unit+tol.U64, math.Abs(penalty)
				switch {
				case rule == rl.EOSSubtract:
					y.Err[i] += u * (p + math.Abs(v))
				case rule == rl.EOSReplace || penalty < 0:
					y.Err[i] = u * p
				default:
					y.Err[i] = s.E(i)*p + 2*u*math.Abs(v)
				}
			}
			s = y
		}
	}
	return s
}

// bounded clips numbers to [lo, hi]. The bounds are constants of the format, so they are rounded, and a number that reaches one is off by
// as much: |clip(x, l, h) − clip(x', l', h')| ≤ max(|x − x'|, |l − l'|, |h − h'|), where a bound further off than the errors has no part.
func (c *Case) bounded(x Input, lo, hi float64) Input {
	y := Input{X: rl.ClipRewards(nil, x.X, lo, hi), Err: make([]float64, len(x.X)), Half: x.Half}
	u := c.Unit + tol.U64
	for i, v := range x.X {
		e := x.E(i)
		y.Err[i] = e
		if of := u * math.Abs(lo); v <= lo+e+of && !math.IsInf(lo, -1) {
			y.Err[i] = max(e, of)
		}
		if of := u * math.Abs(hi); v >= hi-e-of && !math.IsInf(hi, 1) {
			y.Err[i] = max(y.Err[i], of)
		}
	}
	return y
}

// eosIDs returns the ids that end a response, nil if they are not known.
func (c *Case) eosIDs() map[int]bool {
	list := c.FactList("eos_token_id")
	if list == nil {
		return nil
	}
	ids := map[int]bool{}
	for _, x := range list {
		ids[int(x)] = true
	}
	return ids
}

// eosColumns returns for every row the column of the first EOS that is one of its tokens, −1 if there is none.
func (c *Case) eosColumns() []int {
	b := c.B
	ids := c.eosIDs()
	if ids == nil {
		note(&c.Absent, "eos_token_id")
		return nil
	}
	at := make([]int, b.Rows)
	for r := range at {
		at[r] = -1
		for t := 0; t < b.Cols && at[r] < 0; t++ {
			if !b.Mask[r*b.Cols+t] {
				continue
			}
			id, ok := b.TokenID(r, t)
			if !ok {
				note(&c.Absent, "response_ids")
				return nil
			}
			if ids[id] {
				at[r] = t
			}
		}
	}
	return at
}

// finished reports for every row whether the response has ended, as eos.test says. An engine stops a response (vLLM's finish_reason) at an EOS, which is its last
// token then, or at its longest; one that is shorter and has none ended for another reason, such as a string, which the dump does not say.
func (c *Case) finished() []bool {
	test := c.inapplicable("eos.test", "eos_id")
	if test == "" {
		return nil
	}
	at := c.eosColumns()
	if at == nil {
		return nil
	}
	spans, longest := c.spans()
	done := make([]bool, len(at))
	for r, t := range at {
		if done[r] = t >= 0; test != "eos_id" && !done[r] && spans[r] < longest {
			note(&c.Absent, "what ended each response (eos.test stop_id and finish_reason)")
			return nil
		}
	}
	return done
}

// ScoresOfTokens is what token rewards of several turns lack to be judged.
const ScoresOfTokens = "the scores of tokens"

// predictTokenRewards bounds r_t by |β|·e_kl + 2u·|β·kl_t|, u that of a 16-bit KL besides, and at the token of the score by e_score + u·|r_t| more: β and
// the product are rounded, and the sum.
func predictTokenRewards(c *Case) *Prediction {
	b := c.B
	if perRow, ok := c.layout("token_rewards"); !ok || perRow {
		return c.lacks("token_rewards per token")
	}
	index, estimator := c.Set.Value("score.index").Kind(), c.Set.Value("adv.kind")
	ofOutcomes := estimator.Kind() == convention.Enum && estimator.Text() != "gae" // whose rewards a dump may have without what they are made of
	if (index == convention.NotApplicable || index == convention.Unknown || ofOutcomes) && !c.Has("scores") && !c.Has("rewards_per_func") {
		return c.rewardsOfKL() // rewards stand where an environment gives them: there is no score, and nobody says where one would stand
	}
	place := c.inapplicable("kl.place", "none")
	if place == "" {
		return nil
	}
	var score Input
	var complete []bool // groups of which rows are missing have another baseline; nil: no groups
	if place == "sequence_reward_after" && c.groupKind() {
		score, complete = c.scoresAfterBaseline()
	} else if score = c.shapedScores("before_baseline", "after_baseline"); c.baselineBefore(place) {
		score, complete = c.scoresAfterBaseline()
	}
	var o rl.RewardOptions
	o.Index, _ = rl.ParseScoreIndex(c.Enum("score.index"))
	var eos []int
	if o.Index == rl.ScoreEOS {
		eos = c.eosColumns()
	}
	var kl Input
	off := 0.0 // the error of β
	if place == "token_reward" || place == "sequence_reward_after" {
		if o.Beta, off = c.betaWithin(); o.Beta != 0 && !math.IsNaN(o.Beta) {
			kl = c.Token("kl")
		}
	}
	if !c.OK() {
		return nil
	}
	if o.Beta != 0 && len(kl.X) != len(b.Mask) {
		return c.lacks("kl per token")
	}
	c.scoreInHalf(&score)
	at := c.scoreColumns(o.Index, eos)
	moved := false
	for r, last := range at {
		if t := c.scoreBehind(r, last); t >= 0 && o.Index == rl.ScoreLastResponse {
			at[r], moved = t, true
		}
	}
	if c.narrow() || moved { // the end of a row is that of its file's grid
		o.Index, eos = rl.ScoreEOS, at
	}
	p := &Prediction{Want: rl.TokenRewards(nil, score.X, kl.X, b.Mask, eos, b.Rows, b.Cols, o), Bound: make([]float64, len(b.Mask)), Judge: make([]bool, len(b.Mask))}
	copy(p.Judge, b.Mask)
	u := c.Unit + tol.U64
	if o.Beta != 0 {
		for i := range p.Bound {
			if b.Mask[i] {
				p.Bound[i] = math.Abs(o.Beta)*kl.E(i) + (2*u+kl.Half)*math.Abs(o.Beta*kl.X[i]) + off*math.Abs(kl.X[i])
			}
		}
	}
	for r, t := range at {
		if t < 0 {
			continue
		}
		i := r*b.Cols + t
		if p.Bound[i] += score.E(r); o.Beta != 0 { // alone, a score is put in its place as it is
			p.Bound[i] += u * math.Abs(p.Want[i])
		}
		p.Judge[i] = complete == nil || complete[r]
	}
	if complete == nil && !c.whitensRewards() && c.dense(p, at, score) {
		return c.lacks(ScoresOfTokens + ": several tokens of a response have a reward, and these sum up to its score")
	}
	if shaped := b.Token("token_rewards"); shaped != nil && c.whitensRewards() && c.rewardsAreWhite(shaped) {
		y := c.whitenRewards(Input{X: p.Want, Err: p.Bound})
		if !c.OK() {
			return nil
		}
		p.Want, p.Bound = y.X, y.Err
	}
	for i := range p.Want {
		p.settle(i, overflow(c.Unit))
	}
	p.Terms = func(i int) []Term {
		r := i / b.Cols
		t := []Term{{"score", score.X[r]}, {"column of the score", float64(at[r])}}
		if kl.X != nil {
			t = append(t, Term{"kl", kl.X[i]}, Term{"kl.beta", o.Beta})
		}
		return t
	}
	return p
}

// scoreInHalf adds to the errors of scores s, s' after the rule for responses without EOS, what a reward model of the 16-bit type of the token
// rewards leaves: a program that adds scores to rewards of that type in place may have cast them to it before the rule, u·|s|, and the rule
// rounds its result to it, u·|s'|.
func (c *Case) scoreInHalf(score *Input) {
	u := halfOf(c.B, "token_rewards")
	raw := c.B.Row("scores")
	if u == 0 || !c.Promoted && !c.Casts || len(raw) != len(score.X) {
		return
	}
	e := make([]float64, len(raw))
	for r, s := range score.X {
		e[r] = score.E(r)
		if halfOf(c.B, "scores") == 0 {
			e[r] += u * math.Abs(raw[r])
		}
		if s != raw[r] {
			e[r] += u * math.Abs(s)
		}
	}
	score.Err = e
}

// scoreColumns returns the column that holds the score of each row, −1 for a row without tokens, which has none.
func (c *Case) scoreColumns(index rl.ScoreIndex, eos []int) []int {
	b := c.B
	at := make([]int, b.Rows)
	for r := range at {
		last := c.last(r)
		switch {
		case last < 0:
		case index == rl.ScoreLastColumn:
			last = max(c.width(r)-1, 0)
		case index == rl.ScoreEOSPlus1:
			last = max(last, min(last+1, c.width(r)-1))
		case index == rl.ScoreEOS && eos[r] >= 0:
			last = eos[r]
		}
		at[r] = last
	}
	return at
}

// narrow reports whether some row is narrower than the grid.
func (c *Case) narrow() bool {
	for r := range c.B.Rows {
		if c.width(r) < c.B.Cols {
			return true
		}
	}
	return false
}

// last returns the last column of the row's mask, −1 if it is empty.
func (c *Case) last(row int) int {
	for t := c.B.Cols - 1; t >= 0; t-- {
		if c.B.Mask[row*c.B.Cols+t] {
			return t
		}
	}
	return -1
}
