package fault_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
)

// Means over responses that divide by the tokens of their prompts, too, which no tensor shows: the gradients show as many more for all rows of a group. Other
// numbers of each row, and a constant of all, are none.
func TestMeansWithPromptsByTheirGradients(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := trainer.Complete(p, rand.New(rand.NewPCG(2, 7)))
	for option, value := range map[string]string{"agg.kind": "seq_mean_token_mean", "agg.denominator": "micro", "agg.div_ga": "false", "loss.kind": "ppo", "entropy.coef": "0", "kl.place": "none"} {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 32, Cols: 12, Files: 1, Seed: 2})
	for name := range b.Tensors {
		if slices.Contains([]string{"prompt_len", "attention_mask", "input_ids", "token_loss"}, name) {
			b = b.Without(name)
		}
	}
	n, right, id := make([]float64, b.Rows), slices.Clone(b.Token("dlogp")), b.Row("group_id")
	require.NotNil(t, id)
	for i, m := range b.Mask {
		if m {
			n[i/b.Cols]++
		}
	}
	judged := func(of func(r int) float64) *stage.Outcome {
		for i, x := range right {
			b.Token("dlogp")[i] = float64(float32(x * n[i/b.Cols] / of(i/b.Cols)))
		}
		return stage.Judge(stage.Find("gradient/dlogp"), b, set)
	}
	require.Equal(t, check.Pass, judged(func(r int) float64 { return n[r] }).Verdict)
	requireFirst(t, judged(func(r int) float64 { return n[r] + 3 + id[r] - id[0] }), "AGG-PROMPT-COUNTED", "as many tokens more for all rows of a group as their gradients show")
	for name, of := range map[string]func(r int) float64{
		"of each row": func(r int) float64 { return n[r] + float64(1+r%5) }, "one length": func(int) float64 { return 40 }, "a factor": func(r int) float64 { return 2 * n[r] }, "no whole number": func(r int) float64 { return n[r] + 2.5 },
	} {
		for _, e := range fault.Explain(judged(of)) {
			require.NotEqual(t, "AGG-PROMPT-COUNTED", e.Hypothesis.ID, name)
		}
	}
}

// The sequences of packed rows are divided by all of their cells.
func TestMeansWithPromptsOfPackedRows(t *testing.T) {
	const rows, cols = 6, 8
	prompt, tokens := []int{2, 3, 1, 2, 4, 3}, []int{5, 2, 3, 6, 1, 4}
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for option, value := range map[string]string{"agg.kind": "seq_mean_token_mean", "agg.denominator": "micro", "agg.div_ga": "false", "loss.kind": "ppo", "entropy.coef": "0", "kl.beta": "0", "kl.place": "none", "tis.level": "none"} {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	judged := func(with bool) *stage.Outcome {
		mask, x, loss := make([]bool, rows*cols), make([]float64, rows*cols), 0.0
		for r := range rows {
			own := float64(tokens[r])
			if with {
				own += float64(prompt[r])
			}
			for t := prompt[r]; t < prompt[r]+tokens[r]; t++ {
				i := r*cols + t
				mask[i], x[i] = true, float64(float32(noise(i)))
				loss += x[i] / own / rows
			}
		}
		b := written("grpo", rows, cols, mask, map[string][]float64{"token_loss": x, "loss": {loss}, "logp_new": slices.Clone(x), "logp_old": slices.Clone(x), "advantages": make([]float64, rows)})
		b.Files[0].Packed = true
		for r := range b.Origin {
			b.Origin[r] = dump.Origin{Row: r / 2, Col: r % 2 * 8, Cols: prompt[r] + tokens[r]}
		}
		return stage.Judge(stage.Find("aggregate/loss"), b, set)
	}
	require.Equal(t, check.Pass, judged(false).Verdict, judged(false).Lacking())
	requireFirst(t, judged(true), "AGG-PROMPT-COUNTED", "its prompt and response")
}
