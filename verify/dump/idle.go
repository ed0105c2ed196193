package dump

import (
	"slices"
	"strings"

	"plumbline/internal/format/dump"
)

// idleness is what nothing in a run exercises: a ratio that is 1 everywhere tells no clipping from none.
type idleness struct {
	ratios     bool            // some ratio is not 1
	references bool            // policy and reference differ somewhere
	advantages bool            // some advantage is not 0
	has        map[string]bool // tensors that were looked at
}

// add takes down what a step exercises.
func (d *idleness) add(n *StepNotes) {
	if d.has == nil {
		d.has = map[string]bool{}
	}
	for _, name := range n.Exercised {
		d.has[name] = true
	}
	d.ratios = d.ratios || n.Ratios
	d.references = d.references || n.References
	d.advantages = d.advantages || n.Advantages
}

// exercises takes down what a batch exercises.
func (n *StepNotes) exercises(b *dump.Batch) {
	differ := func(x, y string) bool {
		p, q := b.Token(x), b.Token(y)
		if p == nil || q == nil {
			return false
		}
		n.Exercised = append(n.Exercised, y)
		for i, m := range b.Mask {
			if m && (p[i] > q[i] || p[i] < q[i]) {
				return true
			}
		}
		return false
	}
	n.Ratios = differ("logp_new", "logp_old")
	n.References = differ("logp_new", "logp_ref")
	if t := b.Tensors["advantages"]; t != nil {
		n.Exercised = append(n.Exercised, "advantages")
		n.Advantages = slices.ContainsFunc(t.Data, func(x float64) bool { return x != 0 })
	}
}

// reasons says what the run does not exercise, and how it would.
func (d *idleness) reasons() (list []string) {
	if d.has["logp_old"] && !d.ratios {
		list = append(list, "all ratios are 1: clipping is untested (num_iterations=2 for one step)")
	}
	if d.has["logp_ref"] && !d.references {
		list = append(list, "policy = reference: KL is untested (dump a later step)")
	}
	if d.has["advantages"] && !d.advantages {
		list = append(list, "all advantages are 0: the loss is untested")
	}
	return list
}

// idle says why what a check looks at is 0.
func (s *session) idle(t *track) string {
	d := &s.exercise
	switch {
	case strings.Contains(t.check.ID, "clip") && d.has["logp_old"] && !d.ratios:
		return "all ratios are 1"
	case strings.Contains(t.check.ID, "clip"):
		return "nothing was clipped"
	case strings.Contains(t.check.ID, "kl") && d.has["logp_ref"] && !d.references:
		return "policy and reference are equal"
	case d.has["advantages"] && !d.advantages:
		return "all advantages are 0"
	}
	return "nothing in these steps makes it another one"
}
