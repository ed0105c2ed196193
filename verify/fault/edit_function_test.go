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

// A function of a number is told with the number's name in it.
func TestNamesOfFunctions(t *testing.T) {
	for of, want := range map[string]string{"max(x, 0)": "max(A, 0)", "x·|x|": "A·|A|", "min(max(x, −1), 1)": "min(max(A, −1), 1)"} {
		require.Equal(t, want, function{name: of}.of("A"))
	}
}

// A power of two is a loss scale in a loss only.
func TestFactorsOfPowersOfTwo(t *testing.T) {
	of := func(id string, k float64) string {
		ch := stage.Find(id)
		b := updated(func(float64, float64) float64 { return 0 })
		n := len(b.Mask)
		p := &stage.Prediction{Want: make([]float64, n), Bound: make([]float64, n)}
		got := make([]float64, n)
		for i := range got {
			p.Want[i] = 2 + float64(i%7)/10
			p.Bound[i], got[i] = 1e-6, p.Want[i]*k
		}
		p.Got = got
		c := stage.NewCase(b, &convention.Set{}, 0)
		found := newTrial(stage.Compare(ch, c, p, stage.Arithmetic{})).solved()
		require.Len(t, found, 1)
		return found[0].Factor
	}
	require.Contains(t, of("logp/entropy", 1./64), unnamed)
	require.Contains(t, of("token_loss/policy", 1./64), "loss scale")
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

// Advantages that are not whitened, of rewards that are, are what they are: there is nothing to leave out.
func TestRewardsAloneThatAreWhitened(t *testing.T) {
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, text := range map[string]string{"whiten.scope": "none", "rewards.whiten": "shift_mean_false", "rewards.whiten_scope": "same"} {
		set = set.With(name, parsed(name, text), "test")
	}
	_, _, ok := notWhitened(stage.NewCase(&dump.Batch{}, set, 0))
	require.False(t, ok)
}
