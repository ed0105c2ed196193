package rl

import (
	"iter"
	"slices"
)

// Hole is what the recursion of GAE does at masked cells (gae.hole).
type Hole int

const (
	// HoleNone: no mask in the loop. V is 0 beyond the value mask. TRL PPO, OpenAI, and CleanRL with done flags.
	HoleNone Hole = iota
	// HoleCarry: a masked cell changes nothing, and holds the A of the next true cell. verl, NeMo-RL.
	HoleCarry
	// HoleZeroStep: a masked cell is a step of V = 0 and r = 0, which costs one more γλ. OpenRLHF.
	HoleZeroStep
	// HoleCut: a masked cell, and the last true cell of a row, takes nothing from its right; what a hole holds leaks into the
	// true cell before it. open-instruct, packed rows.
	HoleCut
	// HoleCutNext: nothing is taken from a masked cell on the right. The trainer of `train ppo`.
	HoleCutNext
)

var holes = enumeration[Hole]("gae.hole", "none", "carry", "zero_step", "cut", "cut_next")

func (h Hole) String() string { return holes.text(h) }

// ParseHole reads a value of gae.hole.
func ParseHole(s string) (Hole, error) { return holes.parse(s) }

// ValueMask says which cells hold a value of the critic (gae.value_mask).
type ValueMask int

const (
	ValueResponse ValueMask = iota // the response
	ValueP1                        // and one token more: TRL PPO
)

var valueMasks = enumeration[ValueMask]("gae.value_mask", "response", "p1")

func (m ValueMask) String() string { return valueMasks.text(m) }

// ParseValueMask reads a value of gae.value_mask.
func ParseValueMask(s string) (ValueMask, error) { return valueMasks.parse(s) }

// LambdaPolicy is where λ of the policy comes from (gae.lambda_policy).
type LambdaPolicy int

const (
	LambdaFixed LambdaPolicy = iota // "none": Lambda for every row
	LambdaVAPO                      // 1 − 1/(α·len): longer responses look further ahead
)

var lambdaPolicies = enumeration[LambdaPolicy]("gae.lambda_policy", "none", "vapo")

func (p LambdaPolicy) String() string { return lambdaPolicies.text(p) }

// ParseLambdaPolicy reads a value of gae.lambda_policy.
func ParseLambdaPolicy(s string) (LambdaPolicy, error) { return lambdaPolicies.parse(s) }

// Bootstrap is what follows a response that was cut off by its length (gae.truncated_bootstrap).
type Bootstrap int

const (
	BootstrapNone  Bootstrap = iota // 0, as if it had ended: every framework for language models
	BootstrapValue                  // V of the state after it: CleanRL's V(next_obs)
)

var bootstraps = enumeration[Bootstrap]("gae.truncated_bootstrap", "none", "value")

func (b Bootstrap) String() string { return bootstraps.text(b) }

// ParseBootstrap reads a value of gae.truncated_bootstrap.
func ParseBootstrap(s string) (Bootstrap, error) { return bootstraps.parse(s) }

// ReturnsMask is how the returns treat masked cells (returns.remask).
type ReturnsMask int

const (
	ReturnsRaw     ReturnsMask = iota // "false": A + V. verl, NeMo-RL
	ReturnsMasked                     // "true": A + V at true cells, else 0
	ReturnsMaskedV                    // A, plus V at cells of the value mask. OpenRLHF, TRL PPO
)

var returnsMasks = enumeration[ReturnsMask]("returns.remask", "false", "true", "masked_v")

func (m ReturnsMask) String() string { return returnsMasks.text(m) }

// ParseReturnsMask reads a value of returns.remask.
func ParseReturnsMask(s string) (ReturnsMask, error) { return returnsMasks.parse(s) }

