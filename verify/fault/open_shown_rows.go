package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// OrderShown returns the rule and the bounds of importance weights of tokens that stand in other rows than those of their log-probs: most weights of a row are those
// of one row of the rollout, which tells where they belong. What no row is given is as without bounds.
func OrderShown(ch *stage.Check, b *dump.Batch, set *convention.Set) [][]stage.Change {
	const least, most, near = 4, 512, 1e-5 // tokens that two rows share, rows, and of a weight
	w, gen, old := b.Token("is_weights"), b.Token("logp_gen"), ofTrainer(stage.NewCase(b, set, 0))
	if ch.ID != "ratio/is_weights" || w == nil || gen == nil || old == nil || b.Rows > most || b.Cols == 0 || set.Value("tis.level").Kind() != convention.Unknown {
		return nil
	}
	plain := make([]float64, len(w))
	for i := range plain {
		plain[i] = math.Exp(old[i] - gen[i])
	}
	y, given, moved := slices.Clone(plain), make([]bool, b.Rows), 0
	for r := range b.Rows {
		for s := range b.Rows {
			shared, alike := 0, 0
			for t := range b.Cols {
				i, j := r*b.Cols+t, s*b.Cols+t
				if !b.Mask[i] || !b.Mask[j] {
					continue
				}
				if shared++; math.Abs(w[i]-plain[j]) <= near*plain[j] {
					alike++
				}
			}
			if shared < least || 2*alike < shared || given[s] {
				continue
			}
			if given[s] = true; r != s {
				moved++
			}
			for t := range b.Cols {
				if i, j := r*b.Cols+t, s*b.Cols+t; b.Mask[i] && b.Mask[j] {
					y[j] = w[i]
				}
			}
			break
		}
	}
	if moved < 2 {
		return nil
	}
	return first(stage.Shown(ch, b.With("is_weights", y), set), 1)
}
