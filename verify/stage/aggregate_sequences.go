package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// withEmptySequences adds to the losses of the files those of rows without a token, where a loss is one of a sequence whose ratio is
// exp(Σ(lp − old)): of no token that is 1, and the row's loss −A, which stays in the mean over rows (TRL's RLOOTrainer, whose
// mask_truncated_completions empties rows). Where losses of tokens were dumped, the loss of a row at each of its cells, both a
// mean over their tokens and one over the rows are right. A mean over tokens has nothing of such a row, and one that leaves out empty rows neither.
func (c *Case) withEmptySequences(s *sums, red *reduction) {
	b := c.B
	level, kind := c.Set.Value("ratio.level"), c.Set.Value("loss.kind")
	if red.kind() != rl.AggSeqMeanTokenMean || red.o[0].EmptyRows != rl.AggCounted || b.Row("advantages") == nil ||
		level.String() != "seq_sum" || kind.String() != "ppo" {
		return
	}
	adv, token := c.Row("advantages"), b.Token("token_loss")
	if t := b.Tensors["token_loss"]; len(adv.X) != b.Rows || t != nil && t.Layout != dump.PerToken { // losses of rows have them all
		return
	}
	got := b.PerFile("pg_loss")
	if got == nil {
		got = b.PerFile("loss")
	}
	for f, file := range b.Files {
		o := red.o[f]
		var sum, size, e float64
		for r := file.Lo; r < file.Hi; r++ {
			if slices.Contains(red.mask[r*b.Cols:(r+1)*b.Cols], true) {
				continue
			}
			if token != nil && !(math.Abs(token[r*b.Cols]+adv.X[r]) <= 1e-5*math.Abs(adv.X[r])) {
				continue // the losses that were dumped have none for it
			}
			x := -adv.X[r] / o.Rows
			if o.Scale != 0 {
				x *= o.Scale
			}
			if o.Steps != 0 {
				x /= o.Steps
			}
			sum += x
			size += math.Abs(x)
			e += adv.E(r)/o.Rows + 4*(c.Unit+tol.U64)*(math.Abs(x)+math.Abs(s.x[f]+sum))
		}
		if token != nil && f < len(got) && math.Abs(got[f]-s.x[f]) <= math.Abs(got[f]-s.x[f]-sum) {
			continue // a mean over the tokens that were dumped has nothing of such rows
		}
		s.x[f], s.size[f], s.err[f] = s.x[f]+sum, s.size[f]+size, s.err[f]+e
	}
}
