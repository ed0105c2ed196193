package rl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A response without a token ends at the column −1: with one cell more, as in trl@1.12 ppo_trainer's padding_mask_p1, column 0 is in.
func TestLengthMaskOfEmptyRows(t *testing.T) {
	mask := []bool{true, false, false, false, false, false, true, true, true}
	require.Equal(t, []bool{true, false, false, false, false, false, true, true, true}, LengthMask(nil, mask, 3, 3, 0))
	require.Equal(t, []bool{true, true, false, true, false, false, true, true, true}, LengthMask(nil, mask, 3, 3, 1))
}