// GAEOptions are the options of GAE.
type GAEOptions struct {
	Gamma  float64 // gae.gamma, the discount γ per token; 1 in the frameworks for language models
	Lambda float64 // gae.lambda; .95 in TRL PPO and NeMo-RL, 1 in verl and OpenRLHF
	Hole   Hole    // gae.hole
	// Value says where V counts for HoleNone (gae.value_mask): up to the last true cell, holes included, or one cell more;
	// for the other rules at true cells, or those and the cell after the last. HoleCarry, HoleCut and HoleCutNext read V by
	// their own rule, and need it for ReturnsMaskedV only.
	Value        ValueMask
	LambdaPolicy LambdaPolicy // gae.lambda_policy; LambdaVAPO replaces Lambda for rows that have a true cell
	Alpha        float64      // α of LambdaVAPO; .05 in the paper
	Bootstrap    Bootstrap    // gae.truncated_bootstrap
	Returns      ReturnsMask  // returns.remask
}

// Rollout is a batch of responses with rewards and values.
type Rollout struct {
	Rows, Cols int
	Reward     []float64 // r, rows×cols
	Value      []float64 // V, rows×cols; nil stands for 0 everywhere
	Mask       []bool    // true at response tokens; nil is true everywhere

	// Done is true at a cell after which an episode or a packed segment ends: nothing flows over it to the left. nil is
	// false everywhere. CleanRL's dones[t+1] is Done at t. No flag is needed at the end of a row.
	Done []bool

	// Truncated marks the rows that BootstrapValue is for; nil marks all. Next is V of the state after the last true cell.
	Truncated []bool    // one per row
	Next      []float64 // one per row; needed for BootstrapValue only
}

// Row returns row i as a rollout of its own.
func (b Rollout) Row(i int) Rollout {
	r := Rollout{Rows: 1, Cols: b.Cols, Reward: row(b.Reward, i, b.Cols), Value: row(b.Value, i, b.Cols), Mask: row(b.Mask, i, b.Cols), Done: row(b.Done, i, b.Cols)}
	r.Truncated, r.Next = row(b.Truncated, i, 1), row(b.Next, i, 1)
	return r
}

// GAE stores in adv and ret the generalised advantage estimates and the returns of b, both rows×cols. Right to left, with
// V and A equal to 0 after the last column,
//
//	δ_t = r_t + γ·V_next − V_t,   A_t = δ_t + γλ·A_next,   R_t = A_t + V_t
//
// where (V_next, A_next) is, with m the mask and V zeroed beyond the value mask for none and zero_step,
//
//	none       (V_{t+1}, A_{t+1})
//	carry      those of the next true cell; A_t = A_next where m_t = 0
//	zero_step  (V_{t+1}, A_{t+1}), r = V = 0 where m = 0
//	cut        (V_{t+1}, A_{t+1}) if m_t and t is not the last true cell, else 0
//	cut_next   (V_{t+1}, A_{t+1}) if m_{t+1}, else 0
//
// and 0 where Done. The advantages are not whitened and masked cells are not cleared; the returns are those before
// whitening, see Returns for the others. With BootstrapValue the last true cell of a truncated row has V_next = Next and
// A_next = 0, unless it is Done.
//
// adv may be b.Reward or b.Value, as may ret if adv is another slice. A reward or a value that a rule does not read, such as
// one at a hole under carry, may be NaN without effect on true cells.
//
// It implements Schulman et al. 2016 (arXiv 1506.02438), Eq. 16; the frameworks differ in what "next" means when tokens are
// masked, and the goldens gae (TRL 1.12.0, verl 0.9.1, OpenRLHF 0.11.2) and conventions (NeMo-RL, open-instruct) pin the
// rules. λ of LambdaVAPO is that of Yue et al. 2025 (arXiv 2504.05118), as in NeMo-RL.
func GAE(adv, ret []float64, b Rollout, o GAEOptions) (advantages, returns []float64) {
	n := b.Rows * b.Cols
	needMatrix(b.Reward, b.Mask, b.Rows, b.Cols)
	need(b.Value == nil || len(b.Value) == n, badLength)
	need(b.Done == nil || len(b.Done) == n, badLength)
	need(b.Truncated == nil || len(b.Truncated) == b.Rows, badLength)
	need(o.Hole >= HoleNone && o.Hole <= HoleCutNext, badOption)
	need(o.Value == ValueResponse || o.Value == ValueP1, badOption)
	need(o.LambdaPolicy == LambdaFixed || o.LambdaPolicy == LambdaVAPO, badOption)
	need(o.Bootstrap == BootstrapNone || o.Bootstrap == BootstrapValue, badOption)
	need(o.Returns >= ReturnsRaw && o.Returns <= ReturnsMaskedV, badOption)
	need(o.Bootstrap == BootstrapNone || len(b.Next) == b.Rows, badLength)
	adv, ret = output(adv, n), output(ret, n)
	for i := range b.Rows {
		gaeRow(row(adv, i, b.Cols), row(ret, i, b.Cols), b.Row(i), o)
	}
	return adv, ret
}

