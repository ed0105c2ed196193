package fault

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// summed returns a step of rows with padding whose loss a program makes of its token losses and its mask.
func summed(loss func(x []float64, mask []bool, rows, cols int) float64) *dump.Batch {
	b := updated(func(d, a float64) float64 { return d - a })
	for r := range b.Rows {
		for t := b.Cols - 1 - r%3; t < b.Cols; t++ {
			b.Mask[r*b.Cols+t] = false
		}
	}
	delete(b.Tensors, "logp_old")
	value := float64(float32(loss(b.Tensors["token_loss"].Data, b.Mask, b.Rows, b.Cols)))
	b.Tensors["pg_loss"] = &dump.Tensor{Name: "pg_loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{value}, Type: format.F32}
	return b
}

// Advantages stand for the mask of a token mean alone: under another mean, or one that nobody knows, there is no such loss.
func TestAdvantagesForTheMask(t *testing.T) {
	b := summed(func(x []float64, mask []bool, _, _ int) float64 { return x[0] })
	set := clippedLoss(t)
	for _, ch := range []string{"aggregate/loss", "aggregate/pg_loss", "gradient/dlogp", "token_loss/policy"} {
		for _, kind := range []convention.Value{{}, parsed("agg.kind", "seq_mean_token_mean")} {
			require.Nil(t, overAdvantages(stage.NewCase(b, set.With("agg.kind", kind, "test"), 0), stage.Find(ch)))
		}
	}
	require.NotNil(t, overAdvantages(stage.NewCase(b, set, 0), stage.Find("aggregate/pg_loss")))
}

// What tools wrote is masked a column late or early, the ends of the responses are right.
func TestHolesOfTheMask(t *testing.T) {
	set := clippedLoss(t, "mean.eps", "0")
	judged := func(by int) *stage.Outcome {
		return stage.Judge(stage.Find("aggregate/pg_loss"), summed(func(x []float64, mask []bool, rows, cols int) (sum float64) {
			n := 0.0
			for r := range rows {
				row := mask[r*cols : (r+1)*cols]
				row[1] = r%4 == 3
				moved := slices.Clone(row)
				moveHoles(by)(moved)
				for i, m := range moved {
					if m {
						sum, n = sum+x[r*cols+i], n+1
					}
				}
			}
			return sum / n
		}), set)
	}
	require.Equal(t, check.Pass, judged(0).Verdict)
	requireName(t, judged(1), "LOSS-MASK-SHIFT", "the holes of the mask are one token late")
}

// A token mean whose mask is another one, in the sum, in the count or in both, is named by the mask.
func TestMaskEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": "false", "kl.beta": "0", "mean.eps": "0"} {
		set = set.With(name, parsed(name, x), "test")
	}
	mean := func(above, below func(mask []bool, r, t, cols int) bool) func(x []float64, mask []bool, rows, cols int) float64 {
		return func(x []float64, mask []bool, rows, cols int) float64 {
			var sum, n float64
			for i, v := range x {
				r, t := i/cols, i%cols
				if above(mask, r, t, cols) {
					sum += v
				}
				if below(mask, r, t, cols) {
					n++
				}
			}
			return sum / n
		}
	}
	right := func(m []bool, r, t, cols int) bool { return m[r*cols+t] }
	inverted := func(m []bool, r, t, cols int) bool { return !m[r*cols+t] }
	twoLate := func(m []bool, r, t, cols int) bool { return t > 1 && m[r*cols+t-2] }
	late := func(m []bool, r, t, cols int) bool { return t > 0 && m[r*cols+t] && m[r*cols+t-1] }
	c := stage.Find("aggregate/pg_loss")
	require.Equal(t, check.Pass, stage.Judge(c, summed(mean(right, right)), set).Verdict)
	for _, f := range []struct {
		id, words    string
		above, below func(m []bool, r, t, cols int) bool
	}{
		{"LOSS-MASK-PADS", "in the sum alone another mask: the mask is inverted", inverted, right},
		{"LOSS-MASK-PADS", "in sum and count another mask: the mask is inverted", inverted, inverted},
		{"LOSS-MASK-SHIFT", "two tokens late", twoLate, right},
		{"LOSS-MASK-SHIFT", "must both hold", late, right},
	} {
		t.Run(f.words, func(t *testing.T) {
			o := stage.Judge(c, summed(mean(f.above, f.below)), set)
			require.Equal(t, check.Fail, o.Verdict)
			named := false
			for _, e := range maskEdits(o) { // the catalogue has some of them, the edits must have them all
				h := described(&Hypothesis{ID: e.id, Title: e.title, Checks: []string{c.ID}, Predict: e.predict})[0]
				x, ok := newTrial(o).try(h, "", h.judge)
				if fits := ok && !x.Lead; fits && e.id == f.id {
					named = true
				} else if fits {
					require.NotContains(t, e.title, "the mask is inverted", "of another mask")
				}
			}
			require.True(t, named)
		})
	}
}

