package dump

import (
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

// look takes down what a batch exercises.
func (d *idleness) look(b *dump.Batch) {
	if d.has == nil {
		d.has = map[string]bool{}
	}
	differ := func(x, y string, by float64) bool {
		p, q := b.Token(x), b.Token(y)
		if p == nil || q == nil {
			return false
		}
		d.has[y] = true
		for i, m := range b.Mask {
			if diff := p[i] - q[i]; m && (diff > by || diff < -by) {
				return true
			}
		}
		return false
	}
	d.ratios = d.ratios || differ("logp_new", "logp_old", 0)
	d.references = d.references || differ("logp_new", "logp_ref", 0)
	if t := b.Tensors["advantages"]; t != nil {
		d.has["advantages"] = true
		for _, x := range t.Data {
			d.advantages = d.advantages || x != 0
		}
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
