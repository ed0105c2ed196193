package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/internal/format/safetensors"
	"plumbline/reference/linalg"
	projectionplant "plumbline/verify/plant/projection"
)

// numpyFile is a .npy file of the given version whose header says descr.
func numpyFile(version byte, descr string, fortran bool, shape string, data []byte) []byte {
	order := "False"
	if fortran {
		order = "True"
	}
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", descr, order, shape)
	prefix := 10
	if version > 1 {
		prefix = 12
	}
	for (prefix+len(header)+1)%64 != 0 {
		header += " "
	}
	header += "\n"
	out := []byte("\x93NUMPY" + string([]byte{version, 0}))
	if version == 1 {
		out = binary.LittleEndian.AppendUint16(out, uint16(len(header)))
	} else {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(header)))
	}
	return append(append(out, header...), data...)
}

// workspace is a folder with the golden data and what the cases need beside them.
func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, extract("projection", dir))
	write := func(name string, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o666))
	}
	save := func(name string, dtype format.DType, shape []int, v []float64) {
		require.NoError(t, npy.WriteFile(filepath.Join(dir, name), dtype, shape, v))
	}
	read := func(name string) []float64 {
		f, err := npy.Open(filepath.Join(dir, name), npy.Options{})
		require.NoError(t, err)
		defer f.Close()
		v, err := f.Float64s()
		require.NoError(t, err)
		return v
	}
	const d, k = 768, 12
	q := read("q.npy")
	f32 := format.Encode(nil, q, format.F32)
	for v := byte(1); v <= 3; v++ {
		write(fmt.Sprintf("v%d.npy", v), numpyFile(v, "<f4", false, "(768, 12)", f32))
	}
	columns := make([]float64, 0, d*k)
	for j := range k {
		for i := range d {
			columns = append(columns, q[i*k+j])
		}
	}
	write("read_as_c.npy", numpyFile(1, "<f4", false, "(768, 12)", format.Encode(nil, columns, format.F32)))
	write("truncated.npy", numpyFile(1, "<f4", false, "(768, 12)", f32[:len(f32)-1]))
	write("trailing.npy", numpyFile(1, "<f4", false, "(768, 12)", append(f32[:len(f32):len(f32)], 0)))
	write("object.npy", numpyFile(1, "|O", false, "(2, 2)", make([]byte, 64)))
	write("lying.npy", numpyFile(1, "<f8", false, "(65536, 65536)", nil))
	write("integer.npy", numpyFile(1, "<i8", false, "(768, 12)", make([]byte, 8*d*k)))
	write("bf16.npy", numpyFile(1, "|V2", false, "(768, 12)", format.Encode(nil, q, format.BF16)))
	write("empty.npy", nil)
	write("text.txt", []byte("hello, world"))
	write("model.pt", []byte("PK\x03\x04 archive/data.pkl"))
	save("one_dimensional.npy", format.F32, []int{d}, q[:d])
	square := projectionplant.RandomBasis(rand.New(rand.NewPCG(1, 1)), 24, 24)
	save("square.npy", format.F64, []int{24, 24}, square)
	save("g24.npy", format.F64, []int{24}, square[:24])
	wide := projectionplant.RandomBasis(rand.New(rand.NewPCG(2, 2)), 40, 24) // d×k = 40×24, stored 24×40
	wideT := make([]float64, len(wide))
	for i := range 40 {
		for j := range 24 {
			wideT[j*40+i] = wide[i*24+j]
		}
	}
	save("wide.npy", format.F64, []int{24, 40}, wideT)
	with := func(name string, at int, v float64) {
		x := append([]float64(nil), q...)
		x[at] = v
		save(name, format.F32, []int{d, k}, x)
	}
	with("nan.npy", 100*k+3, math.NaN())
	with("inf.npy", 767*k+11, math.Inf(1))

	// One pass in float32, summed in order, of a long gradient of norm 100.
	r := rand.New(rand.NewPCG(3, 3))
	long := projectionplant.Scenario{D: 8192, K: 32, Norm: 100, Basis: format.F32, Vector: format.F32, Passes: 1}.Draw(r)
	lq := make([]float64, 8192*32)
	require.NoError(t, long.Basis.Elements(lq, 0))
	save("long_q.npy", format.F32, []int{8192, 32}, lq)
	save("long_g.npy", format.F32, []int{8192}, long.Grads[0].Tensors[0].Data)
	save("long_p.npy", format.F32, []int{8192}, long.Projected[0].Tensors[0].Data)

	// A side basis for lora_B (64, 8), held and not.
	side := projectionplant.RandomBasis(r, 64, 4)
	save("side.npy", format.F32, []int{64, 4}, side)
	b := make([]float64, 64*8)
	for i := range b {
		b[i] = 1e-3 * r.NormFloat64()
	}
	names := []string{"base_model.model.m.q_proj.lora_A.weight", "base_model.model.m.q_proj.lora_B.weight"}
	a := make([]float64, 8*16)
	for i := range a {
		a[i] = r.NormFloat64()
	}
	lora := func(folder string, b []float64) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o777))
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, folder, "adapter_model.safetensors"), map[string]string{"format": "pt"}, []safetensors.Tensor{
			{Name: names[0], DType: format.F32, Shape: []int{8, 16}, Data: a},
			{Name: names[1], DType: format.F32, Shape: []int{64, 8}, Data: b},
		}))
	}
	lora("side_init", make([]float64, 64*8))
	lora("side_free", b)
	lora("side_held", linalg.Project(side, 4, b, 8, 2))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "pickled"), 0o777))
	write("pickled/adapter_model.bin", []byte("\x80\x02."))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "nothing"), 0o777))
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "one_grad.safetensors"), nil, []safetensors.Tensor{{Name: names[0], DType: format.F32, Shape: []int{8, 16}, Data: a}}))
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "zero_grads.safetensors"), nil, []safetensors.Tensor{{Name: "w", DType: format.F32, Shape: []int{d}, Data: make([]float64, d)}}))
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "no_grads.safetensors"), nil, nil))
	return dir
}
