//go:build slow

package dump_test

import (
	"testing"

	"plumbline/internal/format"
)

// The figures of bfloat16 are those of dumps that the hook has cast down: they say less, and are reported and not demanded.
func TestPlantsEverywhere(t *testing.T) {
	kills(t, []format.DType{format.F32})
}