// gaeRow computes a row of its own. The cells before the last true one need no rule for holes where there is none, and take a third of
// the time without.
func gaeRow(adv, ret []float64, b Rollout, o GAEOptions) {
	last := lastTrue(b.Mask, b.Cols)
	plain := b.Done == nil && b.Value != nil && (b.Mask == nil || last >= 0 && !slices.Contains(b.Mask[:last], false))
	for s := range o.Steps(b) {
		var a float64
		if s.Next >= 0 {
			a = adv[s.Next]
		}
		gl := s.Gamma * s.Lambda
		if s.Step {
			a = s.R + float64(s.Gamma*s.NextV) - s.V + float64(gl*a)
		}
		adv[s.Cell], ret[s.Cell] = a, returnAt(a, s.Raw, s.True, s.Value, o.Returns)
		if !plain || s.Cell != last {
			continue
		}
		for t, v := last-1, s.V; t >= 0; t-- {
			next := v
			v = b.Value[t]
			a = b.Reward[t] + float64(s.Gamma*next) - v + float64(gl*a)
			adv[t], ret[t] = a, a+v
		}
		return
	}
}

// GAEStep is a cell of the recursion of GAE: A = R + γ·NextV − V + γλ·NextA, or A = NextA where the cell is no step.
type GAEStep struct {
	Cell  int  // its index in the batch
	Next  int  // the cell whose A is NextA; −1 where nothing comes from the right and NextA is 0
	True  bool // what the mask says
	Step  bool // false at a hole under HoleCarry
	Boot  bool // NextV is Rollout.Next of the row
	Value bool // the cell belongs to the value mask
	// What the recursion reads, after the rule for holes.
	R, V, NextV float64
	Raw         float64 // V as it was handed in, beyond the value mask, too
	Gamma       float64
	Lambda      float64 // of the row, see LambdaVAPO
}

// Steps yields the cells of b in the order of the recursion: row by row, right to left. A cell is read before it is yielded,
// so the A computed from it may take the place of its reward or value. What is yielded holds until the next. Shapes are those of GAE, which checks them.
func (o GAEOptions) Steps(b Rollout) iter.Seq[*GAEStep] {
	return func(yield func(*GAEStep) bool) {
		for i := range b.Rows {
			reward, value := row(b.Reward, i, b.Cols), row(b.Value, i, b.Cols)
			mask, done := row(b.Mask, i, b.Cols), row(b.Done, i, b.Cols)
			last := lastTrue(mask, b.Cols)
			cells := o.valueCells(last)
			boot := -1 // where V_next is that of the state after the row
			if o.Bootstrap == BootstrapValue && (b.Truncated == nil || b.Truncated[i]) {
				boot = last
			}
			s := GAEStep{Gamma: o.Gamma, Lambda: o.lambda(b.Cols, mask)}
			next, v := -1, 0.0 // what the cell at t+1 hands to the left
			for t := b.Cols - 1; t >= 0; t-- {
				m := mask == nil || mask[t]
				s.Cell, s.True, s.Value = i*b.Cols+t, m, cells.at(t, m)
				s.R, s.Raw = reward[t], 0
				if value != nil {
					s.Raw = value[t]
				}
				s.V = s.Raw
				if (o.Hole == HoleNone || o.Hole == HoleZeroStep) && !s.Value {
					s.V = 0
				}
				if o.Hole == HoleZeroStep && !m {
					s.R = 0
				}
				s.Next, s.NextV = next, v
				if o.Hole == HoleCut && (!m || t == last) || done != nil && done[t] {
					s.Next, s.NextV = -1, 0
				}
				if s.Boot = t == boot && (done == nil || !done[t]); s.Boot {
					s.Next, s.NextV = -1, b.Next[i]
				}
				s.Step = m || o.Hole != HoleCarry
				switch {
				case !yield(&s):
					return
				case !s.Step: // a hole hands on what it got
					next, v = s.Next, s.NextV
				case o.Hole == HoleCutNext && !m:
					next, v = -1, 0
				default:
					next, v = s.Cell, s.V
				}
			}
		}
	}
}

