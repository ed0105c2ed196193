package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Returns of values that stand one column late tell γ, λ and the coefficient of the KL, where the rewards were not dumped; those of the right values show nothing
// beside what they show anyway.
func TestValuesOfTheNextColumnShowTheRecursion(t *testing.T) {
	const rows, cols, gamma, lambda, beta = 12, 16, 0.98, 0.9, 0.05
	ch := stage.Find("gae/returns")
	for _, by := range []int{1, 0} {
		rng := rand.New(rand.NewPCG(3, 5))
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
		x := map[string][]float64{}
		for _, name := range []string{"values", "returns", "logp_old", "logp_ref"} {
			x[name] = make([]float64, rows*cols)
			b.Tensors[name] = &dump.Tensor{Name: name, Data: x[name], Width: 1, Layout: dump.PerToken, Shape: []int{rows, cols}, Type: format.F32}
		}
		score := make([]float64, rows)
		for r := range rows {
			score[r] = float64(float32(rng.NormFloat64()))
			n := r*cols + 6 + r%11
			for i := r * cols; i < n; i++ {
				b.Mask[i] = true
				x["values"][i], x["logp_ref"][i] = float64(float32(rng.NormFloat64())), -1
				x["logp_old"][i] = float64(float32(-1 - math.Abs(0.3*rng.NormFloat64())))
			}
			v := func(i int) float64 {
				if i+by < n {
					return x["values"][i+by]
				}
				return 0
			}
			next, reward := 0.0, score[r]
			for i := n - 1; i >= r*cols; i-- {
				next = reward - beta*(x["logp_old"][i]-x["logp_ref"][i]) + gamma*((1-lambda)*v(i+1)+lambda*next)
				if x["returns"][i], reward = float64(float32(next)), 0; i == r*cols {
					break
				}
			}
		}
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Data: score, Width: 1, Layout: dump.PerRow, Shape: []int{rows}, Type: format.F32}
		got := map[string]float64{}
		for _, changes := range valuesShown(ch, b, &convention.Set{}) {
			for _, c := range changes {
				if c.To.Kind() == convention.Number {
					got[c.Option] = c.To.Num()
				}
			}
		}
		want := map[string]float64{"gae.gamma": gamma, "gae.lambda": lambda, "kl.beta": beta}
		if by == 0 {
			want = map[string]float64{}
		}
		require.Equal(t, want, got)
	}
}

// A KL in rewards whose policy and reference are exchanged shows its coefficient, and is named under it.
func TestExchangedPoliciesShowTheCoefficient(t *testing.T) {
	const rows, cols, beta = 8, 12, 0.05
	rng := rand.New(rand.NewPCG(1, 9))
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	x := map[string][]float64{}
	for _, name := range []string{"token_rewards", "logp_old", "logp_ref"} {
		x[name] = make([]float64, rows*cols)
		b.Tensors[name] = &dump.Tensor{Name: name, Data: x[name], Width: 1, Layout: dump.PerToken, Shape: []int{rows, cols}, Type: format.F32}
	}
	score := make([]float64, rows)
	for i := range b.Mask {
		b.Mask[i] = true
		x["logp_ref"][i], x["logp_old"][i] = -2, float64(float32(-2+0.4*rng.NormFloat64()))
		d := x["logp_old"][i] - x["logp_ref"][i]
		if x["token_rewards"][i] = float64(float32(-beta * (math.Exp(d) - 1 - d))); i%cols == cols-1 {
			score[i/cols] = float64(float32(rng.NormFloat64()))
			x["token_rewards"][i] = float64(float32(x["token_rewards"][i] + score[i/cols]))
		}
	}
	b.Tensors["scores"] = &dump.Tensor{Name: "scores", Data: score, Width: 1, Layout: dump.PerRow, Shape: []int{rows}, Type: format.F32}
	set := &convention.Set{}
	for name, text := range map[string]string{"score.index": "last_response", "eos.rule": "none", "reward.clip": "none", "rewards.whiten": "no", "kl.clamp_in": "none", "kl.clamp_out": "none"} {
		set = set.With(name, parsed(name, text), "test")
	}
	for _, c := range policiesShown(stage.Find("reward/token"), b, set)[0] {
		set = set.With(c.Option, c.To, "search")
	}
	require.Equal(t, "k3 0.05", set.Value("kl.kind").String()+" "+set.Value("kl.beta").String())
	require.Contains(t, texts(Explain(stage.Judge(stage.Find("reward/token"), b, set))), "KL-REVERSED")
}

func texts(list []Explanation) (ids []string) {
	for _, e := range list {
		ids = append(ids, e.Hypothesis.ID)
	}
	return ids
}
