package stage

import (
	"errors"
	"math"
	"slices"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func advantageChecks() []*Check {
	return []*Check{signalCheck(), {
		ID: "advantage/group", Stage: convention.Advantage, Output: "advantages",
		Title:   "advantage of a response among the responses to its prompt",
		Formula: "A = (r − c)/(std + adv.eps), c the mean of the group or of the others (adv.center), std over the group, the batch or the others (adv.scale) with adv.ddof",
		Source:  "Shao et al. 2024, Section 4.1.2; Dr.GRPO, RLOO; TRL, verl, OpenRLHF, NeMo-RL by option; V16",
		Fix:     "look at which rows are one group, at ddof and ε of the standard deviation, and at rewards that enter twice, late or not at all",
		Applies: func(c *Case) bool { return isGroupKind(c.advantageKind()) },
		Predict: predictAdvantages,
	}, {
		ID: "advantage/return", Stage: convention.Advantage, Output: "advantages",
		Title:   "advantage of a token as the return from there on",
		Formula: "A_t = Σ_{k≥t} γ^{k−t}·r_k, or Σ_k r_k at every token (rfpp.mode), whitened as whiten.* says (REINFORCE++), or less the reward of the greedy response (ReMax)",
		Source:  "Hu 2025, REINFORCE++; Li et al. 2024, ReMax; verl, OpenRLHF, NeMo-RL by option; V14, V15",
		Fix:     "look at what happens to the running return at masked tokens, and at what is whitened with what",
		Applies: func(c *Case) bool { k := c.advantageKind(); return !isGroupKind(k) && k != "gae" },
		Predict: predictAdvantages,
	}, momentsCheck()}
}

// isGroupKind reports whether an estimator gives one advantage to a response.
func isGroupKind(kind string) bool {
	switch kind {
	case "group", "batch_baseline", "raw", "rfpp_baseline", "opo", "passk", "gpg":
		return true
	}
	return false
}

// groupKind is isGroupKind for the estimator of this case, which is asked for.
func (c *Case) groupKind() bool { return isGroupKind(c.Enum("adv.kind")) }

// advantageKind returns the estimator without asking for it; one that is unknown is guessed from what was dumped. One that a search has found
// is judged by the check that it was found for.
func (c *Case) advantageKind() string {
	if v := c.Set.Value("adv.kind"); v.Kind() == convention.Enum && c.Set.Origin("adv.kind") != "search" {
		return v.Text()
	}
	switch {
	case c.Has("values"):
		return "gae"
	case c.Has("token_rewards") && !c.Has("scores") && !c.Has("rewards_per_func"), variesInRow(c.B):
		return "rfpp"
	}
	return "group"
}

// predictAdvantages predicts advantages of every kind, so that a search over adv.kind compares them all.
func predictAdvantages(c *Case) *Prediction {
	var p *Prediction
	switch kind := c.Enum("adv.kind"); {
	case kind == "":
		return nil
	case kind == "gae":
		p = predictGAE(c)
	case isGroupKind(kind):
		p = predictGroup(c)
	case kind == "rfpp", kind == "remax":
		p = predictReturnAdvantage(c)
	default:
		p = predictTokenBaseline(c)
	}
	if !c.OK() || p == nil {
		return nil
	}
	for i := range p.Want {
		p.settle(i, overflow(c.Unit))
	}
	p.Scale = 1
	return p
}

// predictGroup spreads the advantages of responses over their tokens where they were dumped so.
func predictGroup(c *Case) *Prediction {
	perRow, ok := c.layout("advantages")
	if !ok {
		return nil
	}
	b := c.B
	place := c.Enum("kl.place")
	a := c.sequenceAdvantages()
	if !c.OK() {
		return nil
	}
	if lo, hi, ok := c.clipRange("after_baseline"); ok {
		a.Input, a.level = c.bounded(a.Input, lo, hi), nil
	}
	rows := Input{X: a.X, Err: a.Err}
	if rows.Err == nil {
		rows.Err = make([]float64, b.Rows)
	}
	switch {
	case place == "sequence_reward_after":
		rows = c.afterBaseline(rows, perRow)
	case !perRow:
		rows = Input{X: rl.Broadcast(nil, a.X, b.Mask, b.Rows, b.Cols), Err: c.spread(rows.Err)}
	}
	if !c.OK() {
		return nil
	}
	y, whitening := rows, []Term(nil)
	if !perRow && place != "sequence_reward_after" && c.whitensRows() {
		if y, whitening = c.whitenAdvantages(Input{X: a.X, Err: a.Err}, true); c.OK() {
			y = Input{X: rl.Broadcast(nil, y.X, b.Mask, b.Rows, b.Cols), Err: c.spread(y.Err)}
		}
	} else {
		y, whitening = c.whitenAdvantages(rows, perRow)
	}
	if !c.OK() {
		return nil
	}
	p := &Prediction{Want: y.X, Bound: y.Err, Judge: make([]bool, len(y.X))}
	if a.level != nil && whitening == nil && place != "sequence_reward_after" {
		p.Near = func(i int, out float64) (ref, bound float64, ok bool) { return a.level[i*b.Rows/len(y.X)].near(out) }
	}
	for i := range p.Judge {
		if perRow {
			p.Judge[i] = a.complete[i]
		} else {
			p.Judge[i] = b.Mask[i] && a.complete[i/b.Cols]
		}
	}
	p.Terms = func(i int) []Term {
		if !perRow {
			i /= b.Cols
		}
		return append(a.terms(i), whitening...)
	}
	return p
}

// afterBaseline subtracts the KL of a token and of those after it from the advantage of its response, as OpenRLHF does, where
// the normalised score is the reward of the last token: A_t = γ^{last−t}·A − kl.beta·Σ_{k≥t} γ^{k−t}·kl_k.
func (c *Case) afterBaseline(a Input, perRow bool) Input {
	b := c.B
	beta, gamma := c.beta(), c.NumOr("gae.gamma", 1)
	if !c.OK() {
		return Input{}
	}
	if perRow {
		if beta != 0 {
			note(&c.Absent, "advantages per token (the KL of the tokens is in them)")
		}
		return a
	}
	hole := rl.HoleZeroStep
	if c.EnumOr("gae.hole", "zero_step") == "carry" {
		hole = rl.HoleCarry
	}
	if dumped := c.B.Token("token_rewards"); len(dumped) == len(b.Mask) { // what reward/token judges
		return c.rewardToGo(c.settled(c.Token("token_rewards")), gamma, hole)
	}
	var kl Input
	if beta != 0 {
		if kl = c.Token("kl"); len(kl.X) != len(b.Mask) {
			note(&c.Absent, "kl per token")
			return Input{}
		}
	}
	reward := Input{X: rl.TokenRewards(nil, a.X, kl.X, b.Mask, nil, b.Rows, b.Cols, rl.RewardOptions{Beta: beta}), Err: make([]float64, len(b.Mask))}
	u := c.Unit + tol.U64
	for i := range reward.X {
		if b.Mask[i] && beta != 0 {
			reward.Err[i] = math.Abs(beta)*kl.E(i) + 2*u*math.Abs(beta*kl.X[i])
		}
	}
	for r := range b.Rows {
		if t := c.last(r); t >= 0 {
			reward.Err[r*b.Cols+t] += a.E(r) + u*math.Abs(reward.X[r*b.Cols+t])
		}
	}
	return c.rewardToGo(reward, gamma, hole)
}

// sequence holds advantages per row and what they came from.
type sequence struct {
	Input
	complete []bool // the row's group is there as a whole
	terms    func(row int) []Term
	level    []level // of the rows, or nil
}

// sequenceRewards returns the reward of every response that enters its baseline, with the error of the KL in it:
// |β|·Σe_kl + (n + 2)·u·|β|·Σ|kl| + u·|r|.
func (c *Case) sequenceRewards() Input {
	b := c.B
	place := c.Enum("kl.place")
	if place == "token_reward" && c.Has("token_rewards") || !c.Has("scores") && !c.Has("rewards_per_func") {
		if !c.Has("token_rewards") {
			note(&c.Absent, "scores") // of which token_rewards would be made
			return Input{}
		}
		r := c.Token("token_rewards")
		if r.X == nil {
			return Input{}
		}
		counts := c.summedCells(r.X)
		y := Input{X: rl.RowSums(nil, r.X, counts, b.Rows, b.Cols), Err: make([]float64, b.Rows)}
		c.addSums(y.Err, r, counts, 1)
		return y
	}
	r := c.shapedScores("before_baseline")
	if place != "token_reward" && place != "sequence_reward_before_baseline" {
		return r
	}
	beta := c.beta()
	if !c.OK() || beta == 0 {
		return r
	}
	y := Input{X: make([]float64, b.Rows), Err: make([]float64, b.Rows)}
	if len(b.Row("kl")) == b.Rows {
		sums := c.Row("kl")
		for i, s := range sums.X {
			y.X[i] = r.X[i] - float64(beta*s)
			y.Err[i] = math.Abs(beta)*sums.E(i) + 2*(c.Unit+tol.U64)*math.Abs(beta*s)
		}
	} else {
		kl := c.Token("kl")
		if len(kl.X) != len(b.Mask) {
			note(&c.Absent, "kl per token")
			return Input{}
		}
		c.addSums(y.Err, kl, b.Mask, beta)
		for i, s := range rl.RowSums(nil, kl.X, b.Mask, b.Rows, b.Cols) {
			y.X[i] = r.X[i] - float64(beta*s)
			y.Err[i] += 2 * (c.Unit + tol.U64) * math.Abs(beta*s)
		}
	}
	for i, v := range y.X {
		y.Err[i] += r.E(i) + (c.Unit+tol.U64)*math.Abs(v)
	}
	return y
}

// summedCells returns the cells whose token rewards a response sums up: those of the mask. verl 0.9.1 sums over all of a row (core_algos.py,
// compute_grpo_outcome_advantage), which differs where tokens are rejected after rewards have a KL in them (rollout_corr_helper.py, rollout_rs).
func (c *Case) summedCells(x []float64) []bool {
	if !strings.EqualFold(c.B.Meta.Framework, "verl") {
		return c.B.Mask
	}
	counts := slices.Clone(c.B.Mask)
	for i, v := range x {
		counts[i] = counts[i] || !math.IsNaN(v)
	}
	return counts
}

// addSums adds to dst, per row, the error of |factor|·Σx over the cells that count.
func (c *Case) addSums(dst []float64, x Input, counts []bool, factor float64) {
	b := c.B
	for r := range b.Rows {
		var size, err float64
		n := 0
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if counts[i] {
				size += math.Abs(x.X[i])
				err += x.E(i)
				n++
			}
		}
		dst[r] += math.Abs(factor) * (err + foldError(n, c.Unit)*size)
	}
}

