package golden

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/verify/check"
)

var readOnce = sync.OnceValues(func() (*Set, error) { return Embedded(context.Background()) })

// embedded returns the set that is part of the program, read once: tests may change the Set, but nothing below it.
func embedded(t testing.TB) *Set {
	t.Helper()
	s, err := readOnce()
	require.NoError(t, err)
	c := *s
	return &c
}

// Every fault of every check is planted in four places, and must be caught by the check that ships it.
func TestFaults(t *testing.T) {
	s := embedded(t)
	planted, seeds := 0, uint64(4)
	if testing.Short() || !cases.All {
		seeds = 1
	}
	for _, c := range Suite {
		require.NotEmpty(t, c.Faults, c.Name)
		for _, f := range c.Faults {
			want := f.Want
			if want == 0 {
				want = check.Fail
			}
			for seed := range seeds {
				results, err := check.Suite[*Set]{c}.Run(f.Plant(rand.New(rand.NewPCG(seed, 1)), s), check.Selection{})
				require.NoError(t, err, "%s %s", c.Name, f.ID)
				require.True(t, slices.ContainsFunc(results, func(r check.Result) bool { return r.Verdict == want }), "%s: %s (seed %d): want %v, got %v", c.Name, f.Title, seed, want, results)
				planted++
			}
		}
	}
	require.Greater(t, planted, 100*int(seeds))
	clean, err := Suite.Run(s, check.Selection{})
	require.NoError(t, err)
	require.Equal(t, check.ExitPass, check.Exit(clean, check.Policy{}), "planting must not change the set")
}
