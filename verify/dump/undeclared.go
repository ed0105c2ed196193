package dump

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// undeclared settles a failure where nothing declares what the check reads, and no bug explains it. A number that the search has
// found, though no profile has it, is what the program uses, and breaks no declaration. What nothing explains refutes the options that
// were tried; a number that nobody declared may have another value, so the failure is not decided.
func (t *track) undeclared(res *check.Result, s *session) {
	if s.profile == nil && res.Verdict == check.Convention && t.otherRewards() {
		t.apart(res, s)
		return
	}
	if s.profile == nil && res.Verdict == check.Convention { // whether a search began or the value that is usual was tried
		if f := t.unsaid(s); f != nil {
			t.foundLate(res, f.Changes)
			return
		}
	}
	if !t.searched || s.profile != nil || t.first.Rules != nil {
		return
	}
	if res.Verdict == check.Fail {
		if changes, ok := t.legal(s); ok {
			t.foundLate(res, changes)
			return
		}
	}
	convicted := t.convicted() && !t.overOneWidth(s)
	switch {
	case res.Verdict == check.Fail && (t.unexplained() || !convicted) && t.lawless(s) != "":
		res.Reason += "; " + t.lawless(s)
	case res.Verdict == check.Fail && t.check.ID == "gradient/dlogp" && (t.unexplained() || !convicted) && stage.GradientAgainstSign(t.first.Case):
		t.ascends(res)
	case res.Verdict == check.Fail && (t.unexplained() || !convicted) && t.check.Stage == convention.Advantage && !isDeclared(t.first.Case.Set, "adv.kind") &&
		!s.o.Selection.Demands(t.check.ID) && stage.EstimatorUnseen(t.first.Case.B, t.first.Case.Set) != "":
		t.unseen(res, stage.EstimatorUnseen(t.first.Case.B, t.first.Case.Set))
	case res.Verdict == check.Fail && (t.unexplained() || !convicted) && !t.saysLoss() && !s.o.Selection.Demands(t.check.ID) && len(t.termsUnseen()) > 0:
		t.unseen(res, strings.Join(t.termsUnseen(), ", "))
	case res.Verdict == check.Fail && !convicted && (!t.readsDeclared() || t.unsaidAgainst()):
		open := t.openOptions()
		if len(open) == 0 {
			return
		}
		for i := range res.Explanations {
			res.Explanations[i].Lead = true
		}
		res.Verdict, res.Class = check.Undetermined, nil
		res.Reason += fmt.Sprintf("; nobody declares %s, and under other values a right program may give the same numbers", strings.Join(open[:min(3, len(open))], ", "))
		res.Fix = declaring(open)
	case res.Verdict == check.Fail && !slices.ContainsFunc(res.Explanations, func(e check.Explanation) bool { return !e.Lead }):
		if t.check.ID == "token_loss/policy" {
			if id, broken := stage.AgainstSign(t.first.Case); broken {
				t.signed(res, id)
				return
			}
		}
		if stage.OutsideMask(t.first) {
			res.Reason += "; some of it is outside response_mask, where no option puts any"
			return
		}
		if !t.readsDeclared() && stage.LacksOtherSteps(t.first) {
			res.Verdict = check.Undetermined
			res.Reason += "; the dump has a part of this rollout, and under some options the rest of it is in these numbers"
			res.Fix = "dump all steps of a rollout, or declare what the run was configured with"
		} else if open := t.openNumbers(); len(open) > 0 {
			res.Verdict = check.Undetermined
			res.Reason += fmt.Sprintf("; nobody declares %s, and a number has more values than a search can try", strings.Join(open, ", "))
			res.Fix = declaring(open)
		} else if open := t.chosen(); len(open) > 0 {
			res.Verdict = check.Undetermined
			res.Reason += fmt.Sprintf("; nobody declares %s, of which no profile has a value", strings.Join(open, ", "))
			res.Fix = declaring(open)
		} else if open := t.untriable(); len(open) > 0 {
			res.Verdict = check.Undetermined
			res.Reason += fmt.Sprintf("; nobody declares %s, of which a value that these data do not let try may give the numbers: they have its form", strings.Join(open, ", "))
			res.Fix = declaring(open)
		} else if open := t.openOptions(); !t.why.all && len(open) > 0 { // what was not tried is not refuted
			res.Verdict = check.Undetermined
			res.Reason += fmt.Sprintf("; nobody declares %s", strings.Join(open[:min(3, len(open))], ", "))
			res.Fix = declaring(open)
		} else if !t.readsDeclared() && t.unexplained() { // a right program may be one that nobody has met
			res.Verdict, res.Class = check.Undetermined, nil
			res.Reason += "; nothing is declared, and a configuration that is not known here may give them"
			res.Fix = declaring(t.openOptions())
		}
	}
}

