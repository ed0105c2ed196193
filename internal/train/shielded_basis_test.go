package train_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/linalg"
)

// lora returns the parameters of an adapter of rank r on one layer [d, in] for each name.
func lora(r, in, d int, layers ...string) []train.Param {
	var list []train.Param
	for _, l := range layers {
		list = append(list, train.Param{Name: l + ".lora_A.weight", Shape: []int{r, in}, Data: make([]float64, r*in), Grad: make([]float64, r*in)},
			train.Param{Name: l + ".lora_B.weight", Shape: []int{d, r}, Data: make([]float64, d*r), Grad: make([]float64, d*r)})
	}
	return list
}

func normals(seed uint64, n int) []float64 {
	x, s := make([]float64, n), rng.New(seed, 0)
	for i := range x {
		x[i] = s.Normal(uint64(i))
	}
	return x
}

// orthonormal returns an orthonormal basis d×k.
func orthonormal(t require.TestingT, seed uint64, d, k int) []float64 {
	q, rank, ok := linalg.Orthonormalise(normals(seed, d*k), k)
	require.True(t, ok && rank == k)
	return q
}

// The vectors of systems A.7.
func TestShieldHandVectors(t *testing.T) {
	params := lora(1, 1, 3, "h.q_proj")[1:]
	s, err := train.NewShield(&train.Basis{Kind: train.Flat, D: 3, K: 1, Q: []float64{1, 0, 0}}, params, nil)
	require.NoError(t, err)
	g := [][]float64{{3, 4, 5}}
	require.InDelta(t, 3/math.Sqrt(50), s.Leak(g), 1e-15)
	s.Project(g, 1)
	require.Equal(t, []float64{0, 4, 5}, g[0])

	params = lora(1, 1, 2, "h.q_proj")[1:]
	s, err = train.NewShield(&train.Basis{Kind: train.Side, D: 2, K: 1, Q: []float64{.6, .8}}, params, nil)
	require.NoError(t, err)
	g = [][]float64{{1, 2}}
	require.InDelta(t, 2.2/math.Sqrt(5), s.Leak(g), 1e-15)
	s.Project(g, 1)
	require.InDeltaSlice(t, []float64{-.32, .24}, g[0], 1e-15)
	require.InDelta(t, .16, g[0][0]*g[0][0]+g[0][1]*g[0][1], 1e-15)
	once := []float64{g[0][0], g[0][1]}
	s.Project(g, 1)
	require.InDeltaSlice(t, once, g[0], 4*0x1p-53)
}

// Against the projection of reference/linalg, which goes through gonum: flat over all tensors by name, side over every lora_B.
func TestShieldIsTheProjection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, in, d := rapid.IntRange(1, 3).Draw(t, "r"), rapid.IntRange(1, 5).Draw(t, "in"), rapid.IntRange(4, 9).Draw(t, "d")
		seed, passes := rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 2).Draw(t, "passes")
		params := lora(r, in, d, "h.1.v_proj", "h.0.q_proj")
		var v [][]float64
		for i, p := range params {
			v = append(v, normals(seed+uint64(i)+1, len(p.Data)))
		}
		scale := rapid.SampledFrom([]float64{1, 100, 1e-6}).Draw(t, "scale")
		for _, x := range v {
			for i := range x {
				x[i] *= scale
			}
		}
		kind := rapid.SampledFrom([]string{train.Flat, train.Side}).Draw(t, "kind")
		rows := d
		if kind == train.Flat {
			rows = 2 * r * (in + d)
		}
		k := rapid.IntRange(1, rows-1).Draw(t, "k")
		b := &train.Basis{Kind: kind, D: rows, K: k, Q: orthonormal(t, seed, rows, k)}
		s, err := train.NewShield(b, params, nil)
		require.NoError(t, err)

		want := make([][]float64, len(v))
		if kind == train.Side {
			want[0], want[2] = v[0], v[2]
			for _, i := range []int{1, 3} {
				want[i] = linalg.Project(b.Q, k, v[i], r, passes)
			}
		} else {
			order := []int{2, 3, 0, 1} // h.0.q_proj A and B, h.1.v_proj A and B
			var flat []float64
			for _, i := range order {
				flat = append(flat, v[i]...)
			}
			flat = linalg.Project(b.Q, k, flat, 1, passes)
			for _, i := range order {
				want[i], flat = flat[:len(v[i])], flat[len(v[i]):]
			}
		}
		norm := 0.0
		got := make([][]float64, len(v))
		for i := range v {
			got[i] = append([]float64(nil), v[i]...)
			for _, x := range v[i] {
				norm += x * x
			}
		}
		s.Project(got, passes)
		for i := range got {
			for j := range got[i] {
				// Tolerances 5.13 with both sides in float64: dots of at most 84 elements of a unit vector, twice.
				require.InDelta(t, want[i][j], got[i][j], 8*84*0x1p-53*math.Sqrt(norm))
			}
		}
		after := s.Leak(got)
		require.LessOrEqual(t, after, 84*0x1p-53*max(1, math.Sqrt(norm))*8)
		require.Greater(t, s.Leak(v), after)
	})
}

