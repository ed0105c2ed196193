package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// blind says which bugs stay invisible where an output was not dumped.
var blind = []struct {
	output, check string
	needs         func(present map[string]bool) bool // nil: always
	what          string
}{
	{"dlogp", "gradient/dlogp", nil, "gradients that are wrong while the loss is right (a detached ratio, the gradient of KL, clipped tokens that still learn) cannot be seen"},
	{"dvalues", "gradient/dvalues", func(p map[string]bool) bool { return p["values_new"] }, "gradients of the value loss cannot be seen"},
	{"token_loss", "token_loss/policy", nil, "a wrong token loss is seen only through the loss"},
	{"loss", "aggregate/loss", nil, "denominators and accumulation cannot be seen"},
	{"value_loss", "aggregate/value_loss", func(p map[string]bool) bool { return p["values_new"] }, "the value loss is seen only through the loss"},
	{"kl", "kl/token", func(p map[string]bool) bool { return p["logp_ref"] }, "the estimator of KL is seen only through the loss"},
	{"advantages", "advantage/group", nil, "baselines, groups and whitening cannot be seen"},
	{"scores", "advantage/group", func(p map[string]bool) bool {
		return p["advantages"] && !p["rewards_per_func"] && !p["token_rewards"] && !p["values"]
	}, "baselines, groups and whitening cannot be seen"},
	{"logp_gen", "ratio/is_weights", nil, "a mismatch with the engine that sampled (temperature, stale or unadapted weights, top-p) cannot be seen"},
	{"logits", "logp/new", nil, "wrong log-probs (temperature, shift, padding) are seen only where two passes disagree"},
}

// noPolicy are the algorithms that have no policy loss, and little of what the lists of blind spots speak of.
var noPolicy = []string{"sft", "gkd", "dpo", "kto", "bco"}

// unseen lists the outputs that were not dumped and the classes of bugs that stay invisible.
func (s *session) unseen() []check.Result {
	var results []check.Result
	if slices.Contains(noPolicy, s.algo) {
		return nil
	}
	for _, b := range blind {
		if s.present[b.output] || b.needs != nil && !b.needs(s.present) || !s.o.Selection.Takes(b.check) ||
			slices.ContainsFunc(s.tracks, func(t *track) bool { return t.check.ID == b.check && t.seen }) {
			continue
		}
		reason := fmt.Sprintf("without %s: %s", b.output, b.what)
		if hidden := only(b.check); len(hidden) > 0 {
			reason += " (" + strings.Join(hidden, ", ") + ")"
		}
		results = append(results, check.Result{Check: b.check, Verdict: check.NotSeen, Subject: b.output, Reason: reason,
			Demanded: slices.ContainsFunc(s.o.Selection.Require, func(r string) bool { return r == b.check })})
	}
	return results
}

// only returns the bugs of the catalogue that no other check can see.
func only(id string) []string {
	var ids []string
	for _, h := range fault.All() {
		if len(h.Checks) == 1 && h.Checks[0] == id {
			ids = append(ids, h.ID)
		}
	}
	return ids
}

// profilesThatFit names the profiles under which everything that was searched is right.
func (s *session) profilesThatFit() string {
	var searched []*track
	for _, t := range s.tracks {
		if t.searched && len(t.fits) > 0 {
			searched = append(searched, t)
		}
	}
	if len(searched) == 0 || s.profile != nil {
		return ""
	}
	if names := fitting(searched, (*convention.Profile).Allows); len(names) > 0 {
		return "profiles that fit what was searched: " + strings.Join(names, ", ")
	}
	if names := fitting(searched, (*convention.Profile).Configurable); len(names) > 0 {
		return "profiles that can be configured to what was searched: " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("no profile has all the options that were found (%s searched)", steps(len(searched), "check"))
}

// fitting names the profiles that have, by can, one of the fits of each check.
func fitting(searched []*track, can func(*convention.Profile, string, convention.Value) bool) (names []string) {
	for _, p := range convention.Profiles() {
		lacks := func(c stage.Change) bool {
			return !can(p, c.Option, c.To) && p.Value(c.Option).Kind() != convention.NotApplicable && c.To.Kind() != convention.NotApplicable
		}
		if !slices.ContainsFunc(searched, func(t *track) bool {
			return !slices.ContainsFunc(t.fits, func(f stage.Fit) bool { return !slices.ContainsFunc(f.Changes, lacks) })
		}) {
			names = append(names, p.Name)
		}
	}
	return names
}
