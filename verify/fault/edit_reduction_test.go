package fault

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// The mean over responses of means over their tokens, with a length that is no length of the response: it is named by what it is divided by.
func TestReductionEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"agg.kind": "seq_mean_token_mean", "agg.denominator": "micro", "agg.div_ga": "false", "kl.beta": "0", "mean.eps": "0"} {
		set = set.With(name, parsed(name, x), "test")
	}
	mean := func(length func(n float64) float64) func(x []float64, mask []bool, rows, cols int) float64 {
		return func(x []float64, mask []bool, rows, cols int) (all float64) {
			for r := range rows {
				var sum, n float64
				for i := r * cols; i < (r+1)*cols; i++ {
					if mask[i] {
						sum, n = sum+x[i], n+1
					}
				}
				all += sum / length(n) / float64(rows)
			}
			return all
		}
	}
	c := stage.Find("aggregate/pg_loss")
	require.Equal(t, check.Pass, stage.Judge(c, summed(mean(func(n float64) float64 { return n })), set).Verdict)
	for words, length := range map[string]func(n float64) float64{
		"every response is divided by its tokens, at least 4, not by its own tokens": func(n float64) float64 { return max(n, 4) },
		"every response is divided by its tokens, at most 4, not by its own tokens":  func(n float64) float64 { return min(n, 4) },
		"every response is divided by √ of its tokens, not by its own tokens":        math.Sqrt,
		"every response is divided by its tokens + 1, not by its own tokens":         func(n float64) float64 { return n + 1 },
	} {
		t.Run(words, func(t *testing.T) {
			b := summed(mean(length))
			b.Meta.DLogpScale = 1 // the weights of rows are those of the gradient
			o := stage.Judge(c, b, set)
			require.Equal(t, check.Fail, o.Verdict)
			var titles []string
			for _, e := range reductionEdits(o) {
				h := described(&Hypothesis{ID: e.id, Title: e.title, Checks: []string{c.ID}, Predict: e.predict})[0]
				if x, ok := newTrial(o).try(h, "", h.judge); ok && !x.Lead && e.changes == 1 {
					titles = append(titles, e.title)
					require.Equal(t, strings.Contains(words, "√"), e.foreign, "a root is of no configuration")
				}
			}
			require.Equal(t, []string{words}, slices.Compact(titles)) // what is not replaced has several names that are equal here
		})
	}
}

// A constant that responses are divided by is a number of the batch.
func TestConstantOfBatch(t *testing.T) {
	set := clippedLoss(t, "agg.kind", "seq_sum_const", "agg.div_batch", "true", "mean.eps", "0").WithFact("loss_denominator", 40.0)
	judged := func(length func(longest, width float64) float64) *stage.Outcome {
		b := summed(func(x []float64, mask []bool, rows, cols int) (sum float64) {
			longest := 0.0
			for r := range rows {
				n := 0.0
				for i := r * cols; i < (r+1)*cols; i++ {
					if mask[i] {
						sum, n = sum+x[i], n+1
					}
				}
				longest = max(longest, n)
			}
			return sum / float64(rows) / length(longest, float64(cols))
		})
		b.Meta.DLogpScale = 1
		wide := b.Cols + 17
		b.Tensors["input_ids"] = &dump.Tensor{Name: "input_ids", Layout: dump.PerRow, Width: wide, Shape: []int{b.Rows, wide}, Data: make([]float64, b.Rows*wide), Type: format.I64}
		return stage.Judge(stage.Find("aggregate/pg_loss"), b, set)
	}
	require.Equal(t, check.Pass, judged(func(_, _ float64) float64 { return 40 }).Verdict)
	whole := Explain(judged(func(_, width float64) float64 { return width + 17 }))
	require.NotEmpty(t, whole)
	require.Contains(t, whole[0].Factor, "loss_denominator/(columns of prompt and response)")
	requireName(t, judged(func(longest, _ float64) float64 { return longest - 1 }), "AGG-CONSTANT-OF-BATCH", "without its last token, not by loss_denominator")
}