// sequenceAdvantages returns the advantage of every response, before whitening and clipping.
func (c *Case) sequenceAdvantages() (s sequence) {
	if pass := c.passesOf(); pass != nil {
		return c.advantagesOfPasses(pass)
	}
	kind := c.Enum("adv.kind")
	multi := kind == "group" && c.EnumOr("adv.multi", "sum_then_normalize") == "normalize_then_sum"
	var r Input
	if !multi {
		if r = c.sequenceRewards(); r.X == nil {
			return s
		}
	}
	group := make([]int, c.B.Rows) // one group of all
	s.complete = make([]bool, c.B.Rows)
	for i := range s.complete {
		s.complete[i] = true
	}
	switch kind {
	case "raw":
	case "batch_baseline":
		c.wholeBatch()
	default:
		group, s.complete = c.groups()
	}
	if !c.OK() {
		return s
	}
	var members [][]int
	if members = membersOf(group); kind == "raw" {
		s.Input = r
		s.terms = func(i int) []Term { return []Term{{"reward", r.X[i]}} }
		return s
	}
	switch kind {
	case "group", "batch_baseline", "rfpp_baseline":
		o := c.groupOptions(kind)
		if o.Scale == rl.ScaleBatchStd || multi {
			c.wholeBatch()
		}
		if !c.OK() {
			return s
		}
		if multi {
			return c.normalizeThenSum(s, group, members, o)
		}
		return c.normalized(s, r, group, members, o)
	case "opo":
		return c.opo(s, r, group, members)
	case "passk":
		return c.passK(s, r, group, members)
	}
	return c.gpg(s, r, group, members)
}