// termsUnseen are the tensors of terms that a loss may have besides, where nobody says that it has none.
func (t *track) termsUnseen() (tensors []string) {
	if t.check.ID != "aggregate/loss" {
		return nil
	}
	for option, tensor := range stage.TermsUnseen(t.first.Case.B) {
		if !isDeclared(t.first.Case.Set, option) {
			tensors = append(tensors, tensor)
		}
	}
	slices.Sort(tensors)
	return tensors
}

// unseen makes a failure that nothing explains one that the dump lacks tensors for: with them a right program may have any such numbers.
func (t *track) unseen(res *check.Result, tensors string) {
	res.Verdict, res.Class, res.Metric, res.Where, res.Fix, res.Explanations, res.Steps.Bad = check.NotSeen, nil, "", "", "", nil, 0
	res.Reason = t.lacks(tensors)
}

// foundLate makes a failure of a pass under what was found of the options that nobody declares.
func (t *track) foundLate(res *check.Result, changes []stage.Change) {
	var found []string
	for _, c := range changes {
		found = append(found, c.Option+"="+c.To.String())
	}
	res.Verdict, res.Fix, res.Repeat, res.Class, res.Explanations = check.Pass, "", "", nil, nil
	res.Reason = "found by search: " + strings.Join(found, ", ")
}

// declaring asks for the options that are left open.
func declaring(open []string) string {
	const most = 6
	names := strings.Join(open[:min(most, len(open))], ", ")
	if more := len(open) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return "declare what the run was configured with, by --profile, --config or --set: " + names
}

// rejected leaves steps of which no row has a token undecided where others have some: what the engine sampled far from the policy may be rejected,
// all of it in some steps (verl 0.9.1, rollout_corr_helper.py, rollout_rs), and a mask that was never filled is empty in every step.
func (t *track) rejected(res *check.Result, s *session) {
	if s.profile != nil || t.check.ID != "masks/lengths" || t.passed == 0 ||
		slices.ContainsFunc(t.first.Rules.Violations, func(v stage.Violation) bool { return v.Fault != "MASK-EMPTY" }) {
		return
	}
	for i := range res.Explanations {
		res.Explanations[i].Lead = true
	}
	res.Verdict, res.Class = check.Undetermined, nil
	res.Reason += "; nobody declares whether responses are rejected, and of a rejection all of some steps may be"
	res.Fix = "declare what the run was configured with: --profile, --config or --set"
}

// otherOrder are the bugs of advantages that rows in another order than their groups show as well.
var otherOrder = []string{"ADV-ROWS-PERMUTED", "ADV-ROWS-OF-OTHERS", "ADV-WRONG-GROUPS", "ADV-OTHER-GROUP", "ADV-GROUPS-BY-POSITION", "ADV-GROUPS-INTERLEAVED"}

// ungrouped leaves advantages that nothing explains, or that another order of their rows does, without a judgement where their groups are a guess: undecided where
// one is demanded.
func (t *track) ungrouped(res *check.Result, s *session) {
	ordered := len(t.why.fits) == 0 && !slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool {
		return !e.Lead && (e.Hypothesis == nil || !slices.Contains(otherOrder, e.Hypothesis.ID))
	})
	if t.check.ID != "advantage/group" || t.first.Rules != nil || !ordered || !stage.BlocksUnsure(t.first) {
		return
	}
	for i := range res.Explanations {
		res.Explanations[i].Lead = true
	}
	if !s.o.Selection.Demands(t.check.ID) {
		t.unseen(res, "group_id")
		return
	}
	res.Verdict, res.Class = check.Undetermined, nil
	res.Reason += "; without group_id, blocks of num_generations rows were taken for groups, and the advantages of a block do not sum to 0: the rows may have been shuffled"
	res.Fix = "dump group_id, or the tokens of the prompts"
}

