package fault

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// Bounds that nobody writes are read off the losses that are held at them, beside weights and a KL, too; a loss that has other bounds on top of its own
// shows none.
func TestBoundsShown(t *testing.T) {
	c := stage.Find("token_loss/policy")
	set := clippedLoss(t)
	capped := clippedLoss(t, "clip.delta", "1.05")
	held := func(lo, hi, delta float64) func(lp, old, a float64) float64 {
		return func(lp, old, a float64) float64 {
			r := math.Exp(lp - old)
			return math.Max(-a*math.Min(r, delta), -a*math.Max(lo, math.Min(r, hi)))
		}
	}
	of := func(f func(lp, old, a float64) float64) *dump.Batch { return perTokenOf(unclipped(), "token_loss", f) }
	none := math.Inf(1)
	require.Equal(t, check.Pass, stage.Judge(c, of(held(0.8, 1.28, none)), set).Verdict)
	require.Equal(t, check.Pass, stage.Judge(c, of(held(0.8, 1.28, 1.05)), capped).Verdict)
	requireName(t, stage.Judge(c, of(held(0.8, 1.1337, none)), set), "CLIP-BOUND", "at most 1.1337, where 1.28 is declared")
	requireName(t, stage.Judge(c, of(held(0.871, 1.31, none)), set), "CLIP-BOUND", "at least 0.871, where 0.8 is declared; at most 1.31,")
	requireName(t, stage.Judge(c, of(held(0.8, 1.15, none)), capped), "CLIP-BOUND", "and clip.delta does not hold")
	requireNoName(t, stage.Judge(c, of(func(lp, old, a float64) float64 { return held(0.8, 1.13, none)(lp, old, a) + 1e-3*a*lp }), set))
}

// Token losses that are divided by the lengths of their rows and multiplied by a number that people write.
func TestLengthAndANumber(t *testing.T) {
	c, set := stage.Find("token_loss/policy"), clippedLoss(t)
	of := func(by func(n float64) float64) *stage.Outcome {
		b := updated(func(d, a float64) float64 {
			return math.Max(-a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28)))
		})
		for i := range b.Mask {
			b.Mask[i] = i%b.Cols < 2+i/b.Cols%5
		}
		n := tokensOf(b, b.Mask)
		for i := range b.Mask {
			b.Token("token_loss")[i] = float64(float32(b.Token("token_loss")[i] * by(n[i/b.Cols])))
		}
		return stage.Judge(c, b, set)
	}
	require.Equal(t, check.Pass, of(func(float64) float64 { return 1 }).Verdict)
	requireName(t, of(func(n float64) float64 { return 10 / n }), "ADV-DIVIDED-BY-LENGTH", "divided by its own tokens, and multiplied by 10")
	requireNoName(t, of(func(n float64) float64 { return math.Log(1.3 + n) }))
}

// A clamp with one bound is called that, not a function of the advantage on one side, which gives the same losses.
func TestOneSidedClamp(t *testing.T) {
	c, set := stage.Find("token_loss/policy"), clippedLoss(t)
	for words, bounds := range map[string][2]float64{"none holds from below": {math.Inf(-1), 1.28}, "none holds from above": {0.8, math.Inf(1)}} {
		o := stage.Judge(c, perTokenOf(unclipped(), "token_loss", func(lp, old, a float64) float64 {
			r := math.Exp(lp - old)
			return math.Max(-a*r, -a*math.Max(bounds[0], math.Min(r, bounds[1])))
		}), set)
		found := newTrial(o).fitting(policyEdits(o))
		told := false
		for _, e := range found {
			require.NotEqual(t, "ADV-FORM", e.Hypothesis.ID, e.Hypothesis.Title)
			told = told || strings.Contains(e.Hypothesis.Title, words)
		}
		require.True(t, told, words)
	}
}

// Bounds that the losses of tokens would show are told from the losses of micro-batches, too: two that are each made in their own way of those of the
// configuration, and one that is a number that people write.
func TestBoundsOfLosses(t *testing.T) {
	none := math.Inf(1)
	for words, bound := range map[string][2]float64{
		"e to the −clip.low/2 and e to the 2·clip.high": {math.Exp(-0.1), math.Exp(0.56)}, "1 − 2·clip.low and 1/(1 − clip.low)": {0.6, 1.25},
		"the ratio of positive advantages is at most 0.9": {0.8, 0.9}, "": {0.8, 1.28}, "none": {0.8, none},
	} {
		b := perTokenOf(unclipped(), "token_loss", func(lp, old, a float64) float64 {
			r := math.Exp(lp - old)
			if a > 0 {
				return -a * math.Min(r, bound[1])
			}
			return -a * math.Max(r, bound[0])
		})
		half := b.Rows / 2
		b.Files = []dump.FileInfo{{Hi: half, Cols: b.Cols}, {Lo: half, Hi: b.Rows, Cols: b.Cols, MicroBatch: 1}}
		b.Meta.MicroBatches = 2
		losses := []float64{meanOf(b.Token("token_loss")[:half*b.Cols]), meanOf(b.Token("token_loss")[half*b.Cols:])}
		for r := range b.Origin {
			b.Origin[r].File = r / half
		}
		delete(b.Tensors, "token_loss")
		b.Tensors["pg_loss"] = &dump.Tensor{Name: "pg_loss", Layout: dump.PerFile, Width: 1, Shape: []int{2}, Data: mapped(losses, func(x float64) float64 { return float64(float32(x)) }), Type: format.F32}
		o := stage.Judge(stage.Find("aggregate/pg_loss"), b, clippedLoss(t))
		switch words {
		case "":
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
		case "none":
			for _, e := range Explain(o) {
				require.NotContains(t, e.Hypothesis.Title, "by another bound: ")
			}
		default:
			requireName(t, o, "CLIP-BOUND", words)
		}
	}
}

// Old log-probs that are rolled along their rows bring those of the padding to the first token, as the dump has them.
func TestRolledOldLogProbs(t *testing.T) {
	b := unclipped()
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
	var sum, n float64
	for i := range b.Mask {
		b.Mask[i] = i%b.Cols < b.Cols-1-i/b.Cols%3
	}
	for i, in := range b.Mask {
		if r, col := i/b.Cols, i%b.Cols; in {
			x := math.Exp(lp[i] - old[r*b.Cols+(col+b.Cols-1)%b.Cols])
			sum, n = sum+math.Max(-adv[r]*x, -adv[r]*math.Max(0.8, math.Min(x, 1.28))), n+1
		}
	}
	delete(b.Tensors, "token_loss")
	b.Tensors["pg_loss"] = &dump.Tensor{Name: "pg_loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(sum / n))}, Type: format.F32}
	requireName(t, stage.Judge(stage.Find("aggregate/pg_loss"), b, clippedLoss(t)), "OLD-SHIFT", "logp_old is rolled: read one token late")
}
