//go:build slow

package dump_test

import "testing"

// TestTenThousandHealthyAreSilent judges 10,000 batches that declare every option.
func TestTenThousandHealthyAreSilent(t *testing.T) {
	const n = 10_000
	judgeHealthy(t, declaring{}, 3, n).silent(t, n)
}

// TestHealthyWithoutProfileIsSilent judges batches that declare what applies to them: what does not is searched.
func TestHealthyWithoutProfileIsSilent(t *testing.T) {
	const n = 1000
	judgeHealthy(t, bareOnly, 4, n).silent(t, n)
}