// signed says that token losses have the sign that none of their formulas gives.
func (t *track) signed(res *check.Result, id string) {
	res.Reason += "; where the ratio is 1 they have the sign of the advantage, which no loss and no number of a configuration gives"
	h := fault.Find(id)
	if h == nil {
		return
	}
	res.Explanations = append([]check.Explanation{{Fault: id, Title: h.Title, Cause: h.Cause, Rows: h.Rows, Evidence: "where the ratio is 1, the losses are the advantage, not its negative"}}, res.Explanations...)
	res.Class, res.Fix = []string{id}, h.Fix
}

// ascends says that a gradient lowers the log-probs of what is better than its baseline: an advantage of the wrong sign does, and a ratio that is
// inverted, with the right loss where it is 1.
func (t *track) ascends(res *check.Result) {
	res.Reason += "; where the ratio is 1 it has the sign of the advantage, which no loss and no number of a configuration gives"
	res.Explanations, res.Class, res.Fix = nil, nil, ""
	ids := []string{"ADV-SIGN", "RATIO-INVERTED"}
	if t.first.Case.B.Token("token_loss") != nil {
		if _, broken := stage.AgainstSign(t.first.Case); !broken { // the losses are of the right sign, and their gradients are not
			ids = ids[1:]
		}
	}
	for _, id := range ids {
		h := fault.Find(id)
		if h == nil || id == "RATIO-INVERTED" && t.first.Case.B.Token("logp_old") == nil {
			continue
		}
		res.Explanations = append(res.Explanations, check.Explanation{Fault: id, Title: h.Title, Cause: h.Cause, Rows: h.Rows, Evidence: "where the ratio is 1, the gradient is the advantage times a positive number"})
		res.Class = append(res.Class, id)
		if res.Fix == "" {
			res.Fix = h.Fix
		}
	}
}

// controlled returns the fits under which the rewards of a batch are right with a coefficient of their KL that this batch gives in closed form, and that
// under the first: nobody declares it, and a controller (kl.adaptive) changes it from one batch to the next.
func (t *track) controlled(v *view, set *convention.Set, s *session) (kept []stage.Fit, right *judgement) {
	const option = "kl.beta"
	if s.profile != nil || t.check.ID != "reward/token" || set.Value(option).Kind() != convention.Unknown {
		return nil, nil
	}
	b, err := v.whole()
	if err != nil {
		s.fail(err)
		return nil, nil
	}
	var betas []convention.Value
	for _, changes := range stage.Shown(t.check, b, set) {
		for _, c := range changes {
			if c.Option == option && !slices.Contains(betas, c.To) {
				betas = append(betas, c.To)
			}
		}
	}
	for _, f := range t.fits {
		for _, beta := range betas {
			o := s.judge(t.check, v, changed(set, f.Changes).With(option, beta, "search"))
			if o.Verdict == check.Pass {
				if kept = append(kept, f); right == nil {
					right = &o
				}
				break
			}
		}
	}
	if right != nil && !t.adaptive {
		t.adaptive = true
		s.say("the coefficient of the KL in the rewards, which nobody declares, changes from one batch to the next, as a controller (kl.adaptive) does it")
	}
	return kept, right
}

// weighted returns set with the weights of the reward functions that the scores of the run give, where nobody declares them.
func (s *session) weighted(v *view, set *convention.Set) *convention.Set {
	if _, said := set.Fact("reward_weights"); said {
		return set
	}
	weights, there := s.weigh(v)
	if !there {
		return set
	}
	if len(weights) == 0 && s.weights == nil {
		weights = s.weighTogether()
	}
	if s.weights == nil {
		for _, w := range weights {
			s.weights = append(s.weights, w)
		}
		if s.weights != nil {
			s.say(fmt.Sprintf("the weights of the reward functions, which nobody declares, are %v by the scores", s.weights))
		}
	}
	if s.weights == nil {
		return set
	}
	return set.WithFact("reward_weights", s.weights)
}

// weighTogether solves for the weights of the reward functions from several steps at once, for one in which a function gives every row 0; nil where they do not
// determine them.
func (s *session) weighTogether() []float64 {
	const most = 8 // steps
	if s.weighed {
		return nil
	}
	s.weighed = true
	var list []*dump.Batch
	for _, step := range spread(s.run.Steps(), most) {
		if b, err := s.run.Batch(s.ctx, step); err == nil {
			list = append(list, b)
		}
	}
	if len(list) < 2 {
		return nil
	}
	return stage.RewardWeights(dump.Join(list...))
}

