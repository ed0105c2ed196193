package golden

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestManifests(t *testing.T) {
	folders, err := Data.ReadDir(".")
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	for _, f := range folders {
		m, err := Load(f.Name())
		require.NoError(t, err)
		require.NotEmpty(t, m.Producer)
		require.NotEmpty(t, m.Versions)
		require.NotZero(t, m.Seed)
		require.NotEmpty(t, m.SHA256)
	}
	_, err = Load("missing")
	require.Error(t, err)
}
