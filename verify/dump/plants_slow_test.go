//go:build slow

package dump_test

import (
	"testing"

	"plumbline/internal/cases"
)

// TestTenThousandHealthyAreSilent judges 10,000 batches, or as many as CHECKS says, that declare every option.
func TestTenThousandHealthyAreSilent(t *testing.T) {
	n := cases.Checks()
	judgeHealthy(t, declaring{}, 3, n).silent(t, n)
}

// TestHealthyWithoutProfileIsSilent judges batches that declare what applies to them: what does not is searched.
func TestHealthyWithoutProfileIsSilent(t *testing.T) {
	n := cases.Checks() / 10 // each search takes as long as ten of them
	judgeHealthy(t, bareOnly, 4, n).silent(t, n)
}
