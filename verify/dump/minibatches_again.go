package dump

import (
	"context"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// longer returns over how many steps the rows of a rollout may have been shuffled where nobody says it and no group is cut, though advantages of some step alone
// are of no configuration and of no bug; 1 where nothing tells it, or nothing asks for it. What is normalised over a rollout shows in all of its steps alone.
func (s *session) longer(r *Report) (span int, why string, err error) {
	if s.profile != nil || s.minis > 1 || s.o.Leading || s.o.FirstFailure || s.unexplained(r) == 0 {
		return 1, "", nil
	}
	b, err := s.run.Batch(s.ctx, s.run.Steps()[0])
	if err != nil {
		return 1, "", err
	}
	set, err := s.options(&view{b: b})
	if err != nil {
		return 1, "", err
	}
	if _, said := set.Fact("num_mini_batches"); said || stage.Updates(set) > 1 {
		return 1, "", nil
	}
	if span, err = rowsComeAgain(s.ctx, s.run, maxSpan); err != nil || span > 0 { // after one step they are all of a rollout, whatever the updates are
		return span, "rows that come again", err
	}
	span, err = firstUpdates(s.ctx, s.run)
	return span, "updates whose new log-probs are the old ones", err
}

// unexplained counts the checks of advantages that neither a configuration nor a bug explains.
func (s *session) unexplained(r *Report) (n int) {
	for _, res := range r.Results {
		open := res.Verdict == check.Undetermined && res.Steps != nil && res.Steps.Bad > 0 || res.Verdict == check.Fail && (len(res.Explanations) == 0 || res.Explanations[0].Lead)
		if c := stage.Find(res.Check); open && c != nil && c.Stage == convention.Advantage {
			n++
		}
	}
	return n
}

// rowsComeAgain returns after how many of the first steps of a run, one after the other, the rows are those before; 0 where they are not, or cannot be told apart.
func rowsComeAgain(ctx context.Context, run Source, most int) (int, error) {
	seen := map[string]bool{}
	steps := run.Steps()
	for i, step := range steps[:min(len(steps), most)] {
		b, err := run.Batch(ctx, step)
		if err != nil {
			return 0, err
		}
		if len(b.Missing) > 0 || i > 0 && step != steps[i-1]+1 {
			break
		}
		told, again := 0, 0
		for _, k := range rowKeys(b) {
			if k == "" {
				continue
			}
			if told++; seen[k] {
				again++
			}
			seen[k] = true
		}
		if told == 0 || again > 0 && again < told {
			break
		}
		if again > 0 {
			return i, nil
		}
	}
	return 0, nil
}

// firstUpdates returns after how many steps, one after the other, the new log-probs are the old ones again, as they are at the first update of every rollout
// and at no other; 1 where they are so at all, or not at equal distances.
func firstUpdates(ctx context.Context, run Source) (int, error) {
	const least = 2 // rollouts
	var at []int
	steps := run.Steps()
	steps = steps[:min(len(steps), maxSpan)]
	for i, step := range steps {
		b, err := run.Batch(ctx, step)
		if err != nil {
			return 1, err
		}
		if len(b.Missing) > 0 || i > 0 && step != steps[i-1]+1 {
			return 1, nil
		}
		if newIsOld(b) {
			at = append(at, i)
		}
	}
	if len(at) < least || at[0] != 0 {
		return 1, nil
	}
	span := at[1]
	if len(at) != (len(steps)+span-1)/span {
		return 1, nil
	}
	for i, x := range at {
		if x != i*span {
			return 1, nil
		}
	}
	return span, nil
}

// newIsOld reports whether the new log-probs are the old ones to the rounding of float32.
func newIsOld(b *dump.Batch) bool {
	lp, old := b.Token("logp_new"), b.Token("logp_old")
	if lp == nil || old == nil {
		return false
	}
	const roundings = 8
	n := 0
	for i := range b.Tokens() {
		if n++; !(math.Abs(lp[i]-old[i]) <= roundings*tol.U32*(1+math.Abs(lp[i]))) {
			return false
		}
	}
	return n > 0
}
