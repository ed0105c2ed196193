package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// A logged rate is read where the optimiser's steps are there to hold it against.
func TestLoggedRatesAreRead(t *testing.T) {
	s := &session{scalars: map[string]string{"train/lr": "", "loss_scale": ""}}
	require.Equal(t, []string{"loss_scale", "train/lr"}, s.unread())
	s.optimizer.set = &convention.Set{}
	require.Equal(t, []string{"loss_scale"}, s.unread())
}
