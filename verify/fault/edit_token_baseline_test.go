package fault

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// The optimal token baseline of four groups of three responses, of which one or two are the longest: each part of its formula that is another is named.
func TestTokenBaselines(t *testing.T) {
	const rows, cols = 12, 6
	p, _, err := convention.Lookup("verl-grpo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"adv.kind": "optimal_token_baseline", "kl.place": "none", "whiten.scope": "none", "tis.level": "token", "adv.group_by": "uid"} {
		set = set.With(name, parsed(name, x), "test")
	}
	length := func(r int) int { return []int{6, 3, 4, 2, 5, 2, 6, 6, 3, 1, 2, 6}[r] }
	type form struct {
		score func(pi, squares, w float64) float64
		ended bool
		tail  int
	}
	right := func(pi, squares, w float64) float64 { return (1 - 2*pi + squares) * w * w }
	judge := func(f form) *stage.Outcome {
		r := rand.New(rand.NewPCG(3, 4))
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
		b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
		put := func(name string, of func(i int) float64) []float64 {
			x := make([]float64, len(b.Mask))
			for i := range x {
				x[i] = float64(float32(of(i)))
			}
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32}
			return x
		}
		for i := range b.Mask {
			b.Mask[i] = i%cols < length(i/cols)
		}
		old := put("logp_old", func(int) float64 { return -3 * r.Float64() })
		squares := put("sum_pi_squared", func(i int) float64 { return math.Exp(2*old[i]) + 0.02 + 0.2*r.Float64() })
		weights := put("is_weights", func(int) float64 { return 0.5 + 0.6*r.Float64() })
		reward := put("token_rewards", func(int) float64 { return r.NormFloat64() })
		id := make([]float64, rows)
		for i := range id {
			id[i] = float64(i / 3)
		}
		b.Tensors["group_id"] = &dump.Tensor{Name: "group_id", Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: id, Type: format.I64}
		norm, togo := make([]float64, len(old)), make([]float64, len(old))
		for i := range norm {
			if i%cols > 0 {
				norm[i] = norm[i-1]
			}
			if b.Mask[i] {
				norm[i] += f.score(math.Exp(old[i]), squares[i], weights[i])
			}
			if k := len(norm) - 1 - i; b.Mask[k] {
				togo[k] = reward[k]
				if k%cols+1 < length(k/cols) {
					togo[k] += togo[k+1]
				}
			}
		}
		put("advantages", func(i int) float64 {
			if !b.Mask[i] {
				return 0
			}
			g, t := i/cols/3*3, i%cols
			second, most := 0, 0
			for k := g; k < g+3; k++ {
				if l := length(k); l > most {
					most, second = l, most
				} else if l > second {
					second = l
				}
			}
			if length(i/cols) == most && most > second && t >= second+f.tail {
				return togo[i]
			}
			var sum, total float64
			for k := g; k < g+3; k++ {
				j := k*cols + t
				if b.Mask[j] {
					sum += norm[j] * togo[j]
				}
				if b.Mask[j] || f.ended {
					total += norm[j]
				}
			}
			return togo[i] - sum/(total+1e-8)
		})
		return stage.Judge(stage.Find("advantage/return"), b, set)
	}
	healthy := judge(form{score: right})
	require.Equal(t, check.Pass, healthy.Verdict, healthy.Lacking())
	for words, f := range map[string]form{
		"is 1 − π + Σπ²":                       {score: func(pi, squares, w float64) float64 { return (1 - pi + squares) * w * w }},
		"is 1 − 2π,":                           {score: func(pi, _, w float64) float64 { return (1 - 2*pi) * w * w }},
		"multiplied by the importance weight,": {score: func(pi, squares, w float64) float64 { return (1 - 2*pi + squares) * w }},
		"not multiplied by the square":         {score: func(pi, squares, _ float64) float64 { return 1 - 2*pi + squares }},
		"have ended still count":               {score: right, ended: true},
		"from one token behind the second":     {score: right, tail: 1},
		"from the last token of the second":    {score: right, tail: -1},
		"has itself for its baseline":          {score: right, tail: cols},
	} {
		t.Run(words, func(t *testing.T) {
			o := judge(f)
			requireName(t, o, "ADV-CENTER", words)
			legal := strings.HasPrefix(words, "not multiplied") || strings.HasPrefix(words, "has itself") // without a correction, and handle_zero_tail=False
			require.Equal(t, legal, Explain(o)[0].Hypothesis.Relative, "one program has this baseline, and no option of it these")
		})
	}
	noise := rand.New(rand.NewPCG(1, 2))
	requireNoName(t, judge(form{score: func(float64, float64, float64) float64 { return noise.Float64() }}))
}