// groupOptions returns how rewards are centred and scaled.
func (c *Case) groupOptions(kind string) (o rl.GroupOptions) {
	if kind == "rfpp_baseline" {
		return rl.GroupOptions{Singleton: rl.SingletonRaw}
	}
	o.Center, _ = rl.ParseCenter(c.inapplicable("adv.center", "mean"))
	o.Scale, _ = rl.ParseScale(c.inapplicable("adv.scale", "none"))
	if o.Scale == rl.ScaleNone {
		return o
	}
	if d := c.Num("adv.ddof"); d == 1 {
		o.DDof = 1
	}
	o.Eps = max(c.NumOr("adv.eps", 0), 0)
	o.ZeroStd, _ = rl.ParseZeroStd(c.inapplicable("adv.zero_std", "divide_eps"))
	o.BatchCentred = o.Scale == rl.ScaleBatchStd && c.EnumOr("adv.std_of", "rewards") == "centred"
	return o
}

// lone reads adv.singleton if a complete group has one scorable response and what it gets is for that option to say.
func (c *Case) lone(x []float64, members [][]int, complete []bool, o *rl.GroupOptions) {
	if o.Center == rl.CenterNone && (o.Scale == rl.ScaleNone || o.Scale == rl.ScaleBatchStd) || o.Singleton != rl.SingletonError {
		return
	}
	o.Singleton = rl.SingletonZero // of groups that are not judged
	for _, ids := range members {
		n := 0
		if !complete[ids[0]] {
			continue
		}
		for _, i := range ids {
			if !math.IsNaN(x[i]) || !o.SkipNaN {
				n++
			}
		}
		if n == 1 {
			o.Singleton, _ = rl.ParseSingleton(c.Enum("adv.singleton"))
			// Its leave-one-out baseline is 0/0, which the mean and the deviation of the batch leave out, and which becomes 0 behind them (TRL 1.16, RLOOTrainer).
			if o.Singleton == rl.SingletonZero && o.SkipNaN && o.Center == rl.CenterLOO && o.BatchCentred && len(ids) > 1 {
				o.Singleton = rl.SingletonNaN
			}
			return
		}
	}
}

