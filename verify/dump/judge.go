package dump

import "context"

// Judge judges the steps of a run in order.
func Judge(ctx context.Context, run Source, o Options) (*Report, error) {
	return Merge(ctx, run, o, nil)
}

// Merge is [Judge] where [Shard] has taken notes of the steps: it reads those again that notes do not settle, the first steps, and
// what is to be explained, one after another. Its report is the same.
func Merge(ctx context.Context, run Source, o Options, notes Notes) (*Report, error) {
	s, r, err := judge(ctx, run, o, notes, 1, "", 0)
	if err != nil {
		return nil, err
	}
	span, why, err := s.longer(r)
	if err != nil {
		return nil, err
	}
	if span > 1 {
		again, other, err := judge(ctx, run, o, nil, span, why, s.held)
		if err != nil {
			return nil, err
		}
		if again.unexplained(other) < s.unexplained(r) {
			s, r = again, other
		}
	}
	if o.Pictures && r.Brief != nil {
		if r.Pictures, err = s.pictures(ctx, r); err != nil {
			return nil, err
		}
	}
	return r, s.err
}

// judge judges a run, of rollouts over so many steps as something shows, or over as many as groups and advantages show. What was held against bugs before, of
// [session.affords], is not done again.
func judge(ctx context.Context, run Source, o Options, notes Notes, span int, why string, held int) (*session, *Report, error) {
	s, err := begin(ctx, run, o, &ledger{notes: notes})
	if err != nil {
		return nil, nil, err
	}
	if s.held = held; span > 1 {
		s.minis, s.shown = span, why
	}
	if err := s.judgeSteps(run.Steps()); err != nil {
		return nil, nil, err
	}
	if err := s.settle(); err != nil {
		return nil, nil, err
	}
	if err := s.explain(ctx); err != nil {
		return nil, nil, err
	}
	return s, s.report(), s.err
}

// begin makes a session.
func begin(ctx context.Context, run Source, o Options, l *ledger) (*session, error) {
	s, err := newSession(run, o)
	if err != nil {
		return nil, err
	}
	s.ctx, s.ledger, s.shown = ctx, l, "the groups"
	if s.minis, err = miniBatches(ctx, run); err != nil {
		return nil, err
	}
	if s.profile == nil {
		over, err := longerWhitened(ctx, run, s.minis)
		if err != nil {
			return nil, err
		}
		if over > s.minis {
			s.minis, s.shown = over, byAdvantages
		}
	}
	s.rollout.origin = run.Steps()[0]
	return s, nil
}

// byAdvantages is what shows that advantages were whitened over a rollout.
const byAdvantages = "the advantages"