// A gradient inside span(Q) is taken away whole; the A of a side basis stays as it is.
func TestShieldErasesTheSpan(t *testing.T) {
	params := lora(2, 3, 6, "h.0.out_proj")
	b := &train.Basis{Kind: train.Side, D: 6, K: 2, Q: orthonormal(t, 5, 6, 2)}
	s, err := train.NewShield(b, params, nil)
	require.NoError(t, err)
	inside := make([]float64, 12)
	for i := range 6 {
		for j := range 2 {
			inside[i*2+j] = 3*b.Q[i*2] - float64(j)*b.Q[i*2+1]
		}
	}
	a := normals(1, 6)
	v := [][]float64{a, inside}
	s.Project(v, 1)
	require.Equal(t, normals(1, 6), v[0])
	for _, x := range v[1] {
		require.InDelta(t, 0, x, 1e-14)
	}
}

func TestShieldRefusesOtherWidths(t *testing.T) {
	params := append(lora(1, 4, 4, "h.0.q_proj"), lora(1, 4, 8, "h.0.fc_in")...)
	b := &train.Basis{Kind: train.Side, D: 4, K: 1, Q: []float64{1, 0, 0, 0}}
	_, err := train.NewShield(b, params, nil)
	require.ErrorContains(t, err, "h.0.fc_in is 8 wide and the side basis has d = 4")
	s, err := train.NewShield(b, params, []string{"fc_in"})
	require.NoError(t, err)
	require.Equal(t, []string{"h.0.fc_in"}, s.Bare)
}

// saved writes a tensor Q.
func saved(t testing.TB, metadata map[string]string, dtype format.DType, data []float64, shape ...int) string {
	path := filepath.Join(t.TempDir(), "basis.safetensors")
	tensor := safetensors.Tensor{Name: "Q", DType: dtype, Shape: shape, Data: data}
	if !dtype.Float() {
		tensor.Data, tensor.Raw = nil, make([]byte, len(data)*dtype.Size())
	}
	require.NoError(t, safetensors.WriteFile(path, metadata, []safetensors.Tensor{tensor}))
	return path
}

