package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Advantages that are right but for a number that every group has, or that stand in another row, are named so; a number that all groups
// share is none of a group.
func TestOutputEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	right := func(r []float64, group []int, i int) float64 {
		var mean, square float64
		for _, j := range group {
			mean += r[j] / float64(len(group))
		}
		for _, j := range group {
			square += (r[j] - mean) * (r[j] - mean)
		}
		return (r[i] - mean) / (math.Sqrt(square/float64(len(group)-1)) + 1e-4)
	}
	behind := func(group []int, i, rows int) (int, []int) { // the row behind, and its group
		j := (i + 1) % rows
		return j, []int{j / 4 * 4, j/4*4 + 1, j/4*4 + 2, j/4*4 + 3}
	}
	c := stage.Find("advantage/group")
	fits := func(of func(r []float64, group []int, i int) float64) (titles []string) {
		o := stage.Judge(c, rewarded(of), set)
		require.Equal(t, check.Fail, o.Verdict)
		for _, e := range outputEdits(o) {
			h := described(&Hypothesis{ID: e.id, Title: e.title, Checks: []string{c.ID}, Predict: e.predict})[0]
			if x, ok := newTrial(o).try(h, "", h.judge); ok && !x.Lead {
				titles = append(titles, e.id+": "+e.title)
			}
		}
		return titles
	}
	baseline := "ADV-CENTER: every group has another baseline: its advantages are the right ones plus one number"
	spread := "ADV-SPREAD: every group has another spread: its advantages are the right ones times one number"
	require.Equal(t, []string{baseline}, fits(func(r []float64, group []int, i int) float64 { return right(r, group, i) + math.Sin(float64(group[0])) }))
	require.Equal(t, []string{spread}, fits(func(r []float64, group []int, i int) float64 {
		return right(r, group, i) * (2 + math.Sin(float64(group[0])))
	}))
	require.Empty(t, fits(func(r []float64, group []int, i int) float64 { return right(r, group, i) + 0.5 }))
	require.Empty(t, fits(func(r []float64, group []int, i int) float64 { return right(r, group, i) * 2 }))
	require.Contains(t, fits(func(r []float64, group []int, i int) float64 {
		j, of := behind(group, i, len(r))
		return right(r, of, j)
	}), "ADV-ROWS-OF-OTHERS: advantages are those of the row behind")
}
