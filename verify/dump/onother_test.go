package dump_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// A bug of a program that has another value of a number than the framework's default, and does not declare it, is named on top of that value.
func TestBugOnTopOfAnUndeclaredNumber(t *testing.T) {
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := trainer.Complete(p, rand.New(rand.NewPCG(7, 9)))
	for option, text := range map[string]string{"value.clip": "0.5", "value.factor": "0.5", "value.coef": "0.1"} {
		v, err := convention.Parse(option, text)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	judge := func(id string) check.Result {
		var list dump.Batches
		for step := range 2 {
			c := trainer.Config{Set: set, Rows: 16, Cols: 8, Seed: uint64(11 + step)}
			b, full, ok := trainer.Faulty(c, id)
			require.True(t, ok)
			b = plant.Declared(b, full)
			b.Meta.Step = step
			b.Meta.Options = slices.DeleteFunc(slices.Clone(b.Meta.Options), func(o dumpfile.Option) bool { return o.Name == "value.clip" })
			list = append(list, b)
		}
		r, err := dump.Judge(context.Background(), list, dump.Options{Profile: p.Name, Selection: check.Selection{Select: []string{"aggregate/value_loss"}}})
		require.NoError(t, err)
		at := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == "aggregate/value_loss" })
		require.GreaterOrEqual(t, at, 0)
		return r.Results[at]
	}
	r := judge("VALUE-CLIP-MIN")
	require.Equal(t, check.Fail, r.Verdict)
	require.NotEmpty(t, r.Explanations, r.Reason)
	require.Equal(t, "VALUE-CLIP-MIN", r.Explanations[0].Fault)
	require.Contains(t, r.Explanations[0].Title, "on top of value.clip 0.5, which nobody declares, where trl-ppo@1.12 has 0.2")
	r = judge("VALUE-NO-HALF")
	require.Contains(t, []check.Verdict{check.Fail, check.Convention}, r.Verdict)
	require.Equal(t, "VALUE-NO-HALF", r.Explanations[0].Fault)
}
