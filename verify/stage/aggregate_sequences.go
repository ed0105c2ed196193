package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// withEmptySequences adds to the losses of the files those of rows without a token, where a loss is one of a sequence whose ratio is
// exp(Σ(lp − old)): of no token that is 1, and the row's loss −A, which stays in the mean over rows (TRL's RLOOTrainer, whose
// mask_truncated_completions empties rows). Losses of tokens that were dumped have it where the loss of a row stands at each of its cells. A mean over
// tokens has nothing of such a row, and one that leaves out empty rows neither.
func (c *Case) withEmptySequences(s *sums, red *reduction) {
	b := c.B
	level, kind := c.Set.Value("ratio.level"), c.Set.Value("loss.kind")
	if red.kind() != rl.AggSeqMeanTokenMean || red.o[0].EmptyRows != rl.AggCounted || b.Row("advantages") == nil ||
		level.String() != "seq_sum" || kind.String() != "ppo" {
		return
	}
	adv, token := c.Row("advantages"), b.Token("token_loss")
	if len(adv.X) != b.Rows || c.Has("token_loss") && token == nil { // losses of rows have them all
		return
	}
	for f, file := range b.Files {
		o := red.o[f]
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
			s.x[f] += x
			s.size[f] += math.Abs(x)
			s.err[f] += adv.E(r)/o.Rows + 4*(c.Unit+tol.U64)*(math.Abs(x)+math.Abs(s.x[f]))
		}
	}
}
