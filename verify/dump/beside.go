package dump

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// fromBeside explains a failure by rows of other steps of the rollout: a tensor that was not permuted, or not cut into mini-batches, with the others.
// Where options are open, the failure may stand under one of the profiles that leave the fewest elements wrong.
func (t *track) fromBeside(s *session) {
	const most = 6 // failures
	if t.first.Pred == nil || len(t.why.fits) > 0 || slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead && !e.Several }) ||
		!slices.Contains([]convention.Stage{convention.TokenLoss, convention.Gradient, convention.Advantage, convention.Ratio, convention.KL}, t.check.Stage) && !slices.Contains([]string{"reward/token", "aggregate/value_loss", "aggregate/pg_loss", "aggregate/loss"}, t.check.ID) {
		return
	}
	b := t.first.Case.B
	failures := []*stage.Outcome{t.first}
	if t.searched {
		if u, err := s.unit(s.ctx, t, b.Meta.Step); err == nil {
			for _, changes := range fault.OrderShown(t.check, t.together(u.b, s), u.set) {
				wrong, _ := t.underEach([]*convention.Set{changed(u.set, changes)}, &view{b: u.b}, s)
				for _, j := range wrong[:min(1, len(wrong))] {
					failures = append(failures, j.Outcome)
				}
			}
			wrong, _ := t.bases(&view{b: u.b}, u.set, s)
			for _, j := range wrong {
				failures = append(failures, j.Outcome)
			}
		}
	}
	span := spanOf(t.first.Case.Set)
	if files := b.Files; (t.check.Stage == convention.Advantage || t.check.Stage == convention.Reward) && len(files) > 0 {
		span = 4 * max(span, files[len(files)-1].Step-files[0].Step+1) // the rollout before may be passed over several times, too
	}
	beside := s.beside(span)
	failures = failures[:min(most, len(failures))]
	for _, o := range append(failures, t.clippedOtherwise(failures[len(failures)-1])...) {
		if o.Verdict != check.Fail {
			continue
		}
		if found := fault.ExplainRows(o, beside); len(found) > 0 {
			t.first, t.why.faults = o, found
			return
		}
	}
}

// byRows explains a supervised loss that nobody says to be a mean over tokens by a bug of a mean over rows.
func (t *track) byRows(s *session) {
	o := t.first
	if o.Pred == nil || o.Case.B.Meta.Algorithm != "sft" || t.explained() || isDeclared(o.Case.Set, "agg.kind") ||
		t.check.Stage != convention.Aggregate && t.check.Stage != convention.Gradient {
		return
	}
	v, err := convention.Parse("agg.kind", "seq_mean_token_mean")
	if err != nil {
		panic("dump: " + err.Error())
	}
	wrong, _ := t.filled(&view{b: o.Case.B}, o.Case.Set.With("agg.kind", v, ofNobody), s)
	for _, p := range wrong {
		found := fault.Explain(p.Outcome)
		if slices.ContainsFunc(found, func(e fault.Explanation) bool { return !e.Lead }) {
			t.first, t.why.faults = p.Outcome, found
			return
		}
	}
}

// usualClips are bounds that programs write, below and above: those of PPO, of DAPO, tighter and wider ones.
var usualClips = [][2]string{{"0.2", "0.28"}, {"0.1", "0.1"}, {"0.3", "0.3"}, {"0.1", "0.2"}, {"none", "none"}}

// clippedOtherwise returns a failure under other bounds of the ratio, where nobody declares them and the loss reads them.
func (t *track) clippedOtherwise(o *stage.Outcome) (list []*stage.Outcome) {
	set := o.Case.Set
	if !slices.Contains(o.Case.Read, "clip.low") || isDeclared(set, "clip.low") || isDeclared(set, "clip.high") {
		return nil
	}
	for _, clip := range usualClips {
		under := set
		for i, name := range []string{"clip.low", "clip.high"} {
			v, err := convention.Parse(name, clip[i])
			if err != nil {
				panic("dump: " + err.Error())
			}
			under = under.With(name, v, ofNobody)
		}
		list = append(list, stage.Judge(t.check, o.Case.B, under))
	}
	return list
}

// beside returns the batches of the steps around one that may be of its rollout of span steps, a bounded number. Those of the last step that was
// asked for are kept.
func (s *session) beside(span int) func(step int) []*dump.Batch {
	const least, most = 3, 8 // steps on either side
	reach := min(max(span-1, least), most)
	of, kept := -1, []*dump.Batch(nil)
	return func(step int) []*dump.Batch {
		if of == step {
			return kept
		}
		of, kept = step, nil
		for other := step - reach; other <= step+reach; other++ {
			if other == step || !slices.Contains(s.run.Steps(), other) {
				continue
			}
			if b, err := s.run.Batch(s.ctx, other); err == nil {
				kept = append(kept, b.Without("logits", "dlogp", "dvalues", "token_loss", "entropy"))
			}
		}
		return kept
	}
}
