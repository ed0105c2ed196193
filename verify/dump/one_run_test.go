package dump_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// strangers returns what is said of files of another run.
func strangers(t *testing.T, b dump.Batches) string {
	t.Helper()
	r, err := dump.Judge(context.Background(), b, dump.Options{Set: []string{"ratio.old=stored"}, Selection: check.Selection{Select: []string{"across/*"}}})
	require.NoError(t, err)
	for _, res := range r.Results {
		if res.Check == "input/one_run" {
			require.Equal(t, check.Undetermined, res.Verdict)
			return strings.Join(append([]string{res.Reason}, res.Details...), "\n")
		}
		require.NotEqual(t, check.Fail, res.Verdict, res.Reason)
	}
	return ""
}

// A step whose types or settings no other step has is of another run; a setting that is changed for good is not, nor is one that changes
// at every step.
func TestStepOfAnotherRun(t *testing.T) {
	option := func(b dump.Batches, name string, value func(step int) any) dump.Batches {
		for _, s := range b {
			s.Meta.Options = append(s.Meta.Options, dumpfile.Option{Name: name, Value: value(s.Meta.Step)})
		}
		return b
	}
	at := func(step int, there, elsewhere any) func(int) any {
		return func(s int) any {
			if s == step {
				return there
			}
			return elsewhere
		}
	}
	require.Empty(t, strangers(t, generations(3, nil)))
	require.Contains(t, strangers(t, option(generations(3, nil), "clip.low", at(3, 0.1, 0.2))), "step 3 may be of another run: the option clip.low is 0.1, and 0.2 in all 5 other steps")
	require.Contains(t, strangers(t, option(generations(3, nil), "loss_type", at(4, "dapo", "grpo"))), "step 4")
	require.Empty(t, strangers(t, option(generations(3, nil), "clip.low", func(s int) any { return 0.1 * float64(1+s/4) })), "changed for good")
	require.Empty(t, strangers(t, option(generations(3, nil), "clip.low", at(6, 0.1, 0.2))), "nobody knows what comes behind the last step")
	require.Empty(t, strangers(t, option(generations(3, nil), "kl.beta", at(3, 0.1, 0.2))), "an adaptive coefficient")
	typed := generations(3, nil)
	typed[2].Tensors["logp_gen"].Type = format.BF16
	require.Contains(t, strangers(t, typed), "the type of logp_gen is bfloat16, and float32 in all 5 other steps")
}

// Numbers of samples that are given to other tokens name no rows: nothing is said of what these keep.
func TestSamplesWithOtherTokens(t *testing.T) {
	run := func(again bool) dump.Batches {
		b := generations(3, nil)
		for i, s := range b {
			ids := make([]float64, len(s.Mask))
			for k := range ids {
				ids[k] = float64((k*k + 31*k*(1+i/2)) % 97)
			}
			s.Tensors["response_ids"] = &dumpfile.Tensor{Name: "response_ids", Layout: dumpfile.PerToken, Width: 1, Shape: []int{s.Rows, s.Cols}, Data: ids, Type: format.I32}
			if again {
				for r := range s.Tensors["sample_id"].Data {
					s.Tensors["sample_id"].Data[r] = float64(r)
				}
			}
		}
		return b
	}
	require.Empty(t, strangers(t, run(false)))
	require.Contains(t, strangers(t, run(true)), "is of other tokens at step 3 than at step 1, and so are 7 more")
}
