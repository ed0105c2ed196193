package fault

import (
	"math"

	"plumbline/verify/stage"
)

// gapEdits returns the edit of a recursion A_t = r_t + γ·V_{t+1} − V_t + γλ·A_{t+1} that is right between tokens beside each other and at the end of a response,
// and takes another number over from behind each gap, as of a tool's answer: the steps of a gap have values of their own, which are not dumped. The number is
// that which the token before the gap shows; the tokens before that one carry it on.
func gapEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "gae/advantage" && o.Check.ID != "gae/returns" || overGaps(o.Case.Of(o.Case.B, o.Case.Set), o.Check) == nil {
		return nil
	}
	return []edit{{id: "GAE-HOLE", title: "credit crosses each gap between tokens by another number, which nothing of the dump is: the masked cells are steps of the recursion, with values of their own",
		changes: mostChanges, configured: []string{"gae.hole"}, predict: overGaps}}
}

// overGaps is nil where advantages before whitening are not shown, where gaps are few, or where few tokens carry on what they show.
func overGaps(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const gaps, carrying, alike = 4, 16, 1e-3 // gaps and tokens, and what the rewards before gaps are multiplied by, which then are what is wrong
	b, shown := c.B, rawAdvantages(c)
	reward, value := c.Token("token_rewards"), c.Token("values")
	gamma, lambda := numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN())
	if len(shown) != len(b.Mask) || len(reward.X) != len(b.Mask) || len(value.X) != len(b.Mask) || math.IsNaN(gamma*lambda) || b.Cols == 0 || c.Has("dones") || !plainRecursion(c, ch) {
		return nil
	}
	p := &stage.Prediction{Want: make([]float64, len(shown)), Bound: make([]float64, len(shown)), Judge: make([]bool, len(shown)), Scale: 1}
	found, told := 0, 0
	score := scoreParts(c)
	least, most := math.Inf(1), math.Inf(-1) // of what a gap moves, in parts of the reward before it
	for r := range b.Rows {
		var last, e, next float64
		behind, carries := false, false // a token of the row stands behind; what is carried comes over a gap
		for t := b.Cols - 1; t >= 0; t-- {
			i := r*b.Cols + t
			if !b.Mask[i] {
				continue
			}
			if behind && !b.Mask[i+1] {
				found++
				carries = true
				moved := shown[i] - (reward.X[i] + gamma*next - value.X[i] + gamma*lambda*last)
				least, most = min(least, moved/score(i)), max(most, moved/score(i))
				last, e, next = shown[i], 8*c.Unit*(math.Abs(shown[i])+math.Abs(value.X[i])), value.X[i]
				p.Want[i], p.Bound[i] = last, e
				continue
			}
			size := math.Abs(reward.X[i]) + math.Abs(gamma*next) + math.Abs(value.X[i]) + math.Abs(gamma*lambda*last)
			last = reward.X[i] + gamma*next - value.X[i] + gamma*lambda*last
			e = gamma*lambda*e + 8*c.Unit*size + reward.E(i) + value.E(i)
			next, behind = value.X[i], true
			p.Want[i], p.Bound[i], p.Judge[i] = last, e, true
			if carries {
				told++
			}
		}
	}
	if found < gaps || told < carrying || most-least <= alike*max(math.Abs(most), math.Abs(least)) {
		return nil
	}
	if ch.Output == "returns" {
		return withValues(p, value, c)
	}
	if whitened := c.Set.Value("whiten.scope").String(); whitened == "none" || whitened == "–" {
		return p
	}
	return whitenedFrom(p, p.Judge, c, ch)
}
