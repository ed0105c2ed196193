//go:build slow

package dump_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/convention"
	"plumbline/verify/plant/dump"
)

// TestPlantsInOtherTypes is TestPlants in float64, and in bfloat16, of which the inputs are rounded copies.
func TestPlantsInOtherTypes(t *testing.T) {
	for _, d := range []format.DType{format.F64, format.BF16} {
		t.Run(d.String(), func(t *testing.T) { kills(t, []format.DType{d}, "trl-grpo@1.16", "verl-ppo@0.9") })
	}
}

// TestPlantsUnderOtherProfiles is TestPlants under profiles whose dumps have other tensors.
func TestPlantsUnderOtherProfiles(t *testing.T) {
	kills(t, []format.DType{format.F64}, "openrlhf-ppo@0.11", "trl-ppo@1.12", "nemo-ppo@7ea279a")
}

// TestPlantsOnAnyNumberOfProcessors demands the same scores of one processor and of several.
func TestPlantsOnAnyNumberOfProcessors(t *testing.T) {
	p, _, err := convention.Lookup("trl-rloo@1.16")
	require.NoError(t, err)
	scores := func(n int) []dump.Score {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
		s, err := dump.PlantAll(context.Background(), []*convention.Profile{p}, []format.DType{format.F32}, 3, nil)
		require.NoError(t, err)
		return s
	}
	one, many := scores(1), scores(3)
	for i := range one {
		one[i].Plant, many[i].Plant = nil, nil // it has a func
	}
	require.Equal(t, one, many)
}
