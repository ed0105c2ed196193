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

// Importance weights of a rollout of two steps that stand in other rows are named, with the order where there is one, and numbers of no row are not.
func TestOutputRows(t *testing.T) {
	const rows, cols = 16, 12
	set := weightSet(t, "tis.level", "token", "tis.rule", "truncate_upper", "tis.high", "1.2", "tis.low", "none")
	steps := func(from func(place, t int) int) (first, second *dump.Batch) {
		g := rand.New(rand.NewPCG(3, 4))
		old, gen := make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range old {
			old[i] = float64(float32(-1 - g.Float64()))
			gen[i] = float64(float32(old[i] + 0.3*g.NormFloat64()))
		}
		at := func(k int) int { return (k*5 + 2) % rows } // the place in the rollout of row k of the two steps
		length := func(place int) int {                   // some responses are masked out; weights outside the mask are 1
			if place%4 == 3 {
				return 0
			}
			return 8 + place%4
		}
		half := func(lo int) *dump.Batch {
			b := &dump.Batch{Rows: rows / 2, Cols: cols, Mask: make([]bool, rows/2*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows/2),
				Files: []dump.FileInfo{{Hi: rows / 2, Cols: cols, Step: 1 + lo/8}}}
			b.Meta.MicroBatches, b.Meta.WorldSize, b.Meta.Step = 1, 1, 1+lo/8
			x := map[string][]float64{"logp_old": nil, "logp_gen": nil, "is_weights": nil, "sample_id": nil}
			for k := lo; k < lo+rows/2; k++ {
				x["sample_id"] = append(x["sample_id"], float64(at(k)))
				for c := range cols {
					b.Mask[(k-lo)*cols+c] = c < length(at(k))
					i, j := at(k)*cols+c, from(at(k), c)*cols+c
					x["logp_old"], x["logp_gen"] = append(x["logp_old"], old[i]), append(x["logp_gen"], gen[i])
					w := 1.0
					if c < length(from(at(k), c)) {
						w = math.Min(math.Exp(old[j]-gen[j]), 1.2)
					}
					x["is_weights"] = append(x["is_weights"], float64(float32(w)))
				}
			}
			for name, data := range x {
				b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows / 2, cols}, Data: data, Type: format.F32}
			}
			b.Tensors["sample_id"].Layout, b.Tensors["sample_id"].Shape = dump.PerRow, []int{rows / 2}
			return b
		}
		return half(0), half(8)
	}
	judge := func(from func(place, t int) int) (*stage.Outcome, []Explanation) {
		first, second := steps(from)
		o := stage.Judge(stage.Find("ratio/is_weights"), first, set)
		return o, ExplainRows(o, func(int) []*dump.Batch { return []*dump.Batch{second} })
	}
	o, _ := judge(func(k, _ int) int { return k })
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	for words, from := range map[string]func(k, t int) int{
		"the rollout is in reversed order": func(k, _ int) int { return rows - 1 - k },
		"not permuted as the rest":         func(k, _ int) int { return (k*3 + 1) % rows },
	} {
		_, found := judge(from)
		require.NotEmpty(t, found, words)
		require.Equal(t, "IS-ROWS", found[0].Hypothesis.ID)
		require.Contains(t, found[0].Hypothesis.Title, words)
	}
	_, found := judge(func(k, t int) int { return (k + t) % rows }) // every token is of another row
	require.Empty(t, found)
}

// Returns that were not permuted with the rest of the rollout are named, those that are right, and numbers of no row, are not.
func TestReturnsOfOtherRows(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	for _, c := range []struct {
		from  func(r, t int) int
		fails bool
		id    string
	}{{func(r, _ int) int { return r }, false, ""}, {func(r, _ int) int { return (3*r + 1) % 8 }, true, "RETURNS-OF-OTHER-ROWS"}, {func(r, t int) int { return (r + t) % 8 }, true, ""}} {
		b := rolledOut(true, overHoles(passedBy, passedBy))
		right := slices.Clone(b.Token("returns"))
		for i := range right {
			r, col := i/b.Cols, i%b.Cols
			b.Token("returns")[i] = right[c.from(r, col)*b.Cols+col]
		}
		o := stage.Judge(stage.Find("gae/returns"), b, set)
		require.Equal(t, c.fails, o.Verdict == check.Fail)
		found := ExplainRows(o, func(int) []*dump.Batch { return nil })
		if require.Equal(t, c.id != "", len(found) > 0); c.id != "" {
			require.Equal(t, c.id, found[0].Hypothesis.ID)
		}
	}
}