// lambda returns λ of a row.
func (o GAEOptions) lambda(cols int, mask []bool) float64 {
	if o.LambdaPolicy == LambdaVAPO {
		if l := count(cols, mask); l > 0 {
			return 1 - 1/float64(o.Alpha*l)
		}
	}
	return o.Lambda
}

// valueCells are the cells of a row that belong to the value mask: the true cells, those up to the column upTo, and the
// one at the column p1. A column of −1 is none.
type valueCells struct{ upTo, p1 int }

// valueCells returns those of a row whose last true cell is last, or −1.
func (o *GAEOptions) valueCells(last int) valueCells {
	c := valueCells{-1, -1}
	if o.Value == ValueP1 {
		c.p1 = last + 1 // of a row without a true cell column 0, as in trl@1.12 ppo_trainer
	}
	if o.Hole == HoleNone {
		c.upTo = last
	}
	return c
}

// at reports whether column t, whose mask is m, belongs.
func (c valueCells) at(t int, m bool) bool { return m || t <= c.upTo || t == c.p1 }

// returnAt returns R of one cell.
func returnAt(a, v float64, m, inV bool, kind ReturnsMask) float64 {
	switch {
	case kind == ReturnsRaw, kind == ReturnsMasked && m, kind == ReturnsMaskedV && inV:
		return a + v
	case kind == ReturnsMasked:
		return 0
	}
	return a
}

// Returns stores in dst the returns A + V of advantages that the caller has, which may be whitened ones
// (returns.before_whiten false): GAE itself returns those of the raw advantages. Shapes and the meaning of b and o are those
// of GAE; dst may be adv.
func Returns(dst, adv []float64, b Rollout, o GAEOptions) []float64 {
	n := b.Rows * b.Cols
	needMatrix(adv, b.Mask, b.Rows, b.Cols)
	need(b.Value == nil || len(b.Value) == n, badLength)
	need(o.Returns >= ReturnsRaw && o.Returns <= ReturnsMaskedV, badOption)
	dst = output(dst, n)
	for i := range b.Rows {
		mask, value := row(b.Mask, i, b.Cols), row(b.Value, i, b.Cols)
		cells := o.valueCells(lastTrue(mask, b.Cols))
		for t := range b.Cols {
			v := 0.0
			if value != nil {
				v = value[t]
			}
			k := i*b.Cols + t
			m := mask == nil || mask[t]
			dst[k] = returnAt(adv[k], v, m, cells.at(t, m), o.Returns)
		}
	}
	return dst
}

// RewardToGo stores in dst the discounted sums Σ_k γ^{k−t}·r_k of the rewards from each token on: GAE with V = 0 and λ = 1.
// The rule for holes is HoleCarry (verl's REINFORCE++: a hole costs no discount), HoleZeroStep (OpenRLHF's get_cumulative_returns:
// it costs one γ) or HoleCutNext (verl's up to 0.8.0: the sum starts anew, verl#7278); the others panic. dst may be reward.
//
// Golden group_advantages (verl 0.9.1) and gae.
func RewardToGo(dst, reward []float64, mask []bool, rows, cols int, gamma float64, hole Hole) []float64 {
	needMatrix(reward, mask, rows, cols)
	need(hole == HoleCarry || hole == HoleZeroStep || hole == HoleCutNext, badOption)
	dst = output(dst, len(reward))
	for i := range rows {
		r, m, y := row(reward, i, cols), row(mask, i, cols), row(dst, i, cols)
		var sum float64
		for t := cols - 1; t >= 0; t-- {
			switch {
			case m == nil || m[t]:
				sum = r[t] + float64(gamma*sum)
			case hole == HoleZeroStep:
				sum = float64(gamma * sum)
			case hole == HoleCutNext:
				sum = 0
			}
			y[t] = sum
		}
	}
	return dst
}
