package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// whitensRewards reports whether token rewards are whitened before GAE.
func (c *Case) whitensRewards() bool { return c.EnumOr("rewards.whiten", "no") == "shift_mean_false" }

// OfWhiteRewards returns c with the token rewards that the recursion takes where these are whitened first and the dump holds them as they were before,
// and what those may be off by; c itself and nil where they are taken as they are.
func (c *Case) OfWhiteRewards() (*Case, []float64) {
	k := c.Of(c.B, c.Set)
	if !k.WhitensDumped() {
		return c, nil
	}
	x := k.Token("token_rewards")
	y := k.whitenRewards(x)
	if !k.OK() || len(y.X) != len(x.X) {
		return c, nil
	}
	no, err := convention.Parse("rewards.whiten", "no")
	if err != nil {
		panic("stage: " + err.Error())
	}
	return c.Of(c.B.With("token_rewards", y.X), c.Set.With("rewards.whiten", no, c.Set.Origin("rewards.whiten"))), y.Err
}

// WhitensDumped reports whether the dumped token rewards are to be whitened before the recursion takes them.
func (c *Case) WhitensDumped() bool {
	k := c.Of(c.B, c.Set)
	if !k.whitensRewards() || !k.Has("token_rewards") {
		return false
	}
	x := k.Token("token_rewards")
	return len(x.X) == len(c.B.Mask) && !k.rewardsAreWhite(x.X)
}

// rewardsAreWhite reports whether token rewards have been whitened already: over the cells of whitening their variance is 1, which
// other rewards have only by accident. A dump may hold them before or after. The ε of whitening makes the variance v/(v + ε), which
// is within a hundredth of 1 unless rewards differ by no more than a thousandth; rounding to 16 bits moves it by less.
func (c *Case) rewardsAreWhite(x []float64) bool {
	o, count, runs := c.rewardWhitening()
	if !c.OK() {
		return false
	}
	tells := false
	for _, s := range runs {
		var cells []float64
		for i := s[0] * c.B.Cols; i < s[1]*c.B.Cols; i++ {
			if count[i] {
				cells = append(cells, x[i])
			}
		}
		if len(cells) < 2 {
			continue
		}
		if v := momentsOf(cells, nil, o.Var.DDof, 0, tol.U64).v; !(math.Abs(v-1) < 0.01) {
			return false
		}
		tells = true
	}
	return tells
}

// whitenRewards whitens token rewards and adds the mean back. Behind the last cell that holds a value they are 0 then (trl@1.12 ppo_trainer.py,
// masked_fill with padding_mask_p1).
func (c *Case) whitenRewards(x Input) Input {
	o, count, runs := c.rewardWhitening()
	if !c.OK() {
		return Input{}
	}
	y, _ := c.whitened(x, c.B.Cols, count, o, runs, nil)
	for i, in := range c.ValueCells() {
		if len(y.X) > 0 && !in {
			y.X[i], y.Err[i] = 0, 0
		}
	}
	return y
}

// rewardWhitening returns how token rewards are whitened, over which cells, and the runs of rows that are whitened together.
func (c *Case) rewardWhitening() (o rl.WhitenOptions, count []bool, runs [][2]int) {
	b := c.B
	o.Shift = rl.ShiftFalseAddBack
	c.whitenMoments(&o)
	kind, _ := rl.ParseWhitenMask(c.Enum("whiten.mask"))
	scope := c.EnumOr("rewards.whiten_scope", "same")
	if scope == "same" {
		scope = c.inapplicable("whiten.scope", "local_batch")
	}
	o.Scope, _ = rl.ParseScope(scope)
	if !c.OK() {
		return o, nil, nil
	}
	if o.Scope == rl.ScopeNone {
		o.Scope = rl.ScopeLocalBatch
	}
	// TRL whitens over the cells that hold a value, the first pad included.
	count = c.realCells()
	if kind != rl.WhitenAll {
		more := c.oneCellMore()
		for i, m := range c.ValueCells() {
			count[i] = count[i] && m && (kind == rl.WhitenLength || more || b.Mask[i])
		}
	}
	return o, count, c.scopes(o.Scope, nil)
}

// WhiteRewardCells are the cells over which token rewards are whitened, nil where nothing says it.
func (c *Case) WhiteRewardCells() []bool {
	_, count, _ := c.Of(c.B, c.Set).rewardWhitening()
	return count
}

// oneCellMore reports whether the cell behind a response holds a value and a reward.
func (c *Case) oneCellMore() bool { return c.EnumOr("gae.value_mask", "response") == "p1" }

// ValueCells are the cells up to the last one of a row that holds a value.
func (c *Case) ValueCells() []bool {
	extra := 0
	if c.oneCellMore() {
		extra = 1
	}
	return rl.LengthMask(nil, c.B.Mask, c.B.Rows, c.B.Cols, extra)
}
