package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// ShownBounds returns the bounds that the ratios of token losses stop at, whichever formula has them: where none of a program does, that of a bug may. It
// proposes only.
func ShownBounds(ch *Check, b *dump.Batch, set *convention.Set) (shown [][]Change) {
	if ch.ID != "token_loss/policy" && ch.ID != "gradient/dlogp" || b.Token("token_loss") == nil || b.Token("logp_old") == nil {
		return nil
	}
	s := &solver{ch: Find("token_loss/policy"), steps: []Step{{B: b, Set: set}}}
	var lists [][]assign
	for _, level := range []string{"token", "seq_mean"} {
		v := bounds(s.lossCells([]assign{word("ratio.level", level)}, false), true, func(c *lossCell) (x, e float64) {
			x, e = c.rest(0, "")
			return -x / c.adv, e / math.Abs(c.adv)
		})
		if v.low.n+v.high.n+v.dual.n == 0 {
			continue
		}
		list := []assign{word("ratio.level", level)}
		for _, of := range [][]assign{numbers("clip.low", v.low.of(1, -1)), numbers("clip.high", v.high.of(-1, 1)), numbers("clip.dual", v.dual)} {
			if len(of) > 0 {
				list = append(list, of[0])
			}
		}
		lists = append(lists, list)
	}
	return openOf(lists, set)
}
