package fault

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A last token that bootstraps is named where masked columns behind it are steps, too.
func TestRecursionEndOverColumns(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-ppo@0.11")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none", "gae.hole": "zero_step"} {
		set = set.With(name, parsed(name, x), "test")
	}
	for words, end := range map[string]func(v []float64, last int) float64{
		"with its last value": func(v []float64, last int) float64 { return v[last] },
		"without γ":           func(v []float64, last int) float64 { return v[last] / testGamma },
		"of the first token":  func(v []float64, _ int) float64 { return v[0] },
		"":                    func([]float64, int) float64 { return 0 },
	} {
		b := rolledOut(true, func(r, v, m, _ []float64, _ float64) []float64 {
			a, gae := make([]float64, len(r)), 0.0
			last := slices.IndexFunc(m[6:], func(x float64) bool { return x == 0 }) + 5
			for t := len(r) - 1; t >= 0; t-- {
				next := 0.0
				if t == last {
					next = end(v, last)
				} else if t+1 < len(r) {
					next = v[t+1] * m[t+1]
				}
				gae = r[t] + testGamma*next - v[t]*m[t] + testGamma*testLambda*gae
				a[t] = gae
			}
			return a
		})
		o := stage.Judge(stage.Find("gae/returns"), b, set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict)
		} else {
			requireName(t, o, "GAE-TRUNCATED-BOOTSTRAP", words)
		}
	}
}

// Returns that are sums of rewards are named where the advantages are right; returns of advantages with another λ, too, are no such bug.
func TestReturnsOfRewards(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-ppo@0.11")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none", "gae.hole": "carry"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	next := func(b *dump.Batch, i, end int) float64 { // the value of the next token
		for i++; i < end; i++ {
			if b.Mask[i] {
				return b.Tensors["values"].Data[i]
			}
		}
		return 0
	}
	for words, step := range map[string]func(r, v, next, behind float64) float64{
		"undiscounted sums of the rewards to come": func(r, _, _, behind float64) float64 { return r + behind },
		"targets of one step without γ":            func(r, _, next, _ float64) float64 { return r + next },
	} {
		b := rolledOut(true, overHoles(passedBy, passedBy))
		require.Equal(t, check.Pass, stage.Judge(stage.Find("gae/returns"), b, set).Verdict)
		for row := range b.Rows {
			behind := 0.0
			for i := (row+1)*b.Cols - 1; i >= row*b.Cols; i-- {
				if b.Mask[i] {
					behind = step(b.Tensors["token_rewards"].Data[i], b.Tensors["values"].Data[i], next(b, i, (row+1)*b.Cols), behind)
					b.Tensors["returns"].Data[i] = float64(float32(behind))
				}
			}
		}
		requireName(t, stage.Judge(stage.Find("gae/returns"), b, set), "RETURNS-OF-REWARDS", words)
		b.Tensors["advantages"].Data[0]++
		for _, e := range Explain(stage.Judge(stage.Find("gae/returns"), b, set)) {
			require.NotEqual(t, "RETURNS-OF-REWARDS", e.Hypothesis.ID)
		}
	}
}

// Finished advantages that every mini-batch normalises again, and every micro-batch centres, are named by the parts that have a line of their own.
func TestLinesOfMiniBatches(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-ppo@0.11")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none", "gae.hole": "carry"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	for words, span := range map[string]int{"every mini-batch are": 4, "every micro-batch are": 2} {
		b := rolledOut(true, overHoles(passedBy, passedBy))
		b.Files = nil
		for k := range 4 {
			b.Files = append(b.Files, dump.FileInfo{Lo: 2 * k, Hi: 2*k + 2, Cols: b.Cols, Step: 1 + k/2, MicroBatch: k % 2})
			b.Origin[2*k].File, b.Origin[2*k+1].File = k, k
		}
		adv := b.Tensors["advantages"].Data
		for lo := 0; lo < b.Rows; lo += span {
			var cells []int
			for i := lo * b.Cols; i < (lo+span)*b.Cols; i++ {
				if b.Mask[i] {
					cells = append(cells, i)
				}
			}
			m, s := centreOf("mean", adv, cells, cells[0]), spreadOf("mad", adv, cells)
			for _, i := range cells {
				adv[i] = float64(float32((adv[i] - m) / s))
			}
		}
		o := stage.Judge(stage.Find("gae/advantage"), b, set)
		requireName(t, o, "ADV-NORMALISED-TWICE", words)
		requireName(t, o, "ADV-NORMALISED-TWICE", "centred once more")
		adv[6] += 1e-3
		requireNoName(t, stage.Judge(stage.Find("gae/advantage"), b, set))
	}
}