// A mask that loses its last token, or its first, where it says which responses have any, leaves out those of a single token and counts them.
func TestSingleTokens(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"agg.kind": "seq_mean_token_mean", "agg.denominator": "micro", "agg.div_ga": "false", "kl.beta": "0", "mean.eps": "0"} {
		set = set.With(name, parsed(name, x), "test")
	}
	step := func(least float64) *stage.Outcome {
		b := summed(func([]float64, []bool, int, int) float64 { return 0 })
		for _, r := range []int{1, 5} {
			for i := r*b.Cols + 1; i < (r+1)*b.Cols; i++ {
				b.Mask[i] = false
			}
		}
		x, n := b.Tensors["token_loss"].Data, tokensOf(b, b.Mask)
		var loss float64
		for i, m := range b.Mask {
			if r := i / b.Cols; m && n[r] >= least {
				loss += x[i] / n[r] / float64(b.Rows)
			}
		}
		b.Tensors["pg_loss"].Data = []float64{float64(float32(loss))}
		b.Meta.DLogpScale = 1
		return stage.Judge(stage.Find("aggregate/pg_loss"), b, set)
	}
	require.Equal(t, check.Pass, step(1).Verdict)
	o := step(2)
	require.Equal(t, check.Fail, o.Verdict)
	var titles []string
	for _, e := range reductionEdits(o) {
		h := described(&Hypothesis{ID: e.id, Title: e.title, Checks: []string{o.Check.ID}, Predict: e.predict})[0]
		if x, ok := newTrial(o).try(h, "", h.judge); ok && !x.Lead && e.changes == 1 {
			require.Equal(t, "LOSS-MASK-OTHER", e.id)
			titles = append(titles, e.title)
		}
	}
	require.Equal(t, []string{"responses of a single token have no loss, and are counted"}, slices.Compact(titles))
}

// A token mean in which long responses count by their length once more is named by that, with the right denominator or with its own.
func TestLengthsAsWeights(t *testing.T) {
	set := clippedLoss(t, "mean.eps", "0")
	c := stage.Find("aggregate/pg_loss")
	judge := func(weight func(n float64) float64, over func(lengths []float64) float64) *stage.Outcome {
		b := summed(func(x []float64, mask []bool, rows, cols int) (sum float64) {
			n := make([]float64, rows)
			for i, m := range mask {
				if m {
					n[i/cols]++
				}
			}
			for i, m := range mask {
				if m {
					sum += weight(n[i/cols]) * x[i] / over(n)
				}
			}
			return sum
		})
		b.Meta.DLogpScale = 1
		return stage.Judge(c, b, set)
	}
	tokens := func(n []float64) (s float64) {
		for _, v := range n {
			s += v
		}
		return s
	}
	squares := func(n []float64) (s float64) {
		for _, v := range n {
			s += v * v
		}
		return s
	}
	require.Equal(t, check.Pass, judge(func(float64) float64 { return 1 }, tokens).Verdict)
	requireName(t, judge(func(n float64) float64 { return n }, tokens), "FACTOR", "multiplied by its own tokens besides")
	requireName(t, judge(func(n float64) float64 { return n }, squares), "AGG-DENOMINATOR", "the squares of the lengths")
	requireName(t, judge(func(float64) float64 { return 1 }, func(n []float64) float64 { return tokens(n) + 1 }), "AGG-DENOMINATOR", "the tokens of the micro-batch + 1")
}