// Tokens of tools that are counted, and have no loss, are told by the ids: what is in front of the padding.
func TestToolTokensCounted(t *testing.T) {
	set := clippedLoss(t, "agg.denominator", "micro", "mean.eps", "0")
	ofTool := func(i int) bool { return i%6 == 2 && i/6%2 == 0 || i%6 == 3 && i/6 == 2 } // of rows of 6 tokens
	b := summed(func(x []float64, mask []bool, rows, cols int) float64 {
		var sum, n float64
		for i, v := range x {
			if mask[i] && !ofTool(i) {
				sum += v
			}
			if mask[i] {
				n++
			}
		}
		return sum / n
	})
	ids := make([]float64, len(b.Mask))
	for i, m := range b.Mask {
		if m {
			ids[i] = float64(5 + i%3)
		}
		b.Mask[i] = m && !ofTool(i)
	}
	b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: ids, Type: format.I64}
	requireName(t, stage.Judge(stage.Find("aggregate/pg_loss"), b, set), "AGG-COUNTS-MASKED", "by the ids")
}

// One of several terms of a loss has another mask than the rest: the entropies of what tools wrote are in the bonus.
func TestMaskOfOneTerm(t *testing.T) {
	set := clippedLoss(t, "agg.denominator", "micro", "mean.eps", "0", "kl.beta", "0.1", "kl.kind", "k3", "kl.place", "loss", "kl.grad", "naive", "kl.agg", "same", "entropy.coef", "0.02",
		"entropy.agg", "same", "kl.under_is_weight", "outside", "tis.level", "none")
	for _, tools := range []bool{false, true} {
		b := estimatedBy(func(x float64) float64 { return math.Exp(x) - x - 1 })
		h, policy, seen := make([]float64, len(b.Mask)), make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
		var sum, bonus, n, shown float64
		for i := range b.Mask {
			h[i], policy[i] = float64(float32(2+math.Sin(float64(3*i)))), float64(float32(math.Cos(float64(7*i))))
			if i%b.Cols == 0 && i/b.Cols%2 == 1 { // a tool's token in front of a response, which only attention shows
				b.Mask[i] = false
			}
			if seen[i] = 1; i%b.Cols == b.Cols-1 {
				b.Mask[i], seen[i] = false, 0
			}
			if b.Mask[i] {
				sum, n = sum+policy[i]+0.1*b.Token("kl")[i], n+1
			}
			if b.Mask[i] || tools && seen[i] != 0 {
				bonus, shown = bonus+h[i], shown+1
			}
		}
		no := false
		b.Meta.TokenLossIncludesKL = &no
		for name, x := range map[string][]float64{"entropy": h, "token_loss": policy} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		b.Tensors["attention_mask"] = &dump.Tensor{Name: "attention_mask", Layout: dump.PerRow, Width: b.Cols, Shape: []int{b.Rows, b.Cols}, Data: seen, Type: format.I64}
		b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(sum/n - 0.02*bonus/shown))}, Type: format.F32}
		o := stage.Judge(stage.Find("aggregate/loss"), b, set)
		if !tools {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireName(t, o, "LOSS-MASK-TOOL", "of the entropy term alone in sum and count another mask: every token that attention shows")
	}
}

// A mask of no token explains no gradient that is 0.
func TestMaskOfNoToken(t *testing.T) {
	b := updated(func(float64, float64) float64 { return 0 })
	for i := range b.Mask {
		b.Mask[i] = true
	}
	inverted := mask(func(row []bool) {
		for t := range row {
			row[t] = !row[t]
		}
	})
	_, _, ok := inverted(stage.NewCase(b, &convention.Set{}, 0))
	require.False(t, ok)
	b.Mask[1] = false
	_, _, ok = inverted(stage.NewCase(b, &convention.Set{}, 0))
	require.True(t, ok)
}
