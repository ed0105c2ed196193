//go:build !nocuda && !cu && (linux || darwin) && (amd64 || arm64)

package cuda

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/op"
)

// stub builds a driver library whose memory is the host's and whose answers are known.
func stub(t *testing.T) string {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		op.Skip(t, "gcc", "without gcc the stand-in for the driver cannot be built")
	}
	lib := filepath.Join(t.TempDir(), "libstub.so")
	out, err := exec.Command(gcc, "-shared", "-fPIC", "-o", lib, "testdata/stub.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return lib
}

func TestDriverCalls(t *testing.T) {
	d, err := Open(stub(t), 0)
	require.NoError(t, err)
	require.Equal(t, "Stub 40 (sm_90, driver 13.0)", d.Name())
	require.Equal(t, "cuda", d.Variant())
	free, total, err := d.Memory()
	require.NoError(t, err)
	require.Equal(t, [2]int64{3 << 32, 5 << 32}, [2]int64{free, total})

	x, y := []float32{1, 2, 3}, []float32{10, 20, 30}
	px, err := ToDevice(d, x)
	require.NoError(t, err)
	py, err := ToDevice(d, y)
	require.NoError(t, err)
	text, err := PTX("pointwise")
	require.NoError(t, err)
	m, err := d.Load(text)
	require.NoError(t, err)
	k, err := m.Kernel("add")
	require.NoError(t, err)
	require.NoError(t, k.Launch([3]int{1, 1, 1}, [3]int{32, 1, 1}, 24, py, px, float32(2), int32(3)))
	require.NoError(t, d.Synchronize())
	require.NoError(t, FromDevice(d, y, py))
	require.Equal(t, []float32{12, 24, 36}, y)
	require.ErrorContains(t, k.Launch([3]int{1, 1, 1}, [3]int{32, 1, 1}, 0, py, px, float32(2), int32(3)), "cuLaunchKernel add: error 1 CUDA_ERROR_X: (no text)")
	require.ErrorContains(t, k.Launch([3]int{1, 1, 1}, [3]int{32, 1, 1}, 24, py, px, int32(3)), "takes 4 arguments, not 3")
	_, err = d.Alloc(1 << 31)
	require.ErrorContains(t, err, "cuMemAlloc_v2: error 2 CUDA_ERROR_OUT_OF_MEMORY")
	ms, err := d.(interface {
		Time(func() error) (float32, error)
	}).Time(d.Synchronize)
	require.NoError(t, err)
	require.Equal(t, float32(1.5), ms)
	require.NoError(t, d.Free(px))
	require.NoError(t, d.Free(py))
	require.NoError(t, d.Close())
}

func TestDriverFails(t *testing.T) {
	_, err := Open("libno-such-driver.so.1", 0)
	require.ErrorIs(t, err, ErrNoDevice)
	require.ErrorContains(t, err, "cannot be loaded")
	lib := stub(t)
	_, err = Open(lib, 1)
	require.ErrorIs(t, err, ErrNoDevice)
	require.ErrorContains(t, err, "GPU 1 of 1")
	for fault, says := range map[string]string{
		"no_device": "cuInit: error 100 CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
		"none":      "GPU 0 of 0",
		"old":       "the kernels need sm_80",
	} {
		t.Setenv("STUB_CUDA", fault)
		_, err := Open(lib, 0)
		require.ErrorIs(t, err, ErrNoDevice, fault)
		require.ErrorContains(t, err, says)
	}
	t.Setenv("STUB_CUDA", "jit")
	d, err := Open(lib, 0)
	require.NoError(t, err)
	text, err := PTX("pointwise")
	require.NoError(t, err)
	_, err = d.Load(text)
	require.ErrorContains(t, err, "ptxas fatal: Unsupported .version 9.0")
	require.ErrorContains(t, err, "make ptx")
	t.Setenv("STUB_CUDA", "late")
	require.ErrorContains(t, d.Synchronize(), "error 700")
	t.Setenv("STUB_CUDA", "")
	require.NoError(t, d.Close())
}

// On a GPU a buffer lies between sentinels: a write beyond it is found and named.
func TestSentinels(t *testing.T) {
	lib := stub(t)
	t.Setenv("STUB_CUDA", "host")
	d, err := Open(lib, 0)
	require.NoError(t, err)
	y, x := []float32{1, 2, 3}, []float32{1, 1, 1}
	h := NewHost(d)
	h.Add(y, x, 2)
	require.Equal(t, []float32{3, 4, 5}, y)
	require.Equal(t, []string{"add"}, h.Launched())
	t.Setenv("STUB_CUDA", "overrun")
	why := ""
	func() {
		defer failed(&why)
		h.Add(y, x, 2)
	}()
	require.Equal(t, "cuda: a sentinel was overwritten 12 bytes from the start of operand 0 of 12 bytes, by one of the kernels [add]", why)
	require.NoError(t, d.Close())
}

// The same specs on a GPU, where there is one: VERIFY_REQUIRE=cuda makes its absence a failure.
func TestOnGPU(t *testing.T) {
	d, err := Open("", 0)
	if errors.Is(err, ErrNoDevice) {
		op.Skip(t, "cuda", err.Error())
	}
	require.NoError(t, err)
	defer d.Close()
	h := NewHost(d)
	for _, o := range op.OnDevice(h, 0) {
		t.Run(o.Name, func(t *testing.T) { o.Test(t, "cuda", 1, 60) })
	}
	for _, c := range attentionCases() {
		r := op.AttentionBackward.On(op.Terms{Contract: op.Device}, h.Attention).CheckCase(c)
		require.True(t, r.OK(), "%v: %v", c, r)
	}
}