// solved returns set with the numbers of the loss that all files of the run together give, and the token that ends all responses but the longest,
// where nobody declares them.
func (s *session) solved(step int, set *convention.Set) *convention.Set {
	for name, x := range s.scan().coefficients {
		if set.Value(name).Kind() == convention.Unknown {
			set = set.With(name, convention.NumberValue(x), "search")
		}
	}
	for _, c := range s.scan().form {
		// a ratio to the engine's log-probs is one to the trainer's times the weight between the two, which the form has
		twice := strings.HasPrefix(c.Option, "tis.") && among(set.Value("ratio.old"), "engine")
		if set.Value(c.Option).Kind() == convention.Unknown && !twice {
			set = set.With(c.Option, c.To, "search")
		}
	}
	if v := s.scan(); v.entropy != "" && set.Value("entropy.agg").Kind() == convention.Unknown {
		if agg, err := convention.Parse("entropy.agg", v.entropy); err == nil {
			set = set.With("entropy.agg", agg, "search")
		}
	}
	if n := s.scan().generation; n > 1 && math.IsNaN(stage.FactNumber(set, "num_items_in_batch")) {
		first := s.run.Steps()[0]
		set = set.WithFact(stage.StepTokens, s.tokensOf(first+(step-first)/n*n, n)/float64(n)).WithFact(stage.GenerationSteps, float64(n))
	}
	if v := s.scan(); v.ends {
		if _, said := set.Fact("eos_token_id"); !said {
			set = set.WithFact("eos_token_id", float64(v.end))
		}
	}
	if n := s.scan().updates; n > 1 && set.Value("optim.epochs").Kind() != convention.Number {
		set = set.WithFact(stage.RolloutSteps, float64(n))
	}
	if s.scan().adapted {
		set = set.WithFact(stage.Adapted, true)
	}
	if n := s.scan().rollout; n > 1 && !stage.SaysUpdates(set) {
		set = set.WithFact("num_mini_batches", float64(n))
	}
	parts := 1.0 // that are declared to be divided by besides
	if among(set.Value("agg.div_ga"), "true") {
		if parts = stage.FactNumber(set, "gradient_accumulation_steps"); math.IsNaN(parts) {
			parts = float64(max(s.scan().parts, 1))
		}
	}
	if x := s.scan().constant; x > 0 && !saysLength(set) && among(set.Value("agg.denominator"), "", "micro") { // it is beside the rows of a file
		set = set.WithFact("loss_scale_factor", x/parts)
	}
	if _, said := set.Fact("loss_denominator"); s.scan().divisor > 0 && !said && !saysLength(set) {
		set = set.WithFact("loss_denominator", s.scan().divisor/parts)
	}
	return set
}

// ofMask is the origin of what the mask of a dump says, which declares nothing else.
const ofMask = "response_mask"

// masked returns set with the response mask as what counts, where nobody says it: by the format a cell outside the mask is no action of the
// policy. That some programs sum over every cell, and mean it, is theirs to declare.
func masked(set *convention.Set) *convention.Set {
	const option = "mask.tokens"
	if set.Value(option).Kind() != convention.Unknown {
		return set
	}
	v, err := convention.Parse(option, "response")
	if err != nil {
		panic("dump: " + err.Error())
	}
	return set.With(option, v, ofMask)
}

// lengthened returns set with the constant that sums over tokens are divided by, where nobody declares it and the first step that has numbers
// gives it. verl takes the padded width where it has no loss_scale_factor, which is then nothing left to declare.
func (s *session) lengthened(b *dump.Batch, set *convention.Set) *convention.Set {
	if saysLength(set) {
		return set
	}
	if s.profile != nil && s.profile.Framework == "verl" {
		return set
	}
	if s.length == 0 {
		if s.length = stage.LengthConstant(b, set); s.length > 0 {
			s.say(fmt.Sprintf("sums over tokens are divided by %.6g, which nobody declares, by the gradients and losses of step %d", s.length, b.Meta.Step))
		}
	}
	if s.length == 0 {
		return set
	}
	return set.WithFact("loss_scale_factor", s.length)
}

// saysLength reports whether a declaration has the constant that sums over tokens are divided by. A loss_denominator of agg.denominator constant
// may be that of rows.
func saysLength(set *convention.Set) bool {
	_, factor := set.Fact("loss_scale_factor")
	_, length := set.Fact("max_completion_length")
	_, divisor := set.Fact("loss_denominator")
	return factor || length || divisor && !among(set.Value("agg.denominator"), "constant")
}

