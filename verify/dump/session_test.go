package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// The bugs that would show are tried on the first step, and on the first one whose ratios are not all 1: on no other.
func TestSamplesOfARun(t *testing.T) {
	for _, c := range []struct {
		ratios []bool // of the steps, from which on one had ratios that are not all 1
		want   []int
	}{
		{[]bool{false, false, false}, []int{0}},
		{[]bool{true, true, true}, []int{0}},
		{[]bool{false, false, true, true}, []int{0, 2}},
	} {
		s := session{ledger: &ledger{}}
		for step, ratios := range c.ratios {
			s.exercise.ratios = ratios
			s.watch(&view{b: &dump.Batch{Rows: 1, Cols: 1, Meta: dump.Meta{Step: step}}}, &convention.Set{})
		}
		var got []int
		for _, x := range s.samples {
			got = append(got, x.b.Meta.Step)
		}
		require.Equal(t, c.want, got, "%v", c.ratios)
	}
}

// Logged losses that all have no more bits than bfloat16 tell what they were computed in, from three different ones on.
func TestLoggedLossesOnAGrid(t *testing.T) {
	for _, c := range []struct {
		losses []float64
		want   bool
	}{
		{[]float64{1.25, 1.375, -0.4375}, true},
		{[]float64{1.25, 1.375, 1.375}, false},
		{[]float64{1.25, 1.375, -0.4375, 0.1}, false},
		{[]float64{1, 2, 4}, false}, // powers of two have no bits
	} {
		s := session{ledger: &ledger{}}
		for step, x := range c.losses {
			b := &dump.Batch{Files: []dump.FileInfo{{Scalars: []dump.Scalar{{Name: "loss", Value: x}, {Name: "grad_norm", Value: 0.3}}}}, Meta: dump.Meta{Step: step}}
			s.observe(&view{b: b}, &StepNotes{}, &convention.Set{})
		}
		require.Equal(t, c.want, s.formats.loggedOnGrid(), "%v", c.losses)
	}
}

// Elements and rules that were found wrong count; a result of no steps, as one that could not be judged, has none.
func TestCountedResults(t *testing.T) {
	require.False(t, counted(&check.Result{}))
	require.False(t, counted(&check.Result{Steps: &check.Steps{Judged: 3}}))
	require.True(t, counted(&check.Result{Steps: &check.Steps{Judged: 3, Bad: 1}}))
}

// That the policy is its reference is asked at the first update of a rollout alone: a later one has moved by then, or may have.
func TestReferenceIsAskedWhereARolloutBegins(t *testing.T) {
	const n = 32
	b := &dump.Batch{Rows: 1, Cols: n, Mask: make([]bool, n), Tensors: map[string]*dump.Tensor{}, Files: []dump.FileInfo{{Hi: 1, Cols: n}}, Origin: make([]dump.Origin, 1)}
	x := make([]float64, n)
	for i := range x {
		b.Mask[i], x[i] = true, -0.3*float64(i+1)/7
	}
	for _, name := range []string{"logp_ref", "logp_old", "logp_new"} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Data: x}
	}
	for _, begins := range []bool{true, false} {
		set := (&convention.Set{}).WithFact("rollout_begins", begins).WithFact("reference_suspicion", float64(alikeOften)).WithFact("policy_moved", true)
		a := referenceStands(stage.NewCase(b, set, tol.U32))
		if !begins {
			require.Nil(t, a)
			continue
		}
		require.NotNil(t, a)
		require.Len(t, a.Violations, 1)
	}
}
