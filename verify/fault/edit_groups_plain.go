package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// ownRewards returns the case whose scores are the rewards that enter the baselines: what is shaped, bounded, or has its KL in it. Its advantages are those before
// whitening. Nil where the scores are these rewards, or advantages are not of groups by mean and deviation.
func ownRewards(c *stage.Case, ch *stage.Check) *stage.Case {
	kind, place := c.EnumOr("adv.kind", ""), c.EnumOr("kl.place", "none")
	if ch.ID != "advantage/group" || kind != "group" && kind != "rfpp_baseline" || plainGroups(c, ch) || c.EnumOr("rewards.whiten", "no") != "no" || place == "sequence_reward_after" && numberOr(c, "kl.beta", 0) != 0 {
		return nil
	}
	in := both(changedOr("adv.kind", "raw"), changedOr("whiten.scope", "none"))
	if _, _, after := clippedAfter(c); after {
		in = both(in, option("reward.clip", "none"))
	}
	raw := under(in, c, ch)
	if raw == nil {
		return nil
	}
	x := numberOfRows(c.B, raw)
	if x == nil {
		return nil
	}
	return ofRewards(c, x, kind)
}

// numberOfRows returns the number of every row, or of its first token where a prediction is of tokens; nil where a row has none.
func numberOfRows(b *dump.Batch, p *stage.Prediction) []float64 {
	x := make([]float64, b.Rows)
	for r := range x {
		at := r
		if len(p.Want) != b.Rows {
			at = firstOf(b, r)
		}
		if at < 0 || at >= len(p.Want) {
			return nil
		}
		x[r] = p.Want[at]
	}
	return x
}

// ofRewards returns the case of unwhitened advantages of an estimator whose rewards are x as they are.
func ofRewards(c *stage.Case, x []float64, kind string) *stage.Case {
	b := c.B.Without("scores", "token_rewards", "rewards_per_func").With("scores", x)
	shaped := true
	b.Meta.ScoresShaped = &shaped
	b.Tensors["scores"].Layout = dump.PerRow
	values := map[string]string{"kl.place": "none", "whiten.scope": "none", "adv.kind": kind}
	if kind == "rfpp_baseline" {
		values["adv.kind"], values["adv.center"], values["adv.scale"], values["adv.singleton"] = "group", "mean", "none", "raw"
	}
	if _, _, after := clippedAfter(c); !after {
		values["reward.clip"] = "none"
	}
	set := c.Set
	for name, value := range values {
		set = set.With(name, parsed(name, value), "hypothesis")
	}
	return c.Of(b, set)
}

// lifted returns the prediction for the rewards of a case, as advantages of c: whitened as they are.
func lifted(wrong *stage.Prediction, c *stage.Case, ch *stage.Check) *stage.Prediction {
	healthy := under(sameInput, c, ch)
	if wrong == nil || healthy == nil || len(wrong.Want) != len(healthy.Want) {
		return nil
	}
	p := wrong
	if scope := c.Set.Value("whiten.scope"); scope.Kind() == convention.Enum && scope.Text() != "none" {
		x := numberOfRows(c.B, wrong)
		if x == nil {
			return nil
		}
		p = under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			k := ofRewards(c, x, "raw")
			return k.B, k.Set.With("whiten.scope", scope, "hypothesis").With("reward.clip", parsed("reward.clip", "none"), "hypothesis"), true
		}, c, ch)
	}
	if p == nil || len(p.Want) != len(healthy.Want) {
		return nil
	}
	q := altered(p) // with the errors of the rewards, which other baselines have as well
	var most float64
	for i, e := range healthy.Bound {
		if !math.IsNaN(e) && !math.IsInf(e, 0) && (healthy.Judge == nil || healthy.Judge[i]) {
			most = max(most, e)
		}
	}
	for i := range q.Bound {
		q.Bound[i] += 2 * most
	}
	return q
}

// groupOrders are the edits of group advantages that other rows are a group in, where whole groups of one size stand one after the other.
func groupOrders(o *stage.Outcome) []edit {
	return slices.Concat(orderEdits(o), movedStatistics(o), runningEdits(o))
}

// ownRewardEdits returns those edits of advantages of rewards that are not the scores, or that are whitened.
func ownRewardEdits(o *stage.Outcome) (list []edit) {
	k := ownRewards(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	if k == nil {
		return nil
	}
	judged := *o
	judged.Case = k
	for _, e := range groupOrders(&judged) {
		of := e.predict
		e.predict = func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			k := ownRewards(c, ch)
			if k == nil {
				return nil
			}
			return lifted(of(k, ch), c, ch)
		}
		list = append(list, e)
	}
	return list
}
