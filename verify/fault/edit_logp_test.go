package fault

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// ofLogits returns six responses of five tokens with their logits over eleven ids, and a tensor that a program makes of the logits of a token, its
// id, and the logits of its row for that id.
func ofLogits(output string, of func(x []float64, id int, positions []float64) float64) *dump.Batch {
	r := rand.New(rand.NewPCG(11, 12))
	const rows, cols, vocab = 6, 5, 11
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows),
		Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	logits, ids, y := make([]float64, rows*cols*vocab), make([]float64, rows*cols), make([]float64, rows*cols)
	for i := range logits {
		logits[i] = float64(float32(2 * r.NormFloat64()))
	}
	for i := range ids {
		b.Mask[i], ids[i] = true, float64(r.IntN(vocab))
	}
	for i, id := range ids {
		var positions []float64
		for t := range cols {
			positions = append(positions, logits[(i/cols*cols+t)*vocab+int(id)])
		}
		y[i] = float64(float32(of(logits[i*vocab:(i+1)*vocab], int(id), positions)))
	}
	b.Tensors["logits"] = &dump.Tensor{Name: "logits", Layout: dump.PerToken, Width: vocab, Shape: []int{rows, cols, vocab}, Data: logits, Type: format.F32}
	for name, x := range map[string][]float64{"response_ids": ids, output: y} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32}
	}
	return b
}

// Log-probs and entropies that are another function of their logits are named by it; the temperature by what was done with it.
func TestLogpEdits(t *testing.T) {
	const temperature = 0.7
	sum := func(x []float64, f func(v float64) float64) (s float64) {
		for _, v := range x {
			s += f(v)
		}
		return s
	}
	lse := func(x []float64, k float64) float64 {
		return math.Log(sum(x, func(v float64) float64 { return math.Exp(k * v) }))
	}
	entropy := func(x []float64, k float64) float64 {
		z := lse(x, k)
		return sum(x, func(v float64) float64 { return -math.Exp(k*v-z) * (k*v - z) })
	}
	sorted := func(x []float64) []float64 { return slices.Sorted(slices.Values(x)) }
	const k = 1 / temperature
	for _, output := range []string{"logp_new", "entropy"} {
		id := map[string]string{"logp_new": "logp/new", "entropy": "logp/entropy"}[output]
		p, _, err := convention.Lookup("trl-grpo@1.16")
		require.NoError(t, err)
		set := convention.FromProfile(p).With("logp.temperature", convention.NumberValue(temperature), "test").With("entropy.logits", parsed("entropy.logits", "scaled"), "test")
		judge := func(of func(x []float64, id int, positions []float64) float64) *stage.Outcome {
			return stage.Judge(stage.Find(id), ofLogits(output, of), set)
		}
		right := func(x []float64, id int, _ []float64) float64 { return k*x[id] - lse(x, k) }
		if output == "entropy" {
			right = func(x []float64, _ int, _ []float64) float64 { return entropy(x, k) }
		}
		require.Equal(t, check.Pass, judge(right).Verdict)
		for _, f := range []struct {
			output, id, words string
			of                func(x []float64, id int, positions []float64) float64
		}{
			{"logp_new", "LOGP-FORM", "no log-sum-exp", func(x []float64, id int, _ []float64) float64 { return k * x[id] }},
			{"logp_new", "LOGP-FORM", "twice the log-sum-exp", func(x []float64, id int, _ []float64) float64 { return k*x[id] - 2*lse(x, k) }},
			{"logp_new", "LOGP-FORM", "the positions of the row", func(x []float64, id int, positions []float64) float64 { return k*x[id] - lse(positions, k) }},
			{"logp_new", "LOGP-FORM", "the probability", func(x []float64, id int, _ []float64) float64 { return math.Exp(k*x[id] - lse(x, k)) }},
			{"logp_new", "LOGP-TEMPERATURE", "", func(x []float64, id int, _ []float64) float64 { return temperature*x[id] - lse(x, temperature) }},
			{"logp_new", "LOGP-TEMPERATURE", "afterwards", func(x []float64, id int, _ []float64) float64 { return k * (x[id] - lse(x, 1)) }},
			{"entropy", "ENTROPY-FORM", "of the token that was sampled", func(x []float64, id int, _ []float64) float64 { return lse(x, k) - k*x[id] }},
			{"entropy", "ENTROPY-FORM", "not the sum", func(x []float64, _ int, _ []float64) float64 { return entropy(x, k) / float64(len(x)) }},
			{"entropy", "ENTROPY-TEMPERATURE", "multiplied by the temperature", func(x []float64, _ int, _ []float64) float64 { return entropy(x, temperature) }},
			{"entropy", "ENTROPY-FORM", "its 4 largest logits", func(x []float64, _ int, _ []float64) float64 { return entropy(sorted(x)[7:], k) }},
			{"entropy", "ENTROPY-FORM", "its 5 likeliest tokens", func(x []float64, _ int, _ []float64) float64 {
				z := lse(x, k)
				return sum(sorted(x)[6:], func(v float64) float64 { return -math.Exp(k*v-z) * (k*v - z) })
			}},
			{"entropy", "ENTROPY-FORM", "−Σ p·ln q, q the softmax", func(x []float64, _ int, _ []float64) (h float64) {
				l := lse(x, k)
				p := mapped(x, func(v float64) float64 { return math.Exp(k*v - l) })
				for _, v := range p {
					h -= v * (v - lse(p, 1))
				}
				return h
			}},
			{"entropy", "ENTROPY-FORM", "−Σ q·ln q, q the softmax", func(x []float64, _ int, _ []float64) float64 {
				l := lse(x, k)
				return entropy(mapped(x, func(v float64) float64 { return math.Exp(k*v - l) }), 1)
			}},
			{"entropy", "ENTROPY-FORM", "perplexity", func(x []float64, _ int, _ []float64) float64 { return math.Exp(entropy(x, k)) }},
		} {
			if f.output == output {
				t.Run(output+" "+f.words, func(t *testing.T) { requireName(t, judge(f.of), f.id, f.words) })
			}
		}
		noise := rand.New(rand.NewPCG(1, 2))
		t.Run(output+" noise", func(t *testing.T) {
			requireNoName(t, judge(func([]float64, int, []float64) float64 { return -math.Abs(noise.NormFloat64()) }))
		})
	}
}

