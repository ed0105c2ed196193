package bf16

import (
	"testing"

	"plumbline/accel"
	"plumbline/verify/op"
)

// The portable form of what AMX computes has the bits that the specification says, on any machine, and so does not the chain.
func TestTwins(t *testing.T) {
	op.W8A16.With(forwardTwin).Under("amx").Test(t, "twin", 1, 60)
	op.W8A16DX.With(backwardTwin).Under("amx").Test(t, "twin", 1, 60)
	for name, r := range map[string]*op.Report{
		"chain for tiles":             op.W8A16.With(forwardGeneric).Under("amx").Check(1, 60, true),
		"tiles for a chain":           op.W8A16.With(forwardTwin).Under(accel.Generic).Check(1, 60, true),
		"chain for tiles, backward":   op.W8A16DX.With(backwardGeneric).Under("amx").Check(1, 60, true),
		"tiles for a chain, backward": op.W8A16DX.With(backwardTwin).Under(accel.Generic).Check(1, 60, true),
	} {
		if r.Failed == 0 {
			t.Errorf("%s: nothing was seen in %d cases", name, r.Cases)
		}
	}
}

// The self-tests tell the two orders apart.
func TestSelfTestsOfTiles(t *testing.T) {
	for name, err := range map[string]error{"forward": testForwardTiles(forwardGeneric), "backward": testBackwardTiles(backwardGeneric),
		"forward of a chain": testForward(forwardTwin), "backward of a chain": testBackward(backwardTwin)} {
		if err == nil {
			t.Errorf("%s: the other order passes", name)
		}
	}
}
