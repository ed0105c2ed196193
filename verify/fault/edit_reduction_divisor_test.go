package fault_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
)

// A sum over the tokens of a step that is divided by another whole number has that number, one of prompts and responses its name; a factor that
// makes no whole number is a factor.
func TestOtherDivisors(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := trainer.Complete(p, rand.New(rand.NewPCG(2, 7)))
	for option, value := range map[string]string{"agg.kind": "token", "agg.denominator": "global", "agg.div_ga": "false", "loss.kind": "ppo", "entropy.coef": "0", "kl.place": "none"} {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 32, Cols: 12, Files: 2, Seed: 2})
	tokens, both, first := 0.0, 0.0, 0.0
	for i, m := range b.Mask {
		if m {
			tokens++
		}
		if m && i/b.Cols < b.Files[0].Hi {
			first++
		}
	}
	require.Equal(t, b.Files[0].Rank, b.Files[1].Rank)
	b = b.Without("prompt_len")
	mask := b.Tensors["attention_mask"]
	require.NotNil(t, mask)
	for _, x := range mask.Data {
		both += x
	}
	right := append([]float64(nil), b.Token("dlogp")...)
	for i, x := range right {
		b.Token("dlogp")[i] = float64(float32(x * tokens / first))
	}
	require.Contains(t, fault.Explain(stage.Judge(stage.Find("gradient/dlogp"), b, set))[0].Hypothesis.Title, "the tokens of the first micro-batch of the rank")
	for _, c := range []struct {
		divisor   float64
		id, words string
	}{{tokens + 73, "AGG-DENOMINATOR", "counts nothing of the step"}, {both, "AGG-PROMPT-COUNTED", "with their prompts"}, {tokens * 1.0137, "FACTOR", ""}} {
		g := b.Token("dlogp")
		for i, x := range right {
			g[i] = float64(float32(x * tokens / c.divisor))
		}
		o := stage.Judge(stage.Find("gradient/dlogp"), b, set)
		require.Equal(t, check.Fail, o.Verdict)
		var named bool
		for _, e := range fault.Explain(o) {
			if e.Lead {
				continue
			}
			require.Equal(t, c.id, e.Hypothesis.ID, e.Hypothesis.Title)
			require.Contains(t, e.Hypothesis.Title, c.words)
			named = true
		}
		require.True(t, named, c.words)
	}
}

// A sum that the tokens of a generation batch of three steps divide, of which a third was declared to, by the losses of a run, is not rescaled; where there are
// three accumulation steps, too, it is the same number, and no second division.
func TestTokensOfAGenerationBatchNotRescaled(t *testing.T) {
	for _, steps := range []float64{2, 3} {
		set := declared(t, map[string]string{"agg.kind": "token", "agg.denominator": "global", "agg.div_ga": "false", "loss.kind": "ppo", "entropy.coef": "0", "kl.place": "none"}).
			WithFact(stage.StepTokens, 20.).WithFact(stage.GenerationSteps, 3.).WithFact("gradient_accumulation_steps", steps)
		batch := func(loss float64) *dump.Batch {
			b := written("grpo", 2, 4, []bool{true, true, true, false, true, true, false, false}, map[string][]float64{"token_loss": {1, 2, 3, 0, 4, 6, 0, 0}, "loss": {loss}})
			b.Meta.MicroBatches = int(steps)
			return b
		}
		list := requireFault(t, "AGG-NUM-ITEMS-GENERATION", "aggregate/loss", batch(16./60), set, batch(16./20))
		require.NotContains(t, names(list), "AGG-GA-TWICE")
	}
}

// Advantages 1 and −3 of two and four tokens whose losses are divided by these twice: −(1/2 − 3/4)/2 is not −(1 − 3)/2.
func TestAdvantagesOverLengths(t *testing.T) {
	set := declared(t, map[string]string{"agg.kind": "seq_mean_token_mean", "agg.denominator": "micro", "agg.div_ga": "false", "agg.empty_rows": "excluded", "agg.len_eps": "0", "ratio.log_clamp": "none", "loss.kind": "ppo", "ratio.old": "stopgrad_new",
		"ratio.level": "token", "entropy.coef": "0", "kl.place": "none", "clip.low": "0.2", "clip.high": "0.2", "clip.dual": "none", "clip.delta": "none", "tis.level": "none", "mask.tokens": "response"})
	batch := func(loss float64) *dump.Batch {
		return written("grpo", 2, 4, []bool{true, true, false, false, true, true, true, true}, map[string][]float64{"logp_new": {-1, -2, 0, 0, -1, -3, -2, -1}, "advantages": {1, -3}, "loss": {loss}})
	}
	requireFault(t, "ADV-DIVIDED-BY-LENGTH", "aggregate/loss", batch(.125), set, batch(1))
}