// normalized is [rl.GroupAdvantage] with its bounds. A reward that is NaN is left out of its group, as TRL does; where a
// program does not, its advantages are NaN, which is a failure.
func (c *Case) normalized(s sequence, r Input, group []int, members [][]int, o rl.GroupOptions) sequence {
	o.SkipNaN = slices.ContainsFunc(r.X, math.IsNaN)
	c.lone(r.X, members, s.complete, &o)
	if !c.OK() {
		return s
	}
	x, err := rl.GroupAdvantage(nil, r.X, group, o)
	if err != nil {
		c.refused(err)
		return s
	}
	g := groupBounds(r, members, o, c.Unit)
	s.Input, s.level = Input{X: x, Err: g.bound}, g.level
	s.terms = func(i int) []Term {
		t := []Term{{"reward", r.X[i]}, {"group mean", g.mean[i]}}
		if o.Scale != rl.ScaleNone {
			t = append(t, Term{"std", g.std[i]}, Term{"adv.eps", o.Eps})
		}
		return append(t, Term{"group size", g.size[i]})
	}
	return s
}

// refused notes that the framework raises an exception under these options.
func (c *Case) refused(err error) {
	if errors.Is(err, rl.ErrGroupOfOne) {
		note(&c.Absent, "an advantage (adv.singleton error: a group of one raises an exception)")
		return
	}
	note(&c.Absent, "an advantage ("+err.Error()+")")
}