// A loss that was dumped without its tokens' is explained by what its reduction makes of those that are recomputed.
func TestReductionsOfLossesThatWereNotDumped(t *testing.T) {
	set := clippedLoss(t, "mean.eps", "0", "entropy.coef", "0", "kl.kind", "k3", "kl.beta", "0.1", "kl.place", "loss", "kl.grad", "naive", "kl.clamp_in", "none", "kl.clamp_out", "none")
	type step struct {
		policy, kl []float64
		mask       []bool
		rows, cols int
	}
	held := false // the token losses of the dump hold the KL
	judge := func(of func(s step) float64) *stage.Outcome {
		b := updated(func(d, a float64) float64 { return -min(math.Exp(d)*a, max(0.8, min(math.Exp(d), 1.28))*a) })
		for i := range b.Mask {
			b.Mask[i] = i%b.Cols < b.Cols-1-i/b.Cols%3
		}
		r := rand.New(rand.NewPCG(3, 5))
		s := step{policy: b.Token("token_loss"), mask: b.Mask, rows: b.Rows, cols: b.Cols}
		lp, ref := b.Token("logp_new"), make([]float64, len(b.Mask))
		for i, x := range lp {
			ref[i] = float64(float32(x + 0.6*r.NormFloat64()))
			s.kl = append(s.kl, math.Exp(ref[i]-x)-(ref[i]-x)-1)
		}
		t := *b.Tensors["logp_new"]
		t.Name, t.Data = "logp_ref", ref
		b.Tensors["logp_ref"] = &t
		groups := make([]float64, b.Rows)
		for row := range groups {
			groups[row] = float64(min(row/2, 2)) // two groups of two rows, and one of the rest
		}
		b.Tensors["group_id"] = &dump.Tensor{Name: "group_id", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: groups, Type: format.F32}
		b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(of(s)))}, Type: format.F32}
		if b.Meta.DLogpScale = 1; held {
			kl := *b.Tensors["logp_new"]
			kl.Name, kl.Data = "kl", mapped(s.kl, func(x float64) float64 { return float64(float32(x)) })
			b.Tensors["kl"], b.Meta.TokenLossIncludesKL = &kl, &held
			for i := range s.policy {
				s.policy[i] = float64(float32(s.policy[i] + 0.1*kl.Data[i]))
			}
		} else {
			delete(b.Tensors, "token_loss")
		}
		return stage.Judge(stage.Find("aggregate/loss"), b, set)
	}
	mean := func(s step, x func(i int) float64, in func(i int) bool) float64 {
		var sum, n float64
		for i, m := range s.mask {
			if m && in(i) {
				sum, n = sum+x(i), n+1
			}
		}
		return sum / max(n, 1)
	}
	all := func(int) bool { return true }
	whole := func(s step) func(i int) float64 { return func(i int) float64 { return s.policy[i] + 0.1*s.kl[i] } }
	right := func(s step) float64 { return mean(s, whole(s), all) }
	require.Equal(t, check.Pass, judge(right).Verdict)
	requireName(t, judge(func(s step) (sum float64) {
		for col := range s.cols {
			sum += mean(s, whole(s), func(i int) bool { return i%s.cols == col }) / float64(s.cols)
		}
		return sum
	}), "AGG-KIND", "the responses of each column")
	requireName(t, judge(func(s step) (sum float64) {
		for g := range 3 {
			sum += mean(s, whole(s), func(i int) bool { return min(i/s.cols/2, 2) == g }) / 3
		}
		return sum
	}), "AGG-KIND", "the number of groups times the tokens of its own")
	for _, held = range []bool{true, false} {
		require.Equal(t, check.Pass, judge(right).Verdict)
		requireName(t, judge(func(s step) (sum float64) {
			for i := range s.kl {
				sum += 0.1 * s.kl[i] / float64(len(s.kl))
			}
			return sum + mean(s, func(i int) float64 { return s.policy[i] }, all)
		}), "KL-OUTSIDE-MASK", "padding included")
	}
	requireName(t, judge(func(s step) float64 {
		n := make([]float64, s.rows)
		for i, m := range s.mask {
			if m {
				n[i/s.cols]++
			}
		}
		return mean(s, func(i int) float64 { return s.policy[i]/n[i/s.cols] + 0.1*s.kl[i] }, all)
	}), "AGG-KIND", "the policy term is reduced in its own way: every response is divided by its own tokens besides")
}

// Of choices that are one number, parts that people write are told before those that are off by one, squares and inverses.
func TestOddParts(t *testing.T) {
	part := func(names ...string) (list []part) {
		for _, name := range names {
			list = append(list, part{what: name})
		}
		return list
	}
	p := reductionParts{keep: part(""), length: part("1", "the padded width of its micro-batch", "its tokens − 1"), count: part("1", "the rows of the micro-batch", "the rows of the micro-batch − 1"),
		factor: part("1", "1/the accumulation steps", "1/(the rows of the micro-batch)", "the square of the rows of the step, as if")}
	declared := choice{count: 1, factor: 1}
	for odd, list := range [][]choice{{{length: 1, factor: 1}, {count: 1}}, {{count: 2, factor: 1}, {length: 2, count: 1, factor: 1}, {count: 1, factor: 2}}, {{count: 2, factor: 2}, {length: 2, factor: 3}}} {
		for _, at := range list {
			require.Equal(t, odd, p.odd(declared, at), at)
		}
	}
	require.Zero(t, p.odd(choice{factor: 2}, choice{factor: 2}), "what is declared is not odd")
}