// among reports whether v is one of words; "" stands for a value that nobody knows.
func among(v convention.Value, words ...string) bool {
	text := ""
	if v.Known() {
		text = v.String()
	}
	return slices.Contains(words, text)
}

// readsDeclared reports whether the check reads an option that the files or the user declare: the search has left it as it is.
func (t *track) readsDeclared() bool {
	set := t.first.Case.Set
	return slices.ContainsFunc(t.first.Case.Read, func(name string) bool { return isDeclared(set, name) })
}

// isDeclared reports whether the files or the user say the value of an option: it is not of a search, of a profile or of another check.
func isDeclared(set *convention.Set, name string) bool {
	return set.Declares(name) && set.Origin(name) != ofMask
}

// openOptions are the options that the failure was judged with and that nobody has declared.
func (t *track) openOptions() []string {
	return slices.DeleteFunc(slices.Clone(t.first.Case.Read), func(name string) bool {
		origin := t.first.Case.Set.Origin(name)
		return origin != "" && !strings.Contains(origin, "@")
	})
}

// chosen are the options of the failure that have a value for want of any.
func (t *track) chosen() []string {
	return slices.DeleteFunc(slices.Clone(t.first.Case.Read), func(name string) bool { return t.first.Case.Set.Origin(name) != ofNobody })
}

// untriable are the options that nobody has declared of which a value that cannot be tried has the form of what failed.
func (t *track) untriable() []string {
	return slices.DeleteFunc(stage.Unrefuted(t.first), func(name string) bool {
		origin := t.first.Case.Set.Origin(name)
		return t.first.Case.Set.Value(name).Known() && origin != "search" && !strings.Contains(origin, "@") && !strings.Contains(origin, "/")
	})
}

// openNumbers are the options of numbers that the failure was judged with and that nobody has declared; none where no values of them
// together give what failed.
func (t *track) openNumbers() []string {
	var open []string
	said := t.saysLoss()
	for _, name := range t.first.Case.Read {
		o, err := convention.Find(name)
		if err != nil || o.Type != convention.NumberType && o.Type != convention.OrNoneType && o.Type != convention.PairType {
			continue
		}
		if origin := t.first.Case.Set.Origin(name); (origin == "" || strings.Contains(origin, "@")) && !t.ruledOut(name) && !(said && filters[name] && t.check.ID != "token_loss/policy") {
			open = append(open, name)
		}
	}
	if stage.OutOfReach(t.first, open) || said && stage.LossOutOfReach(t.first, open) {
		return nil
	}
	return open
}

// filters are the numbers that leave tokens out of a loss.
var filters = map[string]bool{"loss.off_policy_max": true, "loss.top_entropy": true}

// saysLoss reports whether the files or the user say the loss in full: its kind, its bounds, how it is aggregated and, where it has one, its KL. Who
// does has none of the [filters] that they do not name, once no value of them that a search can try gives the numbers.
func (t *track) saysLoss() bool {
	set := t.first.Case.Set
	for _, name := range []string{"loss.kind", "agg.kind", "ratio.level", "clip.low", "clip.high", "kl.place", "kl.kind", "kl.beta"} {
		applies := set.Value(name).Kind() != convention.NotApplicable && (slices.Contains(t.first.Case.Read, name) || name == "loss.kind" || name == "agg.kind")
		if applies && !isDeclared(set, name) {
			return false
		}
	}
	return true
}

// governors are the options that say whether a number is used at all.
var governors = map[string]string{"whiten.eps": "whiten.scope", "eos.penalty": "eos.rule", "adv.eps": "adv.scale", "clip.dual": "loss.kind", "kl.beta": "kl.place"}

// ruledOut reports whether no value of a number gives what failed: its governor is declared to have none, or whitening, which is a line
// a·x + b of all tokens of its scope, cannot have made them, or the rule for responses without an end, which changes such responses and
// their groups only, would have had to change others.
func (t *track) ruledOut(name string) bool {
	c := t.first.Case
	if by, ok := governors[name]; ok && c.Set.Value(by).Kind() == convention.Enum && c.Set.Value(by).Text() == "none" {
		if origin := c.Set.Origin(by); origin != "" && origin != "search" && !strings.Contains(origin, "@") {
			return true
		}
	}
	switch name {
	case "whiten.eps":
		return stage.NotALine(t.first)
	case "eos.penalty":
		return stage.EndedRowsWrong(t.first)
	}
	return false
}
