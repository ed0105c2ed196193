package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A KL that is added to the rewards, of whatever coefficient, needs no declaration to be wrong, where it is that of the policy from its reference.
func TestKLThatIsAddedToRewards(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p).With("kl.place", parsed("kl.place", "none"), "test")
	for _, by := range []float64{1, -1} { // of the dumped estimate: the other one is of the reference from the policy
		b := updated(func(float64, float64) float64 { return 0 })
		lp, old, score := b.Token("logp_new"), b.Token("logp_old"), make([]float64, b.Rows)
		ref, kl, r := make([]float64, len(lp)), make([]float64, len(lp)), make([]float64, len(lp))
		for i, x := range lp {
			ref[i] = float64(float32(x - 0.4))
			kl[i] = float64(float32(by * (old[i] - ref[i])))
			r[i] = float64(float32(0.03 * kl[i]))
			if (i+1)%b.Cols == 0 {
				score[i/b.Cols] = float64(i%5) - 1.5
				r[i] = float64(float32(0.03*kl[i] + score[i/b.Cols]))
			}
		}
		for name, x := range map[string][]float64{"kl": kl, "token_rewards": r, "logp_ref": ref} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: score, Type: format.F32}
		o := stage.Judge(stage.Find("reward/token"), b, set)
		if by < 0 {
			requireName(t, o, "EXTRA-TERM", "kl")
			continue
		}
		requireName(t, o, "KL-SIGN", "0.03 × kl is in it")
		require.False(t, Explain(o)[0].Hypothesis.Relative)
	}
}

// Rewards of tokens that have a function of the dumped KL are named by it.
func TestFunctionsOfTheKLOfRewards(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"kl.place": "token_reward", "kl.beta": "0.05", "kl.kind": "k1"} {
		set = set.With(name, parsed(name, x), "test")
	}
	for _, c := range []struct {
		id, words string
		of        func(x float64) float64
	}{
		{"", "", func(x float64) float64 { return x }},
		{"KL-CUT-OFF", "max(x, 0)", func(x float64) float64 { return max(x, 0) }},
		{"KL-FORMULA", "|x|", math.Abs},
		{"KL-FORMULA", "x²", func(x float64) float64 { return x * x }},
	} {
		b := updated(func(float64, float64) float64 { return 0 })
		lp, score := b.Token("logp_new"), make([]float64, b.Rows)
		kl, r := make([]float64, len(lp)), make([]float64, len(lp))
		for i, x := range lp {
			kl[i] = float64(float32(x + 1.5))
			r[i] = -0.05 * c.of(kl[i])
			if (i+1)%b.Cols == 0 {
				score[i/b.Cols] = float64(i%5) - 1.5
				r[i] += score[i/b.Cols]
			}
			r[i] = float64(float32(r[i]))
		}
		for name, x := range map[string][]float64{"kl": kl, "token_rewards": r} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: score, Type: format.F32}
		o := stage.Judge(stage.Find("reward/token"), b, set)
		if c.id == "" {
			require.Equal(t, check.Pass, o.Verdict)
			continue
		}
		requireName(t, o, c.id, c.words)
	}
}
