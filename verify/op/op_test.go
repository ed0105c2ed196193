package op_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/op"
)

func TestCaseString(t *testing.T) {
	for i := range 50 {
		c := op.F32Gemm.Case(7, i)
		back, err := op.ParseCase(c.String())
		require.NoError(t, err)
		require.Equal(t, c, back)
	}
	for _, s := range []string{"", "normal", "normal/5x-1/3", "normal/5xa/3", "normal/5x4/x", "a/1/2/3"} {
		_, err := op.ParseCase(s)
		require.Error(t, err, s)
	}
}

// Nothing, one element, and a wrong one must be told apart, whatever the values.
func TestTrialFails(t *testing.T) {
	spec := func(run func(t *op.Trial)) *op.Report {
		s := &op.Spec[int]{Name: "x", Families: []string{op.Normal}, Run: func(_ int, _ op.Case, tr *op.Trial) { run(tr) }}
		return s.CheckCase(0, op.Case{Family: op.Normal, Seed: 3})
	}
	require.False(t, spec(func(*op.Trial) {}).OK(), "nothing compared is no pass")
	require.True(t, spec(func(tr *op.Trial) { tr.Within("x", 1, 1+1e-9, 1e-8, 0, 0) }).OK())
	nan := math.NaN()
	for name, run := range map[string]func(tr *op.Trial){
		"beyond":       func(tr *op.Trial) { tr.Within("x", 1, 1+1e-7, 1e-8, 0, 0) },
		"NaN":          func(tr *op.Trial) { tr.Within("x", nan, 1, 1e9, 0, 0) },
		"NaN bound":    func(tr *op.Trial) { tr.Within("x", 1, 1, nan, 0, 0) },
		"infinite":     func(tr *op.Trial) { tr.Within("x", math.Inf(1), 1, 1e9, 0, 0) },
		"bits":         func(tr *op.Trial) { op.Equal(tr, "x", float32(1), 1+0x1p-23, 0, 0) },
		"sign of zero": func(tr *op.Trial) { op.Equal(tr, "x", 0, float32(math.Copysign(0, -1)), 0, 0) },
		"panic":        func(tr *op.Trial) { panic("x") },
		"input written": func(tr *op.Trial) {
			m := op.Input(tr, 2, 2, 3, func(int) float32 { return 1 })
			m.Data[1] = 2
			op.Equal(tr, "x", 1.0, 1, 0, 0)
		},
		"gap written": func(tr *op.Trial) {
			m := op.Output[float32](tr, 2, 2, 3)
			m.Data[2] = 2
			op.Equal(tr, "x", 1.0, 1, 0, 0)
		},
		"output left":    func(tr *op.Trial) { m := op.Output[float32](tr, 2, 2, 2); op.Equal(tr, "x", m.At(0, 0), 0, 0, 0) },
		"beyond the end": func(tr *op.Trial) { m := op.Output[int8](tr, 1, 5, 5); m.Data[4:6][1] = 3 },
	} {
		require.False(t, spec(run).OK(), name)
	}
}

// What computes a formula in float64 and rounds once is within the bounds of every backend: with a sigmoid of 0 below e⁻¹⁰⁰, and on a
// device where float32 has no e^−g.
func TestPlainImplementationsPass(t *testing.T) {
	softmaxBackward := func(ds, dp, p []float32) {
		dot := 0.0
		for i, v := range p {
			dot += float64(v) * float64(dp[i])
		}
		for i, v := range p {
			ds[i] = float32(float64(v) * (float64(dp[i]) - dot))
		}
	}
	gated := func(none float64) op.GatedBackwardFunc { // none: the e^−g from which on σ is 0
		return func(dgate, dup, dy, gate, up []float32) {
			for i, x := range gate {
				g, s := float64(x), 1/(1+math.Exp(-float64(x)))
				if math.Exp(-g) > none {
					s = 0
				}
				dgate[i] = float32(float64(dy[i]) * float64(up[i]) * (s + g*s/(1+math.Exp(g))))
				dup[i] = float32(float64(dy[i]) * g * s)
			}
		}
	}
	largest := func(x []float32) float32 {
		y := float32(math.Inf(-1))
		for _, v := range x {
			y = max(y, v)
		}
		return y
	}
	device := op.Terms{Contract: op.Device}
	for name, o := range map[string]op.Op{
		"softmax backward": op.SoftmaxBackward.With(softmaxBackward), "gated backward": op.SwiGLUBackward.With(gated(math.Exp(100))), "maximum": op.Max.With(largest),
		"gated backward on a device": op.SwiGLUBackward.On(device, gated(math.Inf(1))), "without e^−g": op.SwiGLUBackward.On(device, gated(math.MaxFloat32)),
	} {
		r := o.Check(1, 60, true)
		require.True(t, r.OK(), "%s: %s", name, r)
	}
}

// Every fault of every op is caught by the cases that a default run tries.
func TestFaultsAreCaught(t *testing.T) {
	n := 0
	for _, o := range []op.Op{
		op.Quantize.With(nil), op.I8Gemm.With(nil), op.I8Scaled.With(nil), op.W8A16.With(nil), op.W8A16DX.With(nil), op.F32Gemm.With(nil), op.F64Gemm.With(nil),
		op.RMSNorm.With(nil), op.LayerNorm.With(nil), op.Softmax.With(nil), op.SwiGLU.With(nil),
		op.SwiGLUBackward.With(nil), op.SoftmaxBackward.With(nil), op.RMSNormBackward.With(nil), op.Head.With(nil), op.HeadBackward.With(nil), op.Add.With(nil), op.Scale.With(nil), op.Max.With(nil), op.Rotate.With(nil), op.Attention.With(nil),
		op.LayerNormBackward.With(nil), op.GELU.With(nil), op.AttentionBackward.With(nil), op.HeadBatch.With(nil),
		op.PolicyLoss.With(nil), op.AdamW.With(nil), op.Project.With(nil), op.Embedding.With(nil), op.Move.With(nil),
	} {
		require.NotEmpty(t, o.Faults, o.Name)
		for _, f := range o.Faults {
			n++
			t.Run(o.Name+"/"+f.ID, func(t *testing.T) {
				r := f.Check(1, 60, true)
				require.False(t, r.OK(), "%s: %s: nothing was seen in %d cases", f.ID, f.Title, r.Cases)
				t.Log(r)
			})
		}
	}
	t.Logf("%d faults", n)
}
