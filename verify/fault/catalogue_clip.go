package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// sequenceFaultsOfRewards are bugs of what stands for the reward of a response before its baseline.
func sequenceFaultsOfRewards() []*Hypothesis {
	list := []*Hypothesis{{ID: "REWARD-CLIP-MISSING", Checks: []string{"advantage/group"},
		Title: "the rewards are clipped after the KL is subtracted from them, not before", Input: clippedAfterKL}}
	for _, h := range []struct {
		title  string
		factor float64
	}{{"", 0}, {"the penalty of responses that are too long is added, where it should be subtracted", -1}} {
		list = append(list, &Hypothesis{ID: "OVERLONG-PENALTY", Checks: []string{"reward", "advantage/group"}, Title: h.title,
			Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				return c.B, c.Set.WithFact("overlong_penalty_factor", h.factor*c.FactOr("overlong_penalty_factor", 1)), c.FactOr("overlong_buffer_len", 0) > 0
			}})
	}
	list = append(list, &Hypothesis{ID: "OVERLONG-PENALTY", Checks: []string{"reward", "advantage/group"},
		Title: "the penalty of responses that are too long stands in the place of their reward, where it should be added to it", Input: overlongAlone})
	return append(list, &Hypothesis{ID: "ADV-CENTER", Checks: []string{"advantage/group"},
		Title: "the leave-one-out baseline is that of another number of responses than the groups have", Predict: leftOneOutOfOthers})
}

// overlongAlone is the input whose responses that reach into the buffer before the longest length have no score but the penalty.
func overlongAlone(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	from := c.FactOr("max_completion_length", math.NaN()) - c.FactOr("overlong_buffer_len", math.NaN())
	return token("scores", func(c *stage.Case, s []float64) []float64 {
		n, y, some := tokensOf(c.B, c.B.Mask), slices.Clone(s), false
		if len(s) != len(n) {
			return nil
		}
		for r := range y {
			if n[r] > from {
				y[r], some = 0, true
			}
		}
		if !some {
			return nil
		}
		return y
	})(c)
}

// clippedAfterKL is the input whose rewards less β·KL are clipped (TRL 1.16, rloo_trainer.py, clips before apply_kl_penalty's term).
func clippedAfterKL(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	clip, place, ch := c.Set.Value("reward.clip_range"), c.Set.Value("kl.place"), stage.Find("advantage/group")
	if clip.Kind() != convention.Tuple || place.Kind() != convention.Enum || place.Text() != "sequence_reward_before_baseline" || numberOr(c, "kl.beta", 0) == 0 {
		return nil, nil, false
	}
	unclipped := both(option("reward.clip", "none"), option("adv.kind", "raw"))
	raw := under(unclipped, c, ch)
	if raw == nil || c.B.Cols == 0 {
		return nil, nil, false
	}
	x := make([]float64, c.B.Rows)
	for r := range x {
		at := r
		if len(raw.Want) != c.B.Rows {
			at = max(firstOf(c.B, r), r*c.B.Cols)
		}
		x[r] = math.Min(math.Max(raw.Want[at], clip.Nums()[0]), clip.Nums()[1])
	}
	set := c.Set.With("reward.clip", parsed("reward.clip", "none"), "hypothesis").With("kl.place", parsed("kl.place", "none"), "hypothesis")
	return c.B.Without("token_rewards", "rewards_per_func").With("scores", x), set, true
}

// leftOneOutOfOthers predicts (r − mean)·m/(m − 1) of groups of n responses with the whole m ≠ n that the advantages show: verl 0.9.1,
// compute_rloo_outcome_advantage, takes m from the group.
func leftOneOutOfOthers(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const largest = 1 << 10
	id, centre, scale := c.B.Row("group_id"), c.Set.Value("adv.center"), c.Set.Value("adv.scale")
	if id == nil || centre.String() != "loo" || scale.String() != "none" && scale.String() != "–" {
		return nil
	}
	n, same := groupSize(id)
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	if !same || n < 2 || p == nil || got == nil || len(got.Data) != len(p.Want) {
		return nil
	}
	var product, square float64
	for i, want := range p.Want {
		if p.Judge != nil && !p.Judge[i] || len(p.Want) == len(c.B.Mask) && !c.B.Mask[i] {
			continue
		}
		if x := got.Data[i] * want; !math.IsNaN(x) && !math.IsInf(x, 0) {
			product += x
			square += want * want
		}
	}
	own := float64(n) / float64(n-1)
	shown := product / square * own // m/(m − 1)
	m := math.Round(shown / (shown - 1))
	if !(shown > 1) || !(m >= 2) || m > largest || m == float64(n) {
		return nil
	}
	return combined(m/(m-1)/own, p, 0, p)
}

// heldTotals returns the edit of token rewards that are held within ±c with the KL in them, where a score should be held before: c is what two of them at
// least are, and none is larger.
func heldTotals(o *stage.Outcome) []edit {
	free := option("reward.clip", "none")
	p := under(free, o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	if p == nil || len(p.Want) != len(o.Got) {
		return nil
	}
	bound, n := 0.0, 0
	for i, want := range p.Want {
		if size := math.Abs(o.Got[i]); o.Case.B.Mask[i] && math.Abs(want)-size > 4*o.Limit(i) {
			if bound = max(bound, size); size == bound {
				n++
			}
		}
	}
	if bound == 0 || n < 2 {
		return nil
	}
	return []edit{{id: "REWARD-CLIP-MISSING", title: fmt.Sprintf("the rewards are held within ±%.6g after the KL is in them, not the scores before", bound), changes: 1, foreign: true,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(free, c, ch)
			if p == nil {
				return nil
			}
			q := altered(p)
			for i, x := range q.Want {
				q.Want[i] = math.Min(math.Max(x, -bound), bound)
			}
			return q
		}}}
}
