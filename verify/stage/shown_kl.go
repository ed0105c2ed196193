package stage

import (
	"math"

	"plumbline/internal/format/dump"
)

// klBounds proposes the bound that estimates of a KL stop at (kl.clamp_out), with the kind under which all others are right: the largest of them, c, on
// which two at least stand, and beyond which every estimate that is not right would be. TRL's and verl's bound is 10; programs choose others.
func klBounds(b *dump.Batch) (lists [][]assign) {
	k, ref := b.Token("kl"), b.Token("logp_ref")
	if k == nil || ref == nil {
		return nil
	}
	c, at := 0.0, 0
	for i, m := range b.Mask {
		switch x := math.Abs(k[i]); {
		case !m || math.IsNaN(x) || math.IsInf(x, 0):
		case x > c:
			c, at = x, 1
		case x == c:
			at++
		}
	}
	if c == 0 || at < 2 {
		return nil
	}
	near := 8 * max(1e-6, Grid(k))
	for _, name := range []string{"logp_new", "logp_old"} {
		lp := b.Token(name)
		if lp == nil {
			continue
		}
		for _, kind := range []string{"k1", "k2", "k3", "abs"} {
			held, right := 0, true
			for i := range b.Tokens() {
				d := lp[i] - ref[i]
				x := map[string]float64{"k1": d, "k2": d * d / 2, "k3": math.Expm1(-d) + d, "abs": math.Abs(d)}[kind]
				switch off := near * max(1, math.Abs(d)); {
				case math.Abs(x-k[i]) <= off:
				case math.Abs(x) >= c && k[i] == math.Copysign(c, x):
					held++
				default:
					right = false
				}
			}
			if right && held >= 2 {
				list := []assign{word("kl.kind", kind), word("kl.clamp_in", "none"), amount("kl.clamp_out", written(c, near))}
				if kind != "k3" {
					list = append(list, word("kl.clamp_applies_to_k1", "true"))
				}
				lists = append(lists, list)
			}
		}
	}
	return lists
}
