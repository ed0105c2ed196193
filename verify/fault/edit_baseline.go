package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
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
	edits := append(advantageEdits(judged), regroupEdits(judged)...)
	edits = append(edits, edit{id: "ADV-OTHER-GROUP", title: "the baseline is that of the group before or behind", changes: 1, foreign: true, predict: ofOtherGroup})
	for _, e := range edits {
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
	t := *c.B.Tensors["token_rewards"]
	t.Layout, t.Width, t.Data = dump.PerRow, 1, make([]float64, c.B.Rows)
	for r := range t.Data {
		if i := lastOf(c.B, r); i >= 0 {
			if t.Data[r] = reward[i]; beta != 0 {
				t.Data[r] += beta * kl[i]
			}
		}
	}
	b := *c.B
	b.Tensors = map[string]*dump.Tensor{}
	for name, x := range c.B.Tensors {
		if name != "token_rewards" {
			b.Tensors[name] = x
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

// lastOf returns the cell of the last token of a row, −1 where it has none.
func lastOf(b *dump.Batch, row int) int {
	if _, last := firstLast(b.Mask[row*b.Cols : (row+1)*b.Cols]); last >= 0 {
		return row*b.Cols + last
	}
	return -1
}
