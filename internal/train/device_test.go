package train

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDevices(t *testing.T) {
	for _, good := range []string{"cpu", "cuda", "cuda:0", "cuda:17", "mps"} {
		require.NoError(t, checkDevice(good), good)
	}
	for _, bad := range []string{"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda:01", "cuda:9999999", "cuda:0:1", "cuda:0\n::error::x", "CUDA", " cpu", "tpu:0"} {
		require.Error(t, checkDevice(bad), bad)
	}
	for _, good := range []string{`{"": 0}`, "auto", "", "cpu", "cuda:1", `{"a": "cpu", "b": 3, "c": "disk", "d": "cuda:1"}`, "{}"} {
		require.NoError(t, checkDeviceMap(good), good)
	}
	for _, bad := range []string{`{"": "x"}`, `{"": -1}`, `{"": 0.5}`, `{"": null}`, `{"": "cuda:x"}`, "{", "automatic", `[0]`, `{"": 1e9}`} {
		require.Error(t, checkDeviceMap(bad), bad)
	}
	for list, want := range map[string]int{"": 1, " ": 1, "0": 1, "0,1": 2, "3, 1": 2, "-1": 0, "0,-1,2": 1, "GPU-8932f937-d72c,MIG-1": 2} {
		got, err := VisibleDevices(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got, list)
	}
	for _, bad := range []string{"x", "0,x", "0,,1", "1.5", "cuda:0", "0;1", "-2", "99999999999"} {
		_, err := VisibleDevices(bad)
		require.Error(t, err, bad)
	}
}