// The table of systems A.4: each failure has its own message.
func TestReadBasisRefuses(t *testing.T) {
	params := lora(2, 8, 8, "h.0.q_proj", "h.1.q_proj") // P = 64
	q := orthonormal(t, 1, 8, 2)
	nan := append([]float64(nil), q...)
	nan[5] = math.NaN()
	pickle := filepath.Join(t.TempDir(), "books_Q.pt")
	require.NoError(t, os.WriteFile(pickle, []byte("PK\x03\x04"), 0o644))
	garbage := filepath.Join(t.TempDir(), "basis.safetensors")
	require.NoError(t, os.WriteFile(garbage, []byte("\x08\x00\x00\x00\x00\x00\x00\x00{}"), 0o644))
	order := map[string]string{"kind": "flat", "order": `[["base_model.model.h.0.q_proj.lora_B.weight",16],["base_model.model.h.0.q_proj.lora_A.weight",48]]`}
	for name, c := range map[string]struct{ path, kind, says string }{
		"not 2-D":         {saved(t, nil, format.F32, q, 16), "", "the basis is 1-dimensional, shape (16,)"},
		"not floating":    {saved(t, nil, format.I32, make([]float64, 16), 8, 2), "", "the basis is stored as I32, want a floating-point type"},
		"not finite":      {saved(t, nil, format.F32, nan, 8, 2), "", "the basis is not finite: row 2, column 1 is NaN"},
		"d differs":       {saved(t, nil, format.F32, q, 4, 4), "", "the basis has d = 4 rows; the flat vector has P = 64 numbers, the outputs of the targets are [8] wide"},
		"side of another": {saved(t, nil, format.F32, q, 4, 4), train.Side, "a side basis of d = 4 rows; the outputs of the targets are [8] wide"},
		"P differs":       {saved(t, nil, format.F32, q, 16, 1), train.Flat, "a flat basis of P = 16 rows; the LoRA tensors have 64 numbers"},
		"k = 0":           {saved(t, nil, format.F32, nil, 8, 0), "", "the basis is empty, shape (8, 0)"},
		"k = d":           {saved(t, nil, format.F32, make([]float64, 64), 8, 8), "", "spans the whole space (H4b): k = 8 of d = 8, every gradient becomes 0"},
		"zero":            {saved(t, nil, format.F32, make([]float64, 16), 8, 2), "", "has rank 0"},
		"another kind":    {saved(t, map[string]string{"kind": "side"}, format.F32, q, 8, 2), train.Flat, "says that it is a side basis, projection.kind is flat"},
		"another order":   {saved(t, order, format.F32, normals(1, 128), 64, 2), "", "its order of the LoRA tensors is not that of this adapter"},
	} {
		_, err := train.ReadBasis(c.path, c.kind, params)
		require.ErrorContains(t, err, c.says, name)
		var unfit *train.UnfitError
		require.ErrorAs(t, err, &unfit, name)
		require.Equal(t, 1, unfit.ExitCode())
	}
	absent := filepath.Join(t.TempDir(), "no", "Q.safetensors")
	_, err := train.ReadBasis(absent, "", params)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, absent)
	require.ErrorContains(t, err, "train shielded basis.from=embeddings projection.basis=")
	for _, path := range []string{pickle, garbage, saved(t, map[string]string{"kind": "round"}, format.F32, q, 8, 2), saved(t, map[string]string{"order": "[1]"}, format.F32, q, 8, 2)} {
		_, err := train.ReadBasis(path, "", params)
		require.True(t, format.IsMalformed(err), "%s: %v", path, err)
		require.ErrorContains(t, err, path)
	}
}

// A basis that is not orthonormal is repaired and says so; one that is comes back as it is.
func TestReadBasisOrthonormalises(t *testing.T) {
	params := lora(2, 8, 8, "h.0.q_proj")
	q := orthonormal(t, 2, 8, 3)
	b, err := train.ReadBasis(saved(t, nil, format.F64, q, 8, 3), "", params)
	require.NoError(t, err)
	require.Empty(t, b.Repair)
	require.Equal(t, train.Side, b.Kind)
	require.Equal(t, q, b.Q)
	raw := append([]float64(nil), q...)
	for i := range 8 {
		raw[i*3] *= 7                // not normalised
		raw[i*3+1] += raw[i*3+2] / 2 // and not orthogonal
	}
	b, err = train.ReadBasis(saved(t, nil, format.F64, raw, 8, 3), "", params)
	require.NoError(t, err)
	require.Contains(t, b.Repair, "orthonormalised, rank 3 of 3")
	require.Less(t, b.Defect(), 1e-14)
	for j := range 3 { // of the same space: Q of the one takes all of the other away
		col := make([]float64, 8)
		for i := range col {
			col[i] = q[i*3+j]
		}
		for _, x := range linalg.Project(b.Q, 3, col, 1, 1) {
			require.InDelta(t, 0, x, 1e-14)
		}
	}
}

