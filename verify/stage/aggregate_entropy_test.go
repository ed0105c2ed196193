package stage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// TRL divides its entropy bonus by the accumulation steps under every loss_type, and takes the mean over the tokens of the micro-batch.
func TestEntropyBonusOfTRL(t *testing.T) {
	a := reduction{kind: "token", where: "global"}
	for seed := range cases(100) {
		tr := single(uint64(seed))
		b := tr.b
		pg := tr.grid("token_loss", func(int) float64 { return tr.r.NormFloat64() })
		h := tr.grid("entropy", func(int) float64 { return tr.r.ExpFloat64() })
		w := a.weights(b, tr.micro)
		loss := fileSums(b, w, pg)
		bonus, _ := tr.means32(func(i int) float32 { return float32(h[i]) })
		terms := make([]float64, len(loss))
		for f := range loss {
			terms[f] = float64(bonus[f] / float32(tr.micro))
			loss[f] = round32(loss[f] - round32(0.02*terms[f]))
		}
		tr.perFile("loss", loss)
		tr.perFile("entropy_loss", terms)
		set := a.set(t, options(t, "entropy.coef=0.02", "kl.place=none", "agg.div_ga=false", "entropy.agg=micro"))
		set = set.With("value.coef", must(convention.Parse("value.coef", "–")), "test").With("entropy.coef", convention.NumberValue(0.02), "test")
		for _, id := range []string{"aggregate/loss", "aggregate/entropy_loss"} {
			o := judged32(t, id, b, set)
			require.Equal(t, check.Pass, o.Verdict, "%s, seed %d: %s %+v", id, seed, o.Lacking(), o.Tally)
			if !evenly(b) { // else the mean of the micro-batches' means is that over all tokens
				require.Equal(t, check.Fail, judged32(t, id, b, set.With("entropy.agg", must(convention.Parse("entropy.agg", "same")), "test")).Verdict)
			}
		}
	}
}

// evenly reports whether all files of a batch have the same number of tokens.
func evenly(b *dump.Batch) bool {
	var first float32
	for i, f := range b.Files {
		var n float32
		for r := f.Lo; r < f.Hi; r++ {
			n += length(b, r)
		}
		if i == 0 {
			first = n
		}
		if n != first {
			return false
		}
	}
	return true
}
