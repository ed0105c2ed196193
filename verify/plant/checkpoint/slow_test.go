//go:build slow

package checkpoint

import (
	"testing"

	"plumbline/internal/cases"
)

func TestTenThousandHealthyFolders(t *testing.T) { alarms(t, 11, cases.Checks()) }

func TestFaultsOfManySeeds(t *testing.T) { plantAll(t, 100, 100+uint64(50/cases.Planted())) }