// NewBasis keeps what is above 1e-6 of the largest singular value, relative, and at most a quarter of d.
func TestNewBasis(t *testing.T) {
	const d = 40
	v := orthonormal(t, 3, d, 12)
	vectors := func(sigma ...float64) []float64 {
		u := orthonormal(t, 4, 20, len(sigma))
		e := make([]float64, 20*d)
		for n := range 20 {
			for i := range d {
				for j, s := range sigma {
					e[n*d+i] += s * u[n*len(sigma)+j] * v[i*12+j]
				}
			}
		}
		return e
	}
	for _, scale := range []float64{1, 1e-9, 1e9} { // relative
		b, err := train.NewBasis(vectors(scale, .1*scale, 2e-6*scale, 5e-7*scale, 1e-12*scale), d, 0)
		require.NoError(t, err)
		require.Equal(t, 3, b.K)
		require.Less(t, b.Defect(), 1e-13)
		var inside float64
		for j := range 3 {
			col := make([]float64, d)
			for i := range d {
				col[i] = v[i*12+j]
			}
			for _, x := range linalg.Project(b.Q, b.K, col, 1, 1) {
				inside = max(inside, math.Abs(x))
			}
		}
		require.Less(t, inside, 1e-8)
	}
	b, err := train.NewBasis(vectors(12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1), d, 0)
	require.NoError(t, err)
	require.Equal(t, d/4, b.K)
	b, err = train.NewBasis(vectors(12, 11, 10, 9), d, 2)
	require.NoError(t, err)
	require.Equal(t, 2, b.K)
	_, err = train.NewBasis(make([]float64, 2*d), d, 0)
	require.ErrorContains(t, err, "all 0")
	bad := vectors(1)
	bad[d+3] = math.Inf(1)
	_, err = train.NewBasis(bad, d, 0)
	require.ErrorContains(t, err, "not finite: vector 1, element 3")
}

// What is written is read back, with its convention.
func TestBasisRoundTrip(t *testing.T) {
	params := lora(2, 8, 8, "h.1.q_proj", "h.0.q_proj")
	for _, kind := range []string{train.Flat, train.Side} {
		d := 8
		if kind == train.Flat {
			d = 64
		}
		b := &train.Basis{Kind: kind, D: d, K: 2, Q: orthonormal(t, 6, d, 2)}
		if kind == train.Flat {
			b.Order = train.Flattened(params)
		}
		path := filepath.Join(t.TempDir(), "basis.safetensors")
		require.NoError(t, b.Write(path, "test"))
		got, err := train.ReadBasis(path, "", params)
		require.NoError(t, err)
		require.Equal(t, kind, got.Kind)
		require.Equal(t, b.Order, got.Order)
		require.Less(t, got.Defect(), 1e-6)
		for i := range b.Q {
			require.Equal(t, float64(float32(b.Q[i])), got.Q[i])
		}
		require.NotEqual(t, b.Fingerprint(), got.Fingerprint())
	}
	order := train.Flattened(params)
	require.Equal(t, "base_model.model.h.0.q_proj.lora_A.weight", order[0].Name)
	require.True(t, strings.HasSuffix(order[3].Name, "h.1.q_proj.lora_B.weight"))
}

// Whatever bytes a basis has, reading it ends in a basis that shields or in an error.
func FuzzReadBasis(f *testing.F) {
	params := lora(2, 8, 8, "h.0.q_proj")
	for _, c := range []struct {
		meta  map[string]string
		shape []int
	}{{nil, []int{8, 2}}, {map[string]string{"kind": "side"}, []int{8, 1}}, {map[string]string{"kind": "flat", "order": `[["a",32]]`}, []int{32, 2}}} {
		text, err := os.ReadFile(saved(f, c.meta, format.F32, normals(1, c.shape[0]*c.shape[1]), c.shape...))
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "q.safetensors")
		require.NoError(t, os.WriteFile(path, text, 0o644))
		b, err := train.ReadBasis(path, "", params)
		var unfit *train.UnfitError
		if err != nil {
			require.True(t, format.IsMalformed(err) || errors.As(err, &unfit), "%v", err)
			return
		}
		require.True(t, b.K > 0 && b.K < b.D && len(b.Q) == b.D*b.K)
		require.LessOrEqual(t, b.Defect(), 1e-5)
		_, err = train.NewShield(b, params, nil)
		require.NoError(t, err)
	})
}
