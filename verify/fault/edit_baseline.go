package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// baselineEdits are the edits of a group advantage where token rewards are made of it: OpenRLHF's compute_reward is given the scores that
// make_experience has subtracted the baseline from, and adds −β·kl.
func baselineEdits(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "reward/token" {
		return nil
	}
	k := beforeKL(o.Case)
	if k == nil {
		return nil
	}
	ch := stage.Find("advantage/group")
	judged := stage.Judge(ch, k.B, k.Set)
	if judged.Pred == nil {
		return nil
	}
	for _, e := range responseEdits(judged) {
		of := e.predict
		e.predict = func(c *stage.Case, reward *stage.Check) *stage.Prediction {
			k := beforeKL(c)
			if k == nil {
				return nil
			}
			p, right, wrong := under(sameInput, c, reward), under(sameInput, k, ch), of(k, ch)
			if p == nil || right == nil || wrong == nil || len(right.Want) != c.B.Rows || len(wrong.Want) != c.B.Rows {
				return nil
			}
			if c.Set.Value("kl.place").String() != "sequence_reward_after" && !ofBaseline(c.B, p, right) {
				return nil
			}
			q := &stage.Prediction{Scale: p.Scale, Judge: p.Judge, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
			for r := range c.B.Rows {
				if i := lastOf(c.B, r); i >= 0 {
					q.Want[i] += wrong.Want[r] - right.Want[r]
					q.Bound[i] += wrong.Bound[r]
				}
			}
			return q
		}
		list = append(list, e)
	}
	return list
}

// responseEdits are the edits of the advantages of responses.
func responseEdits(judged *stage.Outcome) []edit {
	other := edit{id: "ADV-OTHER-GROUP", title: "the baseline is that of the group before or behind", changes: 1, foreign: true, predict: ofOtherGroup}
	return append(append(advantageEdits(judged), regroupEdits(judged)...), other)
}

// beforeReturnEdits are the edits of a group advantage where those of the tokens are returns of it and of the KL: A_t = γ^{last−t}·A − β·Σ γ^{k−t}·kl_k.
func beforeReturnEdits(o *stage.Outcome) (list []edit) {
	k := beforeReturn(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	if k == nil {
		return nil
	}
	judged := stage.Judge(o.Check, k.B, k.Set)
	if judged.Pred == nil || judged.Verdict != check.Fail {
		return nil
	}
	for _, e := range responseEdits(judged) {
		of := e.predict
		e.predict = func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			k := beforeReturn(c, ch)
			if k == nil {
				return nil
			}
			p, right, wrong := under(sameInput, c, ch), under(sameInput, k, ch), of(k, ch)
			if p == nil || right == nil || wrong == nil || len(right.Want) != c.B.Rows || len(wrong.Want) != c.B.Rows {
				return nil
			}
			q := &stage.Prediction{Scale: p.Scale, Judge: p.Judge, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
			gamma, dense := numberOr(c, "gae.gamma", 1), c.EnumOr("gae.hole", "zero_step") != "carry"
			for r := range c.B.Rows {
				by := 1.0
				for i := lastOf(c.B, r); i >= r*c.B.Cols; i-- {
					if c.B.Mask[i] {
						q.Want[i] += by * (wrong.Want[r] - right.Want[r])
						q.Bound[i] += by*wrong.Bound[r] + 8*c.Unit*math.Abs(by*wrong.Want[r])
					}
					if c.B.Mask[i] || dense {
						by *= gamma
					}
				}
			}
			return q
		}
		list = append(list, e)
	}
	return list
}

// beforeReturn returns the case of the advantages of responses that those of their last tokens show; nil where token rewards are dumped, which are judged for
// themselves, or where advantages are no returns.
func beforeReturn(c *stage.Case, ch *stage.Check) *stage.Case {
	t := c.B.Tensors["advantages"]
	if ch.ID != "advantage/group" || t == nil || t.Layout != dump.PerToken || len(t.Data) != len(c.B.Mask) || c.B.Cols == 0 || c.B.Token("token_rewards") != nil ||
		c.Set.Value("kl.place").String() != "sequence_reward_after" || !slices.Contains([]string{"none", "–", "?"}, c.Set.Value("whiten.scope").String()) {
		return nil
	}
	p := under(sameInput, c, ch)
	if p == nil || len(p.Want) != len(t.Data) {
		return nil
	}
	k := withoutKL(c, make([]float64, c.B.Rows))
	right := under(sameInput, k, ch)
	if right == nil || len(right.Want) != c.B.Rows {
		return nil
	}
	x := slices.Clone(right.Want)
	for r := range x {
		if i := lastOf(c.B, r); i >= 0 {
			x[r] += t.Data[i] - p.Want[i]
		}
	}
	return withoutKL(c, x)
}

// ofBaseline reports whether what token rewards should be ends with the advantage of every response: the scores after the baseline.
func ofBaseline(b *dump.Batch, rewards, advantages *stage.Prediction) bool {
	for r := range b.Rows {
		if i := lastOf(b, r); i >= 0 && math.Abs(rewards.Want[i]-advantages.Want[r]) > rewards.Bound[i]+advantages.Bound[r] {
			return false
		}
	}
	return true
}

// beforeKL returns the case of the advantages that token rewards were made of, as they stand at the ends of the rows without their KL; nil where
// token rewards are of the scores.
func beforeKL(c *stage.Case) *stage.Case {
	reward, kl, beta := c.B.Token("token_rewards"), c.B.Token("kl"), numberOr(c, "kl.beta", math.NaN())
	switch c.Set.Value("kl.place").String() {
	case "sequence_reward_after":
	case "loss", "none":
		beta = 0
	default:
		return nil
	}
	if len(reward) != len(c.B.Mask) || math.IsNaN(beta) || beta != 0 && len(kl) != len(reward) {
		return nil
	}
	x := make([]float64, c.B.Rows)
	for r := range x {
		if i := lastOf(c.B, r); i >= 0 {
			if x[r] = reward[i]; beta != 0 {
				x[r] += beta * kl[i]
			}
		}
	}
	return withoutKL(c, x)
}

// withoutKL returns the case of advantages of responses, x, that have no KL in them.
func withoutKL(c *stage.Case, x []float64) *stage.Case {
	b := *c.B
	b.Tensors = map[string]*dump.Tensor{}
	for name, x := range c.B.Tensors {
		if name != "token_rewards" {
			b.Tensors[name] = x
		}
	}
	t := dump.Tensor{Name: "advantages", Layout: dump.PerRow, Width: 1, Data: x}
	for _, of := range []string{"advantages", "token_rewards"} {
		if like := c.B.Tensors[of]; like != nil {
			t.Type, t.Shape = like.Type, []int{c.B.Rows}
		}
	}
	b.Tensors["advantages"] = &t
	set := c.Set
	for _, name := range []string{"kl.place", "whiten.scope"} {
		none, err := convention.Parse(name, "none")
		if err != nil {
			panic("fault: " + err.Error())
		}
		set = set.With(name, none, set.Origin(name))
	}
	return c.Of(&b, set)
}

// firstOf returns the cell of the first token of a row, −1 where it has none.
func firstOf(b *dump.Batch, row int) int {
	if first, _ := firstLast(b.Mask[row*b.Cols : (row+1)*b.Cols]); first >= 0 {
		return row*b.Cols + first
	}
	return -1
}

// lastOf returns the cell of the last token of a row, −1 where it has none.
func lastOf(b *dump.Batch, row int) int {
	if _, last := firstLast(b.Mask[row*b.Cols : (row+1)*b.Cols]); last >= 0 {
		return row*b.Cols + last
	}
	return -1
}
