//go:build slow

package checkpoint

import "testing"

func TestTenThousandHealthyFolders(t *testing.T) { alarms(t, 11, 10_000) }

func TestFaultsOfManySeeds(t *testing.T) { plantAll(t, 100, 150) }
