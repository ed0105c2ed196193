package dump

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// pastOfReference is what the steps before say of a step's reference: whether there was a rollout before, and what is suspected.
type pastOfReference struct {
	later bool
	suspicion
}

// pastsOfReference are those that a step can have.
var pastsOfReference = []pastOfReference{{false, unsuspected}, {true, unsuspected}, {true, alikeTwice}, {true, alikeOften}}

// suspicion is how often a reference was the policy bit by bit at the start of a rollout although there was something to learn before.
type suspicion int

const (
	unsuspected suspicion = iota
	alikeTwice            // in two rollouts after the first
	alikeOften            // in six, or in one before which the policy is known to have moved
)

// suspicion of the reference, at the start of a rollout after the first.
func (h *history) suspicion(later bool) suspicion {
	switch {
	case !later:
	case h.moved || h.learnt && h.alike >= 6:
		return alikeOften
	case h.learnt && h.alike >= 2:
		return alikeTwice
	}
	return unsuspected
}

// of names a step among those with other pasts.
func (p pastOfReference) of(page string) string {
	return fmt.Sprintf("%s, later %t, suspicion %d", page, p.later, p.suspicion)
}

// dress declares what a check of the reference asks.
func (p pastOfReference) dress(moved bool) func(*convention.Set) *convention.Set {
	return func(set *convention.Set) *convention.Set {
		return set.WithFact("rollout_begins", p.later).WithFact("reference_suspicion", float64(p.suspicion)).WithFact("policy_moved", moved)
	}
}

// suspected reports whether n equal numbers are, with those of the rollouts before, too many for chance and for updates that move nothing.
// Of two rollouts alone this one needs enough.
func suspected(c *stage.Case, n, enough int) bool {
	switch suspicion(c.FactOr("reference_suspicion", 0)) {
	case alikeOften:
		return n >= fewAlike
	case alikeTwice:
		return n >= enough
	}
	return false
}

// referenceStands demands that a reference is the same in every update of its rows, and another model than the policy after updates.
func referenceStands(c *stage.Case) *stage.Assertion {
	ref := c.B.Token("logp_ref")
	if ref == nil || synced(c) {
		return nil
	}
	a := &stage.Assertion{}
	beta := c.Set.Value("kl.beta")
	asked := beta.Kind() != convention.Number || beta.Num() != 0
	if v := followsPolicy(c); v != nil && asked {
		a.Checked, a.Violations = 1, []stage.Violation{*v}
		return a
	}
	if then := c.B.Token(before + "logp_ref"); then != nil {
		var most float64
		at := -1
		for i, m := range c.B.Mask {
			if !m || math.IsNaN(then[i]) {
				continue
			}
			a.Checked++
			// It may be computed again, by other kernels.
			if d := math.Abs(ref[i] - then[i]); d > 0.5*math.Max(0.5, math.Abs(then[i])) && d > most {
				most, at = d, i
			}
		}
		if lp, old := c.B.Token("logp_new"), c.B.Token("logp_old"); at >= 0 && lp != nil && old != nil && lp[at] != old[at] {
			a.Violations = append(a.Violations, stage.Violation{Row: at / c.B.Cols, Col: at % c.B.Cols, Got: ref[at], Fault: "REF-IS-POLICY",
				Reason: fmt.Sprintf("logp_ref of a row was %.6g at an earlier update and is %.6g now: the reference moves", then[at], ref[at])})
			return a
		}
	}
	begins, _ := c.Set.Fact("rollout_begins")
	if begins != true {
		if a.Checked == 0 {
			return nil
		}
		return a
	}
	if !asked {
		return nil
	}
	name := "logp_old"
	if c.B.Token(name) == nil {
		name = "logp_new"
	}
	d, ok := c.Discrepant(name, "logp_ref")
	if !ok || d.Tokens < fewAlike {
		return nil
	}
	a.Checked += d.Tokens
	if now, ok := c.Discrepant("logp_new", "logp_old"); ok && !now.Same {
		return a // a later mini-batch or epoch: its old log-probs may be those of the start, which the reference shares
	}
	if d.Same && suspected(c, d.Tokens, 24) {
		why := "in this rollout as in earlier ones, whose advantages were not 0"
		if moved, _ := c.Set.Fact("policy_moved"); moved == true {
			why = "although earlier updates have left the old log-probs"
		}
		a.Violations = append(a.Violations, stage.Violation{Row: -1, Col: -1, Fault: "REF-IS-POLICY", Got: d.MeanAbs,
			Reason: fmt.Sprintf("logp_ref is %s bit by bit in all %d tokens, %s: the reference is the policy, and the KL to it is 0 for ever", name, d.Tokens, why)})
	}
	return a
}

// followsPolicy finds a reference that moves with the policy: at a later update of the same rows it is logp_new bit by bit, as no two passes of
// different weights are, and it is not what it was at the earlier one.
func followsPolicy(c *stage.Case) *stage.Violation {
	const enough = 24 // tokens
	lp, ref, then := c.B.Token("logp_new"), c.B.Token("logp_ref"), c.B.Token(before+"logp_ref")
	if lp == nil || then == nil {
		return nil
	}
	tokens, moved, most := 0, 0, 0.0
	for i, m := range c.B.Mask {
		if !m || math.IsNaN(then[i]) {
			continue
		}
		if ref[i] != lp[i] {
			return nil
		}
		tokens++
		if d := math.Abs(ref[i] - then[i]); d > 1e-3*math.Max(0.1, math.Abs(then[i])) { // beyond what other kernels make of float32
			moved, most = moved+1, math.Max(most, d)
		}
	}
	if tokens < enough || 2*moved < tokens || coarse(c.B, "logp_ref") {
		return nil
	}
	return &stage.Violation{Row: -1, Col: -1, Got: most, Fault: "REF-IS-POLICY",
		Reason: fmt.Sprintf("logp_ref is logp_new bit by bit in all %d tokens of rows that an earlier update used, and was another there (by up to %.3g): the reference is the policy, and the KL to it is 0 for ever", tokens, most)}
}

// synced reports whether the reference is declared to follow the policy.
func synced(c *stage.Case) bool {
	return slices.ContainsFunc(c.B.Meta.Options, func(o dump.Option) bool {
		on, _ := o.Value.(bool)
		return on && (o.Name == "sync_ref_model" || strings.HasSuffix(o.Name, "update_ref") || strings.HasSuffix(o.Name, "enable_ema_ref"))
	})
}
