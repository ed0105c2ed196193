package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Leave-one-out advantages of rewards whose KL is another estimate, or another number of a response than its sum, are told by that.
func TestKLOfResponsesInRewards(t *testing.T) {
	p, _, err := convention.Lookup("trl-rloo@1.16")
	require.NoError(t, err)
	const beta = 0.2
	set := convention.FromProfile(p).With("kl.beta", parsed("kl.beta", "0.2"), "test").With("reward.clip", parsed("reward.clip", "none"), "test").WithFact("num_generations", 4.0)
	of := func(row func(x []float64, tokens int) float64) *stage.Outcome {
		r := rand.New(rand.NewPCG(3, 9))
		b := rewarded(func([]float64, []int, int) float64 { return 0 })
		n := b.Rows * b.Cols
		old, ref, kl, reward := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, b.Rows)
		for i := range old {
			b.Mask[i] = i%b.Cols < 1+i/b.Cols%b.Cols
			old[i] = float64(float32(-1 - r.Float64()))
			ref[i] = float64(float32(old[i] + r.NormFloat64()))
			if b.Mask[i] {
				kl[i] = float64(float32(old[i] - ref[i]))
			}
		}
		for k := range reward {
			var x []float64
			for i := k * b.Cols; i < (k+1)*b.Cols; i++ {
				x = append(x, ref[i]-old[i])
			}
			reward[k] = b.Row("scores")[k] - beta*row(x, 1+k%b.Cols)
		}
		adv := b.Row("advantages")
		for k := range adv {
			var sum float64
			for j := k / 4 * 4; j < k/4*4+4; j++ {
				sum += reward[j]
			}
			adv[k] = float64(float32(reward[k] - (sum-reward[k])/3))
		}
		for name, x := range map[string][]float64{"logp_old": old, "logp_ref": ref, "kl": kl} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		return stage.Judge(stage.Find("advantage/group"), b, set)
	}
	sum := func(of func(x float64) float64) func(x []float64, tokens int) float64 {
		return func(x []float64, tokens int) float64 { return total(mapped(x[:tokens], of)) }
	}
	healthy := of(sum(func(x float64) float64 { return -x }))
	require.Equal(t, check.Pass, healthy.Verdict, healthy.Lacking())
	requireName(t, of(sum(func(x float64) float64 { return math.Expm1(x) - x })), "KL-FORMULA", "k3 = eˣ − x − 1")
	requireName(t, of(sum(math.Abs)), "KL-FORMULA", "|x|")
	requireName(t, of(func(x []float64, tokens int) float64 { return math.Abs(total(x[:tokens])) }), "KL-FORMULA", "the magnitude of the sum")
	requireName(t, of(func(x []float64, _ int) float64 { return -total(x) }), "KL-REWARD-PADS", "over all columns")
	requireName(t, of(func(x []float64, tokens int) float64 { return -total(x[:tokens/2]) }), "KL-FORMULA", "the first half of the tokens")
	requireName(t, of(func(x []float64, tokens int) (sum float64) {
		for i := range tokens {
			sum -= total(x[:i+1])
		}
		return sum
	}), "KL-FORMULA", "the sums up to each token")
	requireName(t, of(func(x []float64, tokens int) float64 {
		if tokens < len(x) {
			tokens--
		}
		return -total(x[:tokens])
	}), "KL-FORMULA", "their EOS is left out")
	noise := rand.New(rand.NewPCG(1, 1))
	requireNoName(t, of(func([]float64, int) float64 { return noise.NormFloat64() }))
}

// Advantages that were taken from the rows of a rollout before it was permuted are the right ones of other rows, several of one.
func TestAdvantagesOfAnyRows(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	of := func(from func(i int) int) *stage.Outcome {
		return stage.Judge(stage.Find("advantage/group"), rewarded(func(r []float64, _ []int, i int) float64 {
			j := from(i)
			g := r[j/4*4 : j/4*4+4]
			m := meanOf(g)
			return (r[j] - m) / (deviationOf(g, 1) + 1e-4)
		}), set)
	}
	own := func(i int) int { return i }
	require.Equal(t, check.Pass, of(own).Verdict)
	requireName(t, of(func(i int) int { return []int{9, 2, 9, 0, 15, 7, 7, 1, 3, 14, 10, 11, 5, 5, 6, 8}[i] }), "ADV-ROWS-OF-OTHERS", "right ones of other rows")
	requireNoName(t, of(func(i int) int { return []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 13, 14, 2}[i] })) // two numbers are no proof
}

// The token that ends responses is that at the end of all that do not fill their columns, and is unknown where these end in several.
func TestEndOfResponses(t *testing.T) {
	batch := func(ids ...float64) *dump.Batch {
		b := &dump.Batch{Rows: 3, Cols: 3, Mask: []bool{true, true, false, true, false, false, true, true, true}, Origin: make([]dump.Origin, 3), Files: []dump.FileInfo{{Hi: 3, Cols: 3}}}
		b.Tensors = map[string]*dump.Tensor{"response_ids": {Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{3, 3}, Data: ids, Type: format.I64}}
		return b
	}
	id, known := endOfResponses(batch(5, 7, 0, 7, 0, 0, 5, 5, 4))
	require.True(t, known)
	require.Equal(t, 7, id)
	_, known = endOfResponses(batch(5, 7, 0, 8, 0, 0, 5, 5, 4))
	require.False(t, known)
}