// Log-probs of the token before or behind that of their column are named as labels that were not shifted, or twice.
func TestLogpOfNeighbours(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	lse := func(x []float64) (s float64) {
		for _, v := range x {
			s += math.Exp(v)
		}
		return math.Log(s)
	}
	for _, f := range []struct {
		by int
		id string
	}{{-1, "LOGP-SAME-POSITION"}, {1, "LOGP-SHIFT"}} {
		b := ofLogits("logp_new", func(x []float64, id int, _ []float64) float64 { return x[id] - lse(x) })
		z, ids, y := b.Tensors["logits"], b.Token("response_ids"), b.Token("logp_new")
		for i := range y {
			id := 3 // of what stands before the first column and behind the last one
			if t := i%b.Cols + f.by; t >= 0 && t < b.Cols {
				id = int(ids[i+f.by])
			}
			x := z.Data[i*z.Width : (i+1)*z.Width]
			y[i] = float64(float32(x[id] - lse(x)))
		}
		requireName(t, stage.Judge(stage.Find("logp/new"), b, convention.FromProfile(p)), f.id, "labels are")
	}
}

// Log-probs that are those of the token before in a part of each row: from one column on, or behind what tools have said.
func TestPartsOfLogProbs(t *testing.T) {
	set := clippedLoss(t, "logp.temperature", "1")
	right := func(x []float64, id int) float64 {
		var s float64
		for _, v := range x {
			s += math.Exp(v)
		}
		return x[id] - math.Log(s)
	}
	of := func(moved func(r, col int) bool) *stage.Outcome {
		b := ofLogits("logp_new", func(x []float64, id int, _ []float64) float64 { return right(x, id) })
		z, ids := b.Tensors["logits"], b.Token("response_ids")
		y := make([]float64, len(ids))
		for i := range y {
			b.Mask[i] = i/b.Cols%2 == 0 || i%b.Cols != 2
			from := i
			if moved(i/b.Cols, i%b.Cols) {
				from = i - 1
			}
			y[i] = float64(float32(right(z.Data[from*z.Width:(from+1)*z.Width], int(ids[from]))))
		}
		b.Tensors["logp_new"].Data = y
		return stage.Judge(stage.Find("logp/new"), b, set)
	}
	require.Equal(t, check.Pass, of(func(_, _ int) bool { return false }).Verdict)
	requireName(t, of(func(_, col int) bool { return col >= 2 }), "LOGP-SHIFT-LATE", "from column 2 on the log-prob is that of the token before")
	requireName(t, of(func(r, col int) bool { return r%2 == 1 && col > 2 }), "LOGP-SHIFT-LATE", "not the policy's own")
	requireNoName(t, of(func(r, col int) bool { return r*7%3 == 1 && col > r%4 }))
}
