package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// The baseline of OPO is the mean of the scores of a group by length; one with other weights, or another divisor, is named by them.
func TestBaselinesByLength(t *testing.T) {
	p, _, err := convention.Lookup("verl-grpo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"adv.kind": "opo", "kl.place": "none", "whiten.scope": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	length := func(i int) float64 { return float64(1 + i%3) }
	beta := 0.0
	held := func(r []float64, i int) float64 { return r[i] - beta*length(i)*float64(i%5) } // every token has the KL i mod 5
	of := func(weight func(n float64) float64, divisor func(tokens float64) float64) *stage.Outcome {
		b := rewarded(func(r []float64, group []int, i int) float64 {
			var sum, tokens float64
			for _, j := range group {
				sum, tokens = sum+weight(length(j))*held(r, j), tokens+weight(length(j))
			}
			return held(r, i) - sum/divisor(tokens)
		})
		if beta != 0 {
			kl := make([]float64, len(b.Mask))
			for i := range kl {
				kl[i] = float64(i / b.Cols % 5)
			}
			b.Tensors["kl"] = &dump.Tensor{Name: "kl", Data: kl, Width: 1, Layout: dump.PerToken, Shape: []int{b.Rows, b.Cols}, Type: format.F32}
		}
		for i := range b.Mask {
			b.Mask[i] = float64(i%b.Cols) < length(i/b.Cols)
		}
		return stage.Judge(stage.Find("advantage/group"), b, set)
	}
	own, same := func(n float64) float64 { return n }, func(x float64) float64 { return x }
	healthy := of(own, same)
	require.Equal(t, check.Pass, healthy.Verdict, healthy.Lacking())
	requireName(t, of(func(n float64) float64 { return 1 / n }, same), "ADV-CENTER", "the inverse of the length")
	requireName(t, of(own, func(tokens float64) float64 { return 4 * tokens }), "ADV-CENTER", "the tokens of the group times its rows")

	beta = 0.125 // whose product with the KL is exact
	set = set.With("kl.place", parsed("kl.place", "token_reward"), "test").With("kl.beta", parsed("kl.beta", "0.125"), "test")
	healthy = of(own, same)
	require.Equal(t, check.Pass, healthy.Verdict, healthy.Lacking())
	requireName(t, of(func(n float64) float64 { return 1 / n }, same), "ADV-CENTER", "the inverse of the length")
}

// Group ids that are off by one row give every row the group of its neighbour.
func TestGroupsOffByOneRow(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	o := stage.Judge(stage.Find("advantage/group"), rewarded(func(r []float64, _ []int, i int) float64 {
		first := (i + 15) % 16 / 4 * 4 // the group of the row before, moved behind by one row with its ids
		var rows []float64
		for j := first; j < first+4; j++ {
			rows = append(rows, r[(j+1)%16])
		}
		return (r[i] - meanOf(rows)) / (deviationOf(rows, 1) + 1e-4)
	}), set)
	requireName(t, o, "ADV-WRONG-GROUPS", "off by one row")
}
