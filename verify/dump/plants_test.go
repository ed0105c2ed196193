package dump_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/dump"
)

func TestHealthyIsSilent(t *testing.T) {
	alarms, err := dump.Healthy(context.Background(), 1, 500, nil)
	require.NoError(t, err)
	for i, a := range alarms {
		if i < 40 {
			t.Log(a)
		}
	}
	require.Empty(t, len(alarms))
}
