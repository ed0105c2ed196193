package dump_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	"plumbline/verify/convention"
	"plumbline/verify/plant/dump"
)

// kills plants every bug under the named profiles and demands that 98 of 100 are caught and 90 named first.
func kills(t *testing.T, types []format.DType, names ...string) {
	profiles := convention.Profiles()
	if len(names) > 0 {
		profiles = slices.DeleteFunc(profiles, func(p *convention.Profile) bool { return !slices.Contains(names, p.Name) })
		require.Len(t, profiles, len(names))
	}
	scores, err := dump.PlantAll(context.Background(), profiles, types, 1, nil)
	require.NoError(t, err)
	shown := 0
	for _, s := range scores {
		if s.Batches > 0 {
			shown++
		}
		if s.Named < s.Batches {
			t.Logf("%s: %d batches, %d caught, %d named; not on %v; else named %v", s.Plant.ID, s.Batches, s.Caught, s.Named, s.Missed, s.First)
		}
	}
	batches, caught, named := dump.Total(scores)
	t.Logf("%d of %d plants show; %d batches: %d caught (%.1f %%), %d named first (%.1f %%)", shown, len(scores), batches, caught,
		100*float64(caught)/float64(batches), named, 100*float64(named)/float64(batches))
	require.GreaterOrEqual(t, shown, len(scores)/2)
	require.GreaterOrEqual(t, float64(caught), 0.98*float64(batches))
	require.GreaterOrEqual(t, float64(named), 0.9*float64(batches))
}

func TestPlants(t *testing.T) {
	if testing.Short() {
		t.Skip("plants every bug: seconds, minutes under the race detector")
	}
	names := []string{"verl-ppo@0.9", "trl-grpo@1.16"}
	if !cases.All {
		names = names[:1]
	}
	kills(t, []format.DType{format.F32}, names...)
}
