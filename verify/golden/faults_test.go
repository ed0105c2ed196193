package golden

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// embedded reads the set that is part of the program.
func embedded(t testing.TB) *Set {
	t.Helper()
	s, err := Embedded(context.Background())
	require.NoError(t, err)
	return s
}

// Every fault of every check is planted in four places, and must be caught by the check that ships it.
func TestFaults(t *testing.T) {
	s := embedded(t)
	planted := 0
	for _, c := range Suite {
		require.NotEmpty(t, c.Faults, c.Name)
		for _, f := range c.Faults {
			want := f.Want
			if want == 0 {
				want = check.Fail
			}
			for seed := range uint64(4) {
				results, err := check.Suite[*Set]{c}.Run(f.Plant(rand.New(rand.NewPCG(seed, 1)), s), check.Selection{})
				require.NoError(t, err, "%s %s", c.Name, f.ID)
				require.True(t, slices.ContainsFunc(results, func(r check.Result) bool { return r.Verdict == want }), "%s: %s (seed %d): want %v, got %v", c.Name, f.Title, seed, want, results)
				planted++
			}
		}
	}
	require.Greater(t, planted, 300)
	clean, err := Suite.Run(s, check.Selection{})
	require.NoError(t, err)
	require.Equal(t, check.ExitPass, check.Exit(clean, check.Policy{}), "planting must not change the set")
}
