package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/cuda/ptxsim"
)

// A .ptx that is older than its .cu says nothing about it.
func TestPTXIsFresh(t *testing.T) {
	require.NotEmpty(t, Kernels())
	for _, name := range Kernels() {
		hash, err := SourceHash(name)
		require.NoError(t, err)
		text, err := PTX(name)
		require.NoError(t, err)
		first, _, _ := strings.Cut(text, "\n")
		require.Contains(t, first, hash, "%s.ptx is stale: make ptx", name)
		require.Contains(t, first, "nvcc 13.0.88")
		_, err = parse(text)
		require.NoError(t, err)
	}
	sources, err := texts.ReadDir(".")
	require.NoError(t, err)
	n := 0
	for _, f := range sources {
		if strings.HasSuffix(f.Name(), ".cu") {
			n++
		}
	}
	require.Equal(t, n, len(Kernels()), "every .cu has its .ptx")
}

func TestArgumentsAreChecked(t *testing.T) {
	c := NewContext(Simulator(ptxsim.Options{}, 0))
	text, err := PTX("pointwise")
	require.NoError(t, err)
	m, err := c.Load(text)
	require.NoError(t, err)
	k, err := m.Kernel("add")
	require.NoError(t, err)
	one := [3]int{1, 1, 1}
	require.ErrorContains(t, k.Launch(one, one, 0, Pointer(1)), "takes 4 arguments, not 1")
	require.ErrorContains(t, k.Launch(one, one, 0, Pointer(1), Pointer(1), Pointer(1), int32(1)), "argument 2 of kernel add has 4 bytes")
	require.ErrorContains(t, k.Launch(one, one, 0, Pointer(1), Pointer(1), float64(1), int32(1)), "is a float64")
	require.ErrorContains(t, k.Launch([3]int{0, 1, 1}, one, 0, Pointer(1), Pointer(1), float32(1), int32(1)), "a grid of")
	_, err = m.Kernel("subtract")
	require.ErrorContains(t, err, `no kernel "subtract"`)
	_, err = PTX("nothing")
	require.ErrorContains(t, err, `no module "nothing"`)
	require.Error(t, c.GemmInt8(0, 0, 0, 0, 0, 0, 1, 1, MaxK+1, 1<<20, 1<<20, 1))
}

// SourceHash is the sha256 of a module's source and of the header, which the first line of its PTX repeats.
func SourceHash(name string) (string, error) {
	h := sha256.New()
	for _, file := range []string{"device.cuh", path.Base(name) + ".cu"} {
		b, err := texts.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("cuda: module %q has no source: %w", name, err)
		}
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
