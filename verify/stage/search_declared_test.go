package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// A profile that fits by an option which the outcome does not say that it has read, as that of a tensor that is recomputed, is a change of that option.
func TestFitOfAnOptionThatIsNotAmongThoseRead(t *testing.T) {
	b := &dump.Batch{Rows: 1, Cols: 1, Mask: []bool{true}, Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, 1), Files: []dump.FileInfo{{Hi: 1, Cols: 1}}}
	b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Data: []float64{2}, Type: format.F32}
	ch := &Check{ID: "test/unread", Stage: convention.Aggregate, Output: "loss", Predict: func(c *Case) *Prediction {
		want := 1.0
		if c.Set.Value("loss.kind").String() == "ppo" {
			want = 2
		}
		return &Prediction{Want: []float64{want}, Bound: []float64{1e-6}}
	}}
	reinforce, err := convention.Parse("loss.kind", "reinforce")
	require.NoError(t, err)
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	o := Judge(ch, b, convention.FromProfile(p).With("loss.kind", reinforce, "trl-grpo@1.16"))
	require.Equal(t, check.Fail, o.Verdict, o.Lacking())
	fits, _ := Conventions(o)
	require.NotEmpty(t, fits)
	for _, f := range fits {
		require.Equal(t, "loss.kind", f.Changes[0].Option)
		require.Len(t, f.Changes, 1)
	}
}
